"""Promises have one author: each names its condition, and certificate, terminal, report and receipt agree."""

import ast
import html
import itertools
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from scipy.optimize import brentq
from scipy.stats import norm

from discretion.accounting import Certificate, certify
from discretion.audit import receipts, statements
from discretion.audit.enclosed import enclose
from discretion.cli import output
from discretion.plan.grid import Grid
from discretion.plan.phase import Phase
from discretion.plan.plan import ADVERSARIES, Adversary, NoiseAt, Plan, Randomness
from discretion.plan.population import Population
from discretion.plan.steps import Unit
from discretion.report import officer, write
from discretion.report.page import fragment
from discretion.report.receipt_page import render
from discretion.report.run_group import group
from discretion.runs.read import Run, read_run
from support.run_folders import STRICT, make_run, people, planned, run_of, trained

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "discretion"
AUTHOR = SOURCE / "audit" / "statements.py"

# phrases that word a promise, its condition, or how coins and noise are drawn
TELLING = re.compile(
    r"protects? (one|each|all|nobody|every|the whole|a client's)\b|protected from (the|any|it|other|whoever)"
    r"|(nobody|no client) is protected|server (is|are) trusted|trusts (the|no) server|is trusted to"
    r"|whoever (sees|knows)|(sees|see) (sums|each|every)|sums only"
    r"|with(out)? a secure sum|needs a secure sum|nothing is (promised|proved)|promises? nothing"
    r"|from a seed|floating.point|rounded to a grid|drawn exactly|chacha20|(remove|take) the noise"
    r"|secret coin|drawn in secret|(holds?|promised) against the server"
    r"|protects? (clients?|records?|everybody|everyone)?\s*(from|against)"
    r"|(never|cannot) (sees?|learns?|tell)|is secret,? and",
    re.IGNORECASE,
)
# below `audit` in the import order, where what is worded is no promise of a plan
ELSEWHERE = {
    "guard/checks.py": "why a client's own guard refuses an order",
    "methods/papers/charges.py": "what a paper's formula assumes",
    "plan/steps.py": "why steps are refused",
    "runs/config.py": "what a setting does",
}
NOISE: tuple[NoiseAt, ...] = get_args(NoiseAt)
RANDOM: tuple[Randomness, ...] = get_args(Randomness)
CASES = list(itertools.product(NOISE, ADVERSARIES, RANDOM, (False, True), ("nothing", "losses")))
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))


def words_in(path: Path) -> Iterator[str]:
    """Yield the strings of a module but docstrings, with {} for what f-strings fill in."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inner = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            inner.add(id(node.value))  # docstrings
        if isinstance(node, ast.JoinedStr) and id(node) not in inner:
            parts = [part.value if isinstance(part, ast.Constant) else "{}" for part in node.values]
            yield "".join(map(str, parts))
            inner |= {id(part) for part in node.values}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
            yield node.value


def wording(path: Path) -> list[str]:
    texts = words_in(path) if path.suffix == ".py" else [path.read_text(encoding="utf-8")]
    return [text for text in texts if TELLING.search(text)]


def test_no_other_module_words_a_promise() -> None:
    sources = [path for kind in ("py", "html", "js", "css") for path in SOURCE.rglob(f"*.{kind}")]
    found = {path.relative_to(SOURCE).as_posix(): wording(path) for path in sources if path != AUTHOR}
    worded = {name: texts for name, texts in found.items() if texts}
    assert set(worded) == set(ELSEWHERE), worded
    assert wording(AUTHOR)


def test_the_page_on_privacy_says_what_plans_say() -> None:
    page = " ".join((ROOT / "docs" / "privacy.md").read_text(encoding="utf-8").split())
    for unit, noise_at, promise in (
        ("client", "server", "clients"),
        ("client", "clients", "clients"),
        ("client", "secure_sum", "server"),
        ("record", "steps", "server"),
    ):
        assert statements.method_protection(unit, noise_at, promise, False) in page  # type: ignore[arg-type]
    for text in (*statements.RANDOMNESS.values(), *statements.GRID.values()):
        assert text in page


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, receipts.ReceiptAccount]:
    run = read_run(trained(tmp_path_factory.mktemp("statements") / "run", "plan.rounds=2"))
    return run, receipts._account(run, "c4")


def stated(
    run: Run, noise_at: NoiseAt, promise: Adversary, randomness: Randomness, grid: bool, reads: str
) -> Run:
    """Return the run with other facts in plan and certificate."""
    plan = replace(run.plan, randomness=randomness, grid=Grid(2.0**-20, 100) if grid else None)
    facts = {"noise_at": noise_at, "promise": promise, "randomness": randomness, "grid": grid}
    certificate = replace(run.certificate, **facts, reads=reads, plan=plan.digest())  # type: ignore[arg-type]
    unit: Unit = "record" if noise_at == "steps" else "client"
    return replace(run, plan=plan, certificate=replace(certificate, unit=unit))


def check_condition(told: str, certificate: Certificate) -> None:
    """The sentence that names an adversary names what the promise rests on."""
    sentence = told.split(". ")[0]
    assert sentence.startswith("Protects ")
    from_server = "from the server" in sentence
    assert from_server == (certificate.promise == "server")
    if not from_server:
        assert "trusted: the server " in sentence and "; against it epsilon is " in sentence
        assert ("the other clients are trusted" in sentence) == (certificate.promise == "public")
        assert ("without a secure sum" in sentence) == (certificate.noise_at == "secure_sum")
    elif certificate.noise_at == "secure_sum":
        assert ", if a secure sum shows the server sums only and " in sentence
        assert "without one nothing is promised against the server" in sentence
    elif certificate.noise_at == "server":
        assert ", which cannot hold: " in sentence
    else:
        assert "own share" in sentence or "noisy before it leaves the client" in sentence


@pytest.mark.parametrize(("noise_at", "promise", "randomness", "grid", "reads"), CASES)
def test_every_promise_names_its_condition_everywhere(
    base: tuple[Run, receipts.ReceiptAccount],
    noise_at: NoiseAt,
    promise: Adversary,
    randomness: Randomness,
    grid: bool,
    reads: str,
) -> None:
    run = stated(base[0], noise_at, promise, randomness, grid, reads)
    certificate = run.certificate
    again = Certificate.from_json(certificate.to_json())
    told, noise = statements.protection(again), statements.noise(again)
    check_condition(told, certificate)
    assert ("whoever knows the seed" in told) == ("whoever knows the seed" in noise) == run.simulated
    assert ("drawn exactly" in noise) == grid == ("floating-point" not in noise)
    assert ("losses, read with noise that is paid for" in told) == (reads == "losses")
    # terminal
    assert output.statement(certificate).startswith(told)
    record = output.certificate_record(run.plan, certificate)
    assert (record["protection"], record["noise"]) == (told, noise)
    # report
    groups = group([run])
    out = run.folder / "report.html"
    held = enclose([run], Path("report.html"), wanted=False)
    page = plain(fragment("officer.html", groups=groups, classes=(), officer=officer, out=out, records=held))
    opening = page[: page.index("What each client is promised")]  # the condition in the same sentence
    check_condition(f"P{statements.holds(certificate)[1:]}; against it epsilon is ", certificate)
    kept = f"very budget was kept, counted {statements.ALONE}"
    assert f"{kept}; this {statements.holds(certificate)}" in opening
    simulated = "within budget It was a simulation, and protects nobody from whoever knows the seed; e"
    assert (f"{simulated}{kept}" in opening) == run.simulated != (f"E{kept}" in opening)
    assert told in page and noise in page and statements.trusted(certificate) in page
    assert all(words in page for words in statements.against(certificate).values())
    # receipt
    receipt = receipts._receipt(run, "c4", base[1])
    shown = plain(render(receipts.Signed(receipt=receipt, key="0" * 64, signature="0" * 128)))
    assert (receipt.statement, receipt.noise) == (told, noise) and told in shown and noise in shown
    limits = {item.what for item in receipt.not_promised}
    assert ("Floating-point noise." in limits) != grid and (
        "This is a simulation." in limits
    ) == run.simulated
    for text in (page, shown, " ".join(item.why for item in receipt.not_promised)):
        assert ("floating-point" in text) != grid


def plain(page: str) -> str:
    return " ".join(html.unescape(re.sub(r"<script.*?</script>|<[^>]+>", "", page, flags=re.S)).split())


def plan_of(noise_at: NoiseAt = "secure_sum", promise: Adversary = "server", **facts: object) -> Certificate:
    population = Population.of([2.0] * 10)
    everyone = np.ones(10)
    phase = Phase.one_pool(4, everyone, everyone, 40.0)
    plan = Plan("made", population.client, (phase,), noise_at=noise_at, promise=promise, **facts)  # type: ignore[arg-type]
    return certify(plan, population)


def test_who_the_adversary_is() -> None:
    told = statements.against(plan_of(colluding=0))
    assert told["public"] == told["clients"]  # nobody has a share to tell of
    assert told["public"].startswith("whoever sees every model that is released, where no client fails")
    assert told["clients"].endswith("or the server adds what is missing or releases nothing")
    assert told["server"].startswith("the server on its own, if a secure sum shows the server sums only")
    assert "tell nobody their shares" in statements.protection(plan_of(colluding=0))
    assert statements.against(plan_of())["clients"].startswith("any one other client, knowing every model")
    told = statements.against(plan_of(colluding=3))
    assert told["clients"].startswith("any 3 other clients together, knowing every model and their own")
    assert told["server"].startswith("the server, with what any 3 other clients together may tell it, if")
    assert "from any 3 other clients together" in statements.protection(plan_of(colluding=3))
    assert statements.against(plan_of("server", "clients"))["clients"].endswith("and their own updates")
    assert "against which nothing is promised" in statements.against(plan_of(promise="clients"))["server"]


def test_what_integer_noise_is_made_of() -> None:
    told = statements.noise(plan_of(grid=Grid(2.0**-20, 100)))
    assert "discrete Gaussian shares that are drawn exactly" in told and "floating-point" not in told
    told = statements.noise(plan_of("server", "clients", grid=Grid(2.0**-20, 100)))
    assert "a Gaussian rounded to a grid" in told


def test_how_many_may_drop_out() -> None:
    certificate = plan_of(dropout=0.2)
    for text in (statements.protection(certificate), *statements.against(certificate).values()):
        assert "at most 20% of a pool's clients fail to add a share of the noise" in text


def test_the_epsilon_of_a_single_answer_is_said_and_never_too_small() -> None:
    certificate = plan_of(promise="clients")
    found = re.search(r"against it epsilon is at most ([\d.]+)\.", statements.protection(certificate))
    assert found is not None
    largest = float(certificate.epsilon["server"].max())
    assert largest <= float(found[1]) <= 1.0002 * largest
    assert "against it epsilon is infinite" in statements.protection(plan_of("server", "clients"))


def test_what_is_not_kept_is_said() -> None:
    over = replace(plan_of(), budget=np.full(10, 1e-3))
    assert "but not within budget: 10 of 10 clients overspend" in statements.protection(over)
    nothing = replace(plan_of(), spent=np.full(10, np.inf))
    assert statements.protection(nothing) == "No privacy: this plan protects nobody from anybody."
    raw = replace(nothing, reads="losses")
    assert "who trains depends on losses, read raw" in statements.protection(raw)
    assert statements.trusted(nothing).startswith("Everything")
    assert statements.unproved("the certificate is of another plan").startswith("Nothing is proved")


def test_a_table_names_the_server_with_the_sum_that_its_epsilon_needs() -> None:
    assert statements.observer(plan_of(), "server") == "the server (secure sum)"
    assert statements.observer(plan_of(), "clients") == "other clients"
    assert statements.observer(plan_of(promise="clients"), "server") == "the server"


@pytest.mark.parametrize(("noise_at", "promise"), list(itertools.product(NOISE, ADVERSARIES)))
def test_a_method_says_the_same_as_its_plans(noise_at: NoiseAt, promise: Adversary) -> None:
    certificate = replace(plan_of(), noise_at=noise_at, promise=promise, randomness="cryptographic")
    told = statements.method_protection("client", noise_at, promise, False)
    assert statements.protection(certificate).replace(" (add/remove)", "").startswith(told.removesuffix("."))
    published = statements.method_protection("client", noise_at, promise, True)
    assert published.startswith("Protects nobody as published") and told[8:] in published


def test_a_method_without_privacy_protects_nobody() -> None:
    assert statements.method_protection("none", None, None, False) == "Protects nobody: epsilon is infinite."


@pytest.mark.parametrize(
    ("where", "partition", "test", "said", "not_private"),
    [
        ("here", "iid", "", "belong to no client", False),
        ("here", "natural", "", "records of the clients that were kept for testing", True),
        ("flower-sim", "natural", "", "these figures are not private", True),
        ("guards", "natural", "", "records of the clients that were kept for testing", True),
        ("flower", "iid", "", "that the server holds: if they are of clients", False),
        ("here", "natural", "a.csv", "from a table of their own: if they are of clients", False),
        ("here", "natural", "held-out", "records of the clients that were kept for testing", True),
    ],
)
def test_whose_the_test_records_are(
    tmp_path: Path, where: str, partition: str, test: str, said: str, not_private: bool
) -> None:
    settings = {"clients.where": where, "data.partition": partition, "data.test": test}
    run = read_run(make_run(tmp_path / "run", settings=settings))
    assert said in statements.tested([run]) and "held out themselves" not in statements.tested([run])
    assert statements.not_private(run) is not_private
    (part,) = group([run])
    assert any("not private" in remark for remark in part.remarks) is not_private


def test_an_epsilon_is_not_called_strong_whatever_its_size() -> None:
    said = statements.meaning([certify(planned(STRICT, people()), people())])
    assert "hardly" not in said and "limited by" in said


def test_what_an_observer_may_tell_is_of_the_unit_that_is_protected(tmp_path: Path) -> None:
    """A budget for each record says next to nothing on whether a whole client took part."""
    records, clients = (
        read_run(run_of(tmp_path / method, method)).certificate for method in ("concert_records", "dp_fedavg")
    )
    assert records.unit == "record" and clients.unit == "client"
    for words in (statements.meaning, statements.odds):
        assert "one record of a client was used" in words([records]) and "data were used" not in words(
            [records]
        )
        assert "a client’s data were used" in words([clients]) and "record" not in words([clients])
        assert "data were used or one record" in words([clients, records])
    assert statements.question([replace(clients, adjacency="replace")]).endswith("or others in their place")
    page = tmp_path / "report.html"
    write([tmp_path / "concert_records"], page)
    assert "data were used" not in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 2.0, 4.0, 8.0])
def test_the_odds_of_a_guess_are_true_of_the_gaussian(epsilon: float) -> None:
    """Of one Gaussian release the loss passes epsilon far more often than delta: no sentence may deny it."""
    delta = 1e-5

    def exact(noise: float) -> float:  # delta at epsilon, of a sensitivity of 1
        low, high = (sign / (2 * noise) - epsilon * noise for sign in (1, -1))
        return float(norm.cdf(low) - np.exp(epsilon) * norm.cdf(high))

    noise = brentq(lambda noise: exact(noise) - delta, 0.05, 100.0, xtol=1e-12)

    def beyond(loss: float) -> float:  # chance of a loss above it, where the data are in
        return float(norm.sf(loss * noise - 1 / (2 * noise)))

    def surer(than: float) -> float:  # chance of a loss above it, or below its negative
        return beyond(than) + float(norm.sf(than * noise + 1 / (2 * noise)))

    odds = 1 / (1 + np.exp(-epsilon))
    right = float(norm.cdf(1 / (2 * noise)))  # of the best guess, by the likelihood
    assert right <= odds + delta
    assert surer(epsilon + 1) <= 2.2 * delta < surer(epsilon)
    said = statements.odds([certify(planned(STRICT, people()), people())])
    assert "right with at most this chance, and delta on top" in said and "2.2 times delta" in said
    assert "chance of delta" not in said and "fails" not in said
