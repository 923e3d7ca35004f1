"""An audit that is kept with a run: what it may say, and who says so where it contradicts the certificate."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from discretion.audit import receipts, statements, verdicts
from discretion.audit.attack import Audit, audit, read_audit, to_json
from discretion.audit.verify import verify
from discretion.errors import FolderError
from discretion.export.nist import to_markdown
from discretion.export.opendp_registry import _require_deployment
from discretion.report import receipt_page
from discretion.runs.folder import RunFolder
from discretion.runs.manifest import write_audit
from discretion.runs.read import read_run
from support.commands import Cli

KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))
LESS = "there is less noise than planned"


@pytest.fixture(scope="module")
def honest(small_run: Path) -> Audit:
    run = read_run(small_run)
    return audit(run.plan, run.population, run.certificate, games=20)


@pytest.fixture
def run(small_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(small_run, tmp_path / "run"))


def keep(run: Path, found: Audit) -> None:
    write_audit(RunFolder(run), to_json(found).encode())


def accused(found: Audit, name: str) -> Audit:
    """Return the audit as if it had contradicted what is certified of one budget class."""
    shown = tuple(replace(e, contradictions=(LESS,)) if e.name == name else e for e in found.shown)
    return replace(found, shown=shown, contradictions=(LESS,))


def clients(run: Path) -> tuple[str, str, str]:
    """Return the names of the strictest class, of one of its clients, and of a client of another class."""
    known = read_run(run).population
    names, member = known.classes()
    first, other = (known.client[member.tolist().index(k)] for k in (0, 1))
    return names[0], first, other


def test_report_and_receipt_show_what_attacks_showed(discretion: Cli, run: Path, honest: Audit) -> None:
    name, client, _ = clients(run)
    before = receipts.issue(run, client, KEY)
    assert before.receipt.attacks is None and "What attacks showed" not in receipt_page.render(before)
    keep(run, honest)
    signed = receipts.issue(run, client, KEY)
    attacks, page = signed.receipt.attacks, receipt_page.render(signed)
    assert attacks and not attacks.contradicted and signed.receipt.statement == before.receipt.statement
    bounds = (
        rf"in 20 games\. For clients of {name} that spend the most, epsilon is at least [\d.]+ if rounds, "
        r"clips and coins are as planned and only the strength of the noise is in question; at least [\d.]+ "
        r"whatever was executed; and, by the certificate, at most [\d.]+\. Measured, of what was planned: "
        r"noise [\d.]+%"
    )
    assert re.search(bounds, attacks.said)
    for words in ("at least 99%", "An attack that fails proves nothing", "An audit is no promise"):
        assert words in attacks.said
    promise, showed = page.split('id="attacks"')
    assert "What attacks showed" in showed and "Attacked on" not in promise and "within budget" in promise
    assert receipts.differences(signed, run) == []
    assert discretion("report", str(run)).code == 0
    page = (run / "report.html").read_text()
    assert page.count("only the strength of the noise is in question") == 3 and "within budget" in page
    assert "An attack that fails proves nothing" in page and "contradict" not in page


def test_a_contradiction_leads_report_show_and_comparison(discretion: Cli, run: Path, honest: Audit) -> None:
    name, *_ = clients(run)
    keep(run, accused(honest, name))
    said = f"Attacks contradict the certificate for clients of {name}: {LESS}"
    assert discretion("report", str(run)).code == 0
    page = (run / "report.html").read_text()
    hero = page[: page.index("</section>")]
    assert "contradicted by attacks" in hero and "attacks contradict its certificate" in hero
    for wrong in ("within budget", "within its own budget", "Every budget was kept"):
        assert wrong not in page
    assert f"<b>{said}</b>; the certificate says that this protects" in page
    rows = re.findall(r'<th scope="row">(ε \d+) <span class="badge bad">contradicted by attacks</span>', page)
    assert rows == [name]
    assert page.count(f"{said}. If the plan were executed as written") == 1
    assert page.count("only the strength of the noise is in question") == 2
    shown = " ".join(discretion("show", str(run)).out.split())
    assert said in shown
    record = json.loads(discretion("show", str(run), "--json").out)
    assert record["contradicted"] == said and record["within_budget"] is False
    assert "contradicted" in discretion("compare", str(run)).out


def test_a_contradiction_leads_the_receipts_of_its_class_only(run: Path, honest: Audit) -> None:
    name, client, other = clients(run)
    keep(run, accused(honest, name))
    signed = receipts.issue(run, client, KEY)
    page = receipt_page.render(signed)
    assert signed.receipt.attacks and signed.receipt.attacks.contradicted
    assert LESS in signed.receipt.attacks.said and "chance of at most 1%" in signed.receipt.attacks.said
    hero = page[: page.index("</section>")]
    assert "contradicted by attacks" in hero and "within budget" not in page
    assert "Attacks contradict the certificate for clients like this one" in hero
    page = receipt_page.render(receipts.issue(run, other, KEY))
    assert "within budget" in page
    assert "contradicted by attacks" not in page and "Attacks contradict" not in page


def test_verify_says_so_of_folder_and_page(discretion: Cli, run: Path, honest: Audit) -> None:
    name, *_ = clients(run)
    assert "audit" not in [each.what for each in verify(run).records]
    keep(run, honest)
    (found,) = (each for each in verify(run).records if each.what == "audit")
    assert found.holds and "attacked in 20 games" in found.said
    assert discretion("report", str(run)).code == 0
    assert discretion("verify", str(run / "report.html")).code == 0
    keep(run, accused(honest, name))
    assert discretion("report", str(run)).code == 0
    for place in (run, run / "report.html"):
        done = discretion("verify", str(place))
        said = " ".join(done.err.split())
        assert done.code == 4 and "Verdict: contradicted." in said
        assert f"audit: attacks contradict the certificate for clients of {name}: {LESS}" in said


def test_what_concerns_all_classes_contradicts_all(run: Path, honest: Audit) -> None:
    keep(run, replace(honest, contradictions=("the number of clients does not vary",)))
    found = read_run(run)
    every = " and ".join(found.classes[0])
    said = f"Attacks contradict the certificate for clients of {every}: the number of clients does not vary"
    assert verdicts.contradicted(found) == said
    assert (
        verdicts.protection(found)
        == f"{said}. By the certificate: {statements.protection(found.certificate)}"
    )
    assert said in to_markdown(found)
    with pytest.raises(Exception, match="is no deployment for the registry.*Attacks contradict"):
        _require_deployment(found)


def first(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda record: record["shown"][0].update(changes)


ODD: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "another plan": (lambda r: r.update(plan="0" * 64), "of another plan"),
    "text for a number": (lambda r: r.update(games="many"), "not a Discretion audit: games"),
    "a stranger": (lambda r: r.update(more=1), "not a Discretion audit: more"),
    "no games": (lambda r: r.update(games=0), "found games 0"),
    "another chance": (lambda r: r.update(chance=0.5), "chance 0.5"),
    "no date": (lambda r: r.update(made="today"), "made 'today'"),
    "above what is certified": (
        first(at_least=1e3),
        "found at least 1000 and at most .* and no contradiction",
    ),
    "of any kind above it": (first(any_mechanism=1e3), "found at least 1000"),
    "another epsilon": (first(certified=1e3), "epsilon 1000 is certified of no client"),
    "another class": (first(name="ε 77"), "no budget class 'ε 77'"),
    "a negative bound": (first(at_least=-1.0), "negative"),
    "a hidden contradiction": (first(contradictions=[LESS]), f"leaves out {LESS}"),
}


@pytest.mark.parametrize("what", ODD)
def test_an_audit_that_no_attack_on_the_run_gives_is_refused(what: str, run: Path, honest: Audit) -> None:
    change, said = ODD[what]
    record = json.loads(to_json(honest))
    change(record)
    write_audit(RunFolder(run), json.dumps(record).encode())
    with pytest.raises(FolderError, match=rf"audit\.json is damaged .*{said}.*audit the run again"):
        read_audit(read_run(run))


def test_a_damaged_audit_ends_every_command_with_4_until_it_is_made_anew(
    discretion: Cli, run: Path, honest: Audit
) -> None:
    keep(run, honest)
    whole = (run / "audit.json").read_text()
    for changed in (whole[:40], whole.replace('"games": 20', '"games": 9999999'), None):
        (run / "audit.json").unlink()
        if changed is not None:
            (run / "audit.json").write_text(changed)
        for command in ("report", "show", "verify", "check"):
            done = discretion(command, str(run))
            assert done.code == 4 and f"discretion audit {run}" in "".join(done.err.splitlines()), command
        assert discretion("audit", str(run), "--games", "10").code == 0
        assert discretion("show", str(run)).code == 0
