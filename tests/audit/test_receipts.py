"""A receipt says what the ledger has of one client; whoever changes anything in it is found out."""

import json
import math
import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from discretion import jsonfile
from discretion.accounting import Pld
from discretion.audit import receipts
from discretion.cli import main, output
from discretion.clients.messages import write_key
from discretion.errors import InputError, LedgerError, MessageError, PlanError, UnverifiedError
from discretion.ledger.ledger import Ledger
from discretion.report.receipt_page import render
from discretion.runs.read import read_run
from discretion.watch.follow import Follow
from discretion.watch.live_page import page as live_page
from discretion.watch.live_page import view_of
from discretion.watch.server import Watch
from support.forging import forge
from support.run_folders import keep_secret, seal, trained


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("receipts") / "run", "plan.rounds=5")


@pytest.fixture
def run(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "run"))


KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))


@pytest.fixture(scope="module")
def signed(original: Path) -> receipts.Signed:
    return receipts.issue(original, "c4", KEY)


def test_it_says_what_the_ledger_has(original: Path, signed: receipts.Signed) -> None:
    said, found = signed.receipt, read_run(original)
    assert said.client == "c4" and said.epsilon == found.population.epsilon[4]
    assert said.rounds == [1, 2, 3, 4, 5] and said.finished and not said.refused
    at, delta = np.array([4]), found.population.delta[[4]]
    for number, spent in zip(said.rounds, said.spending, strict=True):
        assert spent == pytest.approx(float(Pld().epsilon(found.plan.steps(number).of(at), delta)[0]))
    with closing(Ledger.existing(original / "ledger.sqlite")) as ledger:
        assert said.life == pytest.approx(float(ledger.spent()[4]))
    assert said.spent == said.life == said.spending[-1] <= said.epsilon
    assert said.left == said.epsilon - said.life
    assert said.planned == found.certificate.spent[4]
    assert said.against["server"] == math.inf
    assert said.digests.plan == found.plan.digest() == found.certificate.plan
    assert said.digests.population == found.population.digest()
    assert "server is trusted" in said.statement
    assert {"Tuning.", "Budgets and sizes.", "The test records."} <= {item.what for item in said.not_promised}


def test_it_tells_of_nobody_else(original: Path, signed: receipts.Signed) -> None:
    others = set(read_run(original).population.client) - {"c4"}
    for text in (receipts.to_json(signed), render(signed)):
        assert not others & set(re.findall(r"\bc\d+\b", text))


def leaves(value: object, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    if isinstance(value, dict):
        return [leaf for key, item in value.items() for leaf in leaves(item, (*path, key))]
    if isinstance(value, list) and value:
        return [leaf for key, item in enumerate(value) for leaf in leaves(item, (*path, key))]
    return [path]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_every_value_is_signed(signed: receipts.Signed, data: st.DataObject) -> None:
    receipts.check(signed)
    record = signed.model_dump()
    path = data.draw(st.sampled_from([leaf for leaf in leaves(record["receipt"]) if leaf != ("format",)]))
    part = record["receipt"]
    for key in path[:-1]:
        part = part[key]
    old = part[path[-1]]
    head = {"key": "0" * 64, "hash": "1" * 64, "signature": "2" * 128}
    changed = {bool: not old, list: [1], str: f"{old}x", type(None): head}.get(
        type(old), old + 1 if isinstance(old, int | float) and math.isfinite(old) else 1.0
    )
    other: dict[str, object] = {
        "promise": "public",
        "randomness": "cryptographic",
        "made": "2020-02-02T02:02:02+00:00",
    }
    other["attacks"] = {"made": other["made"], "contradicted": False, "said": "nothing"}
    part[path[-1]] = other.get(str(path[-1]), changed)
    with pytest.raises(MessageError, match="something in it was changed"):
        receipts.check(receipts.Signed.model_validate(record))


def test_only_the_key_and_purpose_that_signed(signed: receipts.Signed) -> None:
    other = Ed25519PrivateKey.generate()
    with pytest.raises(MessageError):
        receipts.check(signed.model_copy(update={"key": other.public_key().public_bytes_raw().hex()}))
    bare = KEY.sign(receipts.canonical(signed.receipt)).hex()  # for no purpose
    with pytest.raises(MessageError):
        receipts.check(signed.model_copy(update={"signature": bare}))
    with pytest.raises(MessageError):
        receipts.check(signed.model_copy(update={"signature": "no signature"}))
    receipts.check(signed, operator=signed.key.upper())
    with pytest.raises(MessageError, match="another key"):
        receipts.check(signed, operator="00" * 32)


def test_files_are_read_back(signed: receipts.Signed, tmp_path: Path) -> None:
    page, plain = tmp_path / "a.html", tmp_path / "a.json"
    page.write_text(render(signed), encoding="utf-8")
    plain.write_text(receipts.to_json(signed), encoding="utf-8")
    for path in (page, plain):
        assert receipts.read(path, render) == signed
        receipts.check(receipts.read(path, render))
    plain.write_text("{}")
    with pytest.raises(PlanError, match="not a Discretion receipt"):
        receipts.read(plain, render)
    with pytest.raises(InputError, match="cannot read"):
        receipts.read(tmp_path / "nowhere.json", render)


def cheaper(text: str, signed: receipts.Signed) -> str:
    """With half as much spent."""
    return text.replace(f'"life": {signed.receipt.life!r}', f'"life": {signed.receipt.life / 2!r}')


def test_a_file_says_only_what_is_signed(signed: receipts.Signed, tmp_path: Path) -> None:
    page, plain = render(signed), receipts.to_json(signed)
    tag = re.search(r"<script type=.application/json.*?</script>", page, re.S)
    assert tag is not None and cheaper(plain, signed) != plain
    doctored = page.replace("<h1>Receipt for c4</h1>", "<h1>Receipt for c5</h1>")
    assert doctored != page
    forged = {
        "a.htm": doctored,
        "a.HTML": doctored,
        "a.txt": doctored,
        "tag.json": cheaper(plain, signed) + tag[0],
        "twice.json": plain.replace('"life":', '"life": 0.5, "life":'),
        "coerced.json": plain.replace('"finished": true', '"finished": "yes"'),
        "lines.json": plain.replace("\n", "\r\n"),
        "space.html": " " + page,
    }
    for name, text in forged.items():
        assert text not in (page, plain), name
        (tmp_path / name).write_bytes(text.encode())
        with pytest.raises((MessageError, PlanError)):
            receipts.check(receipts.read(tmp_path / name, render))
    for name, text in (("page.json", page), ("plain.html", plain)):  # what a file is called does not matter
        (tmp_path / name).write_bytes(text.encode())
        assert receipts.read(tmp_path / name, render) == signed


def test_what_cannot_be_a_receipt_is_said_so(signed: receipts.Signed, tmp_path: Path) -> None:
    for change in (
        {"made": "yesterday"},
        {"made": "2026-01-01T00:00:00"},
        {"spending": [1.0]},
        {"life": "nan"},
    ):
        record = json.loads(receipts.to_json(signed))
        record["receipt"].update(change)
        (tmp_path / "odd.json").write_text(json.dumps(record))
        with pytest.raises((PlanError, MessageError)):
            receipts.read(tmp_path / "odd.json", render)
    for name in ("key", "signature"):  # the same bytes, in other letters
        other = signed.model_copy(update={name: getattr(signed, name).upper()})
        (tmp_path / "odd.json").write_text(receipts.to_json(other))
        with pytest.raises(PlanError, match=f"{name}: string should match pattern"):
            receipts.read(tmp_path / "odd.json", render)


def test_a_budget_that_was_withdrawn(run: Path, tmp_path: Path) -> None:
    with Ledger.existing(run / "ledger.sqlite") as ledger:
        then = ledger.budget[4]
        ledger.change_budget("c4", -then)
    left = receipts.issue(run, "c4", KEY)
    assert left.receipt.epsilon == left.receipt.left == 0 and left.receipt.allowed == then
    assert "budget lowered below what was spent" in render(left) and "over budget" not in render(left)
    assert f"the budget was {then:g}; it was lowered afterwards" in render(left)
    passed = left.receipt.model_copy(update={"life": 2 * then})
    assert "over budget" in render(left.model_copy(update={"receipt": passed}))
    unused = left.receipt.model_copy(update={"life": 0.0, "spending": [0.0] * 5})
    assert "within budget" in render(left.model_copy(update={"receipt": unused}))


def test_what_is_on_record_stays_there(tmp_path: Path) -> None:
    shared = [f"ledger={tmp_path / 'shared.sqlite'}", "plan.share=0.5"]
    trained(tmp_path / "a", *shared)
    trained(tmp_path / "b", *shared, "train.learning_rate=0.2")
    change_ledger(tmp_path / "shared.sqlite", "UPDATE round SET refused = '[4]' WHERE round = 4")
    signed = receipts.issue(tmp_path / "b", "c4", KEY)
    assert signed.receipt.refused == [4] and receipts.differences(signed, tmp_path / "b") == []
    name = signed.receipt.run
    change_ledger(tmp_path / "shared.sqlite", f"UPDATE round SET refused = '[]' WHERE run = '{name}'")
    assert receipts.differences(signed, tmp_path / "b") == ["spending", "refused"]
    change_ledger(
        tmp_path / "shared.sqlite", f"UPDATE round SET refused = '[4]' WHERE run = '{name}' AND round = 4"
    )
    change_ledger(tmp_path / "shared.sqlite", f"DELETE FROM round WHERE run <> '{name}'")
    assert receipts.differences(signed, tmp_path / "b") == ["life", "other_runs"]
    change_ledger(tmp_path / "shared.sqlite", "DELETE FROM client")
    with pytest.raises(LedgerError, match="not in the ledger"):
        receipts.differences(signed, tmp_path / "b")


def change_ledger(path: Path, statement: str) -> None:
    forge(path, statement)


def test_names_do_not_steer_the_terminal() -> None:
    shown = output.printable("a\x1b[31m\u202eb\x07\u2028é\n")
    assert shown == "a\\x1b[31m\\u202eb\\x07\\u2028é\n"


def test_what_is_signed_does_not_depend_on_the_order_of_keys(signed: receipts.Signed) -> None:
    record = json.loads(receipts.to_json(signed))
    record["receipt"] = dict(sorted(record["receipt"].items(), reverse=True))
    receipts.check(receipts.Signed.model_validate_json(json.dumps(record)))


def test_a_receipt_in_mid_run_and_later(run: Path) -> None:
    """More rounds do not contradict it; fewer, or costlier ones, do."""
    whole = shutil.copytree(run, run.parent / "whole")
    forge(run / "ledger.sqlite", "DELETE FROM round WHERE round > 3")
    (run / "model.safetensors").unlink()
    seal(run)
    early = receipts.issue(run, "c4", KEY)
    assert early.receipt.rounds == [1, 2, 3] and not early.receipt.finished
    assert receipts.differences(early, whole) == []
    late = receipts.issue(whole, "c4", KEY)
    assert receipts.differences(late, run) == ["spending", "life", "finished"]
    forge(whole / "ledger.sqlite", "UPDATE price SET rate = REPLACE(rate, '0.5', '0.6')")
    assert receipts.differences(early, whole) == ["spending"]


def test_a_damaged_ledger_vouches_for_nothing(run: Path) -> None:
    with closing(sqlite3.connect(run / "ledger.sqlite")) as db, db:
        db.execute("DELETE FROM round WHERE round = 5")
    with pytest.raises(LedgerError, match="is damaged"):
        receipts.issue(run, "c4", KEY)


def test_refused_rounds_are_free(run: Path) -> None:
    forge(run / "ledger.sqlite", "UPDATE round SET refused = '[4]' WHERE round IN (2, 3)")
    said = receipts.issue(run, "c4", KEY).receipt
    assert said.refused == [2, 3]
    assert said.spending[0] == said.spending[1] == said.spending[2] < said.spending[3]
    assert receipts.issue(run, "c5", KEY).receipt.refused == []


def refuse(run: Path, **more: object) -> None:
    """Put on record that the guard of c4 refused."""
    line = {"round": 3, "asked": 12, "answered": 11, "refused": {"c4": "of 2 allowed"}, "lost": 0, **more}
    (run / "answers.jsonl").write_text(jsonfile.line(line), encoding="utf-8")
    seal(run)


def test_a_guard_that_refused_is_told_of_first(run: Path, tmp_path: Path) -> None:
    refuse(run)
    signed = receipts.issue(run, "c4", KEY)
    said = "The guard of this client refused: of 2 allowed. What is counted here is what the operator’s"
    assert signed.receipt.guard_refused.startswith(said)
    page = render(signed)
    assert f'<p class="lead">{said}' in page and "own ledger may show less" in page
    assert page.index("its guard did not take part in all of it") < page.index("within budget")
    assert receipts.issue(run, "c5", KEY).receipt.guard_refused == ""
    (tmp_path / "receipt.json").write_text(receipts.to_json(signed), encoding="utf-8")
    shown = command("--verify", tmp_path / "receipt.json", "--operator", signed.key)
    assert shown.exit_code == 0 and "The guard of this client refused" in " ".join(shown.stderr.split())


STATED = {"format": "discretion-statement/1", "operator": "0" * 64, "closed": True, "refused": 0} | {
    **{"by_operator": 0.5, "life": None, "budget": 4.0, "delta": 1e-5, "made": "2026-03-01T09:00:00+00:00"}
}


@pytest.mark.parametrize("charged", [0.0, 0.5])
def test_what_the_guard_stated_is_in_the_receipt(run: Path, charged: float) -> None:
    """A guard that never joined is told of by its statement alone; else the answers have its refusal."""
    name = read_run(run).about.id
    plan = read_run(run).plan.digest() if charged else ""
    head = {"key": "0" * 64, "hash": "1" * 64, "signature": "2" * 128}
    its = {
        "client": "c4",
        "run": name,
        "plan": plan,
        "rounds": bool(charged) * 5,
        "spent": charged,
        "head": head,
    }
    signed = {"statement": STATED | its, "signature": "0" * 128}
    none = {"signed": None, "refused": "", "forged": ""}
    clients: list[dict[str, object]] = [{"client": f"c{i}", **none} for i in range(12)]
    clients[4] |= {"signed": signed}
    kept = {"run": name, "clients": clients}
    if charged:
        refuse(run)
    (run / "statements.json").write_text(jsonfile.dump(kept), encoding="utf-8")
    said = receipts.issue(run, "c4", KEY).receipt.guard_refused
    never = "The guard of this client stated: it never joined, and charged nothing"
    assert said.startswith("The guard of this client refused: of 2 allowed." if charged else never)
    assert ("It stated that it has charged epsilon of at most 0.5" in said) == bool(charged)


def test_a_run_with_secret_coins_that_goes_on_tells_of_refused_joins_alone(run: Path) -> None:
    keep_secret(run)
    (run / "model.safetensors").unlink()
    refuse(run)
    assert receipts._guard_refused(read_run(run), "c4") == ""
    refuse(run, round=1, asked=0, answered=0)
    assert "refused: of … allowed" in receipts._guard_refused(read_run(run), "c4")


def test_runs_that_share_a_ledger_and_changes_of_budgets(tmp_path: Path) -> None:
    shared = [f"ledger={tmp_path / 'shared.sqlite'}", "plan.share=0.5"]
    trained(tmp_path / "a", *shared)
    trained(tmp_path / "b", *shared, "train.learning_rate=0.2")
    with Ledger.existing(tmp_path / "shared.sqlite") as ledger:
        ledger.change_budget("c4", 1.5)
        spent = ledger.spent()
    said = receipts.issue(tmp_path / "b", "c4", KEY).receipt
    assert said.other_runs == 1 and said.spent < said.life == pytest.approx(float(spent[4]))
    assert said.epsilon == read_run(tmp_path / "b").population.epsilon[4] + 1.5
    assert "Several runs together." in {item.what for item in said.not_promised}


def test_nothing_is_vouched_for_without_proof(run: Path) -> None:
    with pytest.raises(InputError, match="no client 'c99'"):
        receipts.issue(run, "c99", KEY)
    (run / "ledger.sqlite").rename(run / "elsewhere.sqlite")
    with pytest.raises(LedgerError, match="nothing can be vouched for"):
        receipts.issue(run, "c4", KEY)
    (run / "elsewhere.sqlite").rename(run / "ledger.sqlite")
    text = (run / "certificate.json").read_text()
    (run / "certificate.json").write_text(text.replace(json.loads(text)["plan"], "0" * 64))
    seal(run)
    with pytest.raises(PlanError, match="nothing to vouch for"):
        receipts.issue(run, "c4", KEY)


def command(*words: object) -> Result:
    return CliRunner().invoke(main.app, ["receipt", *map(str, words)])


def test_the_command_makes_and_verifies(run: Path, tmp_path: Path) -> None:
    public = write_key(tmp_path / "operator.key")
    made = command(run, "--client", "c4", "--key", tmp_path / "operator.key", "--out", tmp_path, "--json")
    files = json.loads(made.stdout)
    assert files["key"] == public
    for name in ("html", "json"):
        done = command(run, "--verify", files[name], "--operator", public, "--json")
        assert done.exit_code == 0 and json.loads(done.stdout)["verified"]
        alone = command("--verify", files[name], "--json")  # anybody can sign
        record = json.loads(alone.stdout)
        assert not record["verified"] and record["operator"] == "unknown"
        asked = command("--verify", files[name])
        assert isinstance(asked.exception, UnverifiedError) and "NOT VERIFIED" in str(asked.exception)
        assert isinstance(alone.exception, UnverifiedError)
        assert "NOT VERIFIED" not in command("--verify", files[name], "--operator", public).stderr
    assert isinstance(command("--verify", files["html"], "--operator", "00" * 32).exception, LedgerError)
    page = Path(files["html"])
    page.write_text(page.read_text().replace("<h1>Receipt for c4</h1>", "<h1>Receipt for c5</h1>"))
    assert isinstance(command("--verify", page).exception, LedgerError)
    forge(run / "ledger.sqlite", "DELETE FROM round WHERE round = 5")
    assert isinstance(command(run, "--verify", files["json"]).exception, LedgerError)


def test_the_command_says_what_it_needs(run: Path) -> None:
    assert isinstance(command(run).exception, InputError)
    assert isinstance(command(run, "--client", "c4").exception, InputError)  # no key


def test_project_operator_and_contact_are_on_every_page(tmp_path: Path) -> None:
    about = ["about.project=Hearts", "about.operator=Dr Miller", "about.contact=someone@example.org"]
    folder = trained(tmp_path / "run", "plan.rounds=2", *about)
    line = "Project: <b>Hearts</b> · Purpose: <b>not stated</b> · Operator: <b>Dr Miller</b>"
    assert line in render(receipts.issue(folder, "c4", KEY))
    assert line in live_page(view_of(Follow(folder).look()))
    with Watch(folder) as watch:
        assert line in watch.budgets()
    done = CliRunner().invoke(main.app, ["budgets", str(folder), "--out", str(tmp_path / "budgets.html")])
    assert done.exit_code == 0 and line in (tmp_path / "budgets.html").read_text(encoding="utf-8")
