"""A ledger whose file was damaged or changed by hand counts no less than before, or is not opened."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from discretion.errors import InputError, LedgerError, StorageError
from discretion.ledger import chain, keys
from discretion.ledger.faults import storage_error
from discretion.ledger.guard_ledger import GuardLedger, back_up
from discretion.ledger.ledger import Ledger
from discretion.ledger.reader import LedgerReader
from discretion.ledger.store import Book, Signing
from discretion.plan.phase import Phase
from discretion.plan.plan import Plan
from discretion.plan.population import Population
from support.forging import forge

PEOPLE = Population.of([3.0, 4.0, 5.0], 1e-5)
ONE = Population.of([3.0], 1e-5)
FLIPS = 300


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite"


def plan_of(population: Population, rounds: int = 4) -> Plan:
    each = np.ones(len(population))
    return Plan("test", population.client, (Phase.one_pool(rounds, each, 0.5 * each, 10.0),))


def fill(ledger: Ledger) -> None:
    """Runs that are closed, open and reserved, and changes of budgets."""
    for run in "abc":
        ledger.admit(run, plan_of(ledger.population))
        for number in (1, 2, 3):
            ledger.reserve(run, number)
            if (run, number) != ("c", 3):
                ledger.commit(run, number)
    ledger.finish("a")
    ledger.change_budget("c0", -0.5, "asked by mail")


def seen(ledger: Ledger) -> list[object]:
    """All that a budget depends on."""
    steps = ledger._accounts.steps(whole_plans=True)
    arrays = (steps.rate, steps.multiplier, steps.count, ledger.budget, ledger.population.delta)
    return [ledger.rule, *(ledger.states(run) for run in "abc"), *(each.tolist() for each in arrays)]


@pytest.mark.parametrize("of_a_guard", [False, True])
def test_no_flipped_bit_lowers_the_spending_in_silence_or_crashes(path: Path, of_a_guard: bool) -> None:
    def reopened() -> Ledger:
        return GuardLedger(path, ONE, signing="kept") if of_a_guard else Ledger.existing(path)

    with GuardLedger(path, ONE, signing="kept") if of_a_guard else Ledger(path, PEOPLE) as ledger:
        fill(ledger)
        if isinstance(ledger, GuardLedger):
            ledger.join("a", "operator", b"order" * 50)
            ledger.begin("a", 3, "train", 0, "digest")
            ledger.keep("a", 3, "train", 0, bytes(range(256)) * 30)
        before = seen(ledger)
    whole, rng = path.read_bytes(), np.random.default_rng(15)
    refused = 0
    for bit in rng.choice(8 * len(whole), FLIPS, replace=False).tolist():
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        try:
            with reopened() as ledger:
                assert seen(ledger) == before, f"bit {bit}"
        except LedgerError as problem:
            refused += 1
            assert str(path) in str(problem), f"bit {bit}"
    assert refused > FLIPS / 100  # most bits of so small a file are unused


def test_bits_of_every_table_and_index_are_refused(path: Path) -> None:
    """In the middle of what is written on each page, where a flip cannot be harmless."""
    with Ledger(path, PEOPLE) as ledger:
        fill(ledger)
    whole = path.read_bytes()
    with closing(sqlite3.connect(path)) as db:
        ((size,),) = db.execute("PRAGMA page_size").fetchall()
    tried = 0
    for start in range(0, len(whole), size):
        page = whole[start : start + size]
        used = int.from_bytes(page[5:7])  # where the cells begin
        if page[0] in (10, 13) and int.from_bytes(page[3:5]):
            at = start + (used + size) // 2
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
            with pytest.raises(LedgerError, match="damaged"):
                Ledger(path, PEOPLE)
            tried += 1
    assert tried >= 12


CHANGES = {
    "a cheaper round": "UPDATE price SET multiplier = REPLACE(multiplier, '[', '[9')",
    "a round less": "DELETE FROM round WHERE number = (SELECT MAX(number) FROM round)",
    "a round that nobody took": (
        "INSERT INTO round SELECT 99, run, 4, phase, state, '[]', '', '', 0 FROM round LIMIT 1"
    ),
    "a round that was not released": "UPDATE round SET state = 'reserved', committed = NULL WHERE number = 2",
    "a round that was released": (
        "UPDATE round SET state = 'committed', committed = 'x' WHERE state = 'reserved'"
    ),
    "a run that is closed": "UPDATE run SET closed = 'x' WHERE id = 'b'",
    "a run that is open again": "UPDATE run SET closed = NULL",
    "no withdrawal": "DELETE FROM change",
    "another budget": "UPDATE client SET epsilon = 9",
    "another rule": "UPDATE about SET rule = 'adaptive'",
    "no last entry": "DELETE FROM entry WHERE number = (SELECT MAX(number) FROM entry)",
    "no first entry": "DELETE FROM entry WHERE number = 1",
    "an entry of no kind": "UPDATE entry SET kind = 'x' WHERE number = 2",
    "an entry without rows": "UPDATE entry SET first = NULL WHERE number = 2",
    "another table": "CREATE TABLE more (x)",
    "a signature": "UPDATE head SET signature = zeroblob(64)",
    "another head": "UPDATE head SET hash = zeroblob(32)",
    "no head": "DELETE FROM head",
}


@pytest.mark.parametrize("what", CHANGES)
def test_rows_that_were_changed_by_hand_are_found(path: Path, what: str) -> None:
    with Ledger(path, PEOPLE) as ledger:
        fill(ledger)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(CHANGES[what])
    openings: tuple[Callable[[], Ledger], ...] = (lambda: Ledger(path, PEOPLE), lambda: Ledger.existing(path))
    for opening in openings:
        with pytest.raises(StorageError, match="is damaged: .* restore a copy") as problem:
            opening()
        assert problem.value.fault == "its ledger is damaged"
    with LedgerReader(path) as reader, pytest.raises(LedgerError, match="damaged"):
        reader.check()


def test_entries_that_do_not_follow_each_other_are_found(path: Path) -> None:
    with Ledger(path, PEOPLE) as ledger:
        fill(ledger)
    forge(path)
    Ledger(path, PEOPLE).close()
    with closing(sqlite3.connect(path)) as db, db:
        chain.add(db, "round", 1, 1)
        db.execute("UPDATE head SET count = ?, hash = ?", chain.newest(db))
    with pytest.raises(LedgerError, match=r"\(round\) does not follow"):
        Ledger(path, PEOPLE)


def test_who_has_no_key_cannot_make_a_guards_chain_anew(path: Path) -> None:
    with GuardLedger(path, ONE, signing="kept") as ledger:
        fill(ledger)
    Ledger.existing(path).close()
    forge(path, "DELETE FROM round WHERE number = (SELECT MAX(number) FROM round)")
    with pytest.raises(LedgerError, match="not signed by its key"):
        Ledger.existing(path)


def test_entries_are_made_with_the_rows_or_not_at_all(path: Path) -> None:
    with Ledger(path, PEOPLE) as ledger:
        fill(ledger)
        with pytest.raises(LedgerError):
            ledger.reserve("b", 9, kept=3)
        with pytest.raises(KeyboardInterrupt), ledger._transaction():
            ledger.change_budget("c1", 1.0)
            raise KeyboardInterrupt
    with LedgerReader(path) as reader:
        reader.check()


def test_equal_ledgers_have_different_heads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A head tells its reader nothing, not even whether anything was entered since another one."""
    monkeypatch.setattr("discretion.ledger.store.now", lambda: "now")
    monkeypatch.setattr("discretion.ledger.ledger.now", lambda: "now")
    heads = set()
    for name in "ab":
        with Ledger(tmp_path / name, PEOPLE) as ledger:
            fill(ledger)
            heads.add(chain.newest(ledger._db))
    ((count, _), (same, _)) = heads
    assert count == same


def test_a_file_that_lost_its_tables_is_not_made_anew(path: Path) -> None:
    with Ledger(path, PEOPLE) as ledger:
        fill(ledger)
    with closing(sqlite3.connect(path)) as db:
        for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall():
            db.execute(f"DROP TABLE {name}")
    with pytest.raises(LedgerError, match="not a ledger"):
        Ledger(path, PEOPLE)


def steps_to_open(path: Path, runs: int) -> int:
    """Hundreds of SQLite's own steps that opening a ledger of so many runs takes."""
    with Ledger(path, ONE) as ledger:
        for number in range(runs):
            ledger.admit(f"{number}", plan_of(ONE, 1), accept_no_privacy=True)
            ledger.reserve(f"{number}", 1)
            ledger.finish(f"{number}", kept=1)
    taken = [0]

    def count() -> int:
        taken[0] += 1
        return 0

    lay_out = Book._lay_out
    with pytest.MonkeyPatch.context() as patch:

        def counted(self: Book, rule: object) -> None:
            self._db.set_progress_handler(count, 100)
            lay_out(self, rule)  # type: ignore[arg-type]

        patch.setattr(Book, "_lay_out", counted)
        with Ledger.existing(path) as ledger:
            ledger.runs  # noqa: B018
            ledger._accounts.steps(whole_plans=True)
    return taken[0]


def test_opening_is_linear_in_the_number_of_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("discretion.ledger.ledger.Ledger._consider", lambda *_: False)
    few, many = (steps_to_open(tmp_path / f"{runs}.sqlite", runs) for runs in (40, 160))
    assert many < 5 * few


# the key


def test_a_guards_key_is_its_owners_alone_and_signs_its_head(path: Path) -> None:
    with GuardLedger(path, ONE, signing="kept") as ledger:
        assert ledger.head.is_genuine() and not ledger.is_lost
        first = ledger.head
        fill(ledger)
        assert ledger.head.key == first.key and ledger.head.hash != first.hash
        forged = ledger.head.model_copy(update={"hash": first.hash})
        assert ledger.head.is_genuine() and not forged.is_genuine()
        (mode,) = ledger._db.execute("PRAGMA journal_mode").fetchone()
        assert mode == "delete"  # a copy of the file is whole at any moment
    assert path.with_suffix(".key").stat().st_mode & 0o777 == 0o600
    assert sorted(file.name for file in path.parent.iterdir()) == [
        "ledger.head",
        "ledger.key",
        "ledger.sqlite",
    ]


def opened(path: Path, signing: Signing = "kept") -> GuardLedger:
    return GuardLedger(path, ONE, signing=signing)


def test_whoever_changes_a_guards_ledger_needs_its_key(path: Path) -> None:
    opened(path).close()
    with Ledger.existing(path) as ledger:  # as `discretion ledger` does
        ledger.change_budget("c0", -1.0)
    opened(path).close()
    path.with_suffix(".key").unlink()
    with Ledger.existing(path) as ledger:
        assert ledger.budget.tolist() == [2.0]
        with pytest.raises(LedgerError, match="the key of the ledger .* is not in"):
            ledger.change_budget("c0", -1.0)
    with pytest.raises(LedgerError, match="the key of the ledger .* is not in"):
        opened(path)


def test_a_ledger_that_is_gone_is_not_replaced_by_a_new_one(path: Path) -> None:
    opened(path).close()
    path.unlink()
    with pytest.raises(LedgerError, match="nothing on record that its key"):
        opened(path)
    assert path.with_suffix(".key").exists()
    path.write_bytes(b"")
    with pytest.raises(LedgerError, match="nothing on record that its key"):
        opened(path)


def test_a_runs_ledger_is_no_guards(path: Path) -> None:
    Ledger(path, ONE).close()
    with pytest.raises(LedgerError, match="nothing on record that its key"):
        opened(path)


def test_a_crash_while_the_key_is_made_costs_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("discretion.ledger.store.Book._enrol", crash)
        opened(path)
    assert path.with_suffix(".key.new").exists()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("discretion.ledger.store.keys.settled", crash)
        opened(path)
    assert not path.with_suffix(".key").exists()
    with opened(path) as ledger:
        assert ledger.head.is_genuine()
    assert path.with_suffix(".key").exists() and not path.with_suffix(".key.new").exists()


# the last head beside the ledger


def test_a_ledger_that_went_back_in_time_is_not_opened(path: Path) -> None:
    opened(path).close()
    older = path.read_bytes()
    with opened(path) as ledger:
        fill(ledger)
    newest = path.read_bytes()
    path.write_bytes(older)
    with pytest.raises(LedgerError, match=f"{path} went back in time"):
        opened(path)
    with Ledger.existing(path) as ledger, pytest.raises(LedgerError, match="went back in time"):
        ledger.change_budget("c0", 1.0)  # as `discretion ledger` does: it does not make the loss good
    path.write_bytes(newest)
    opened(path).close()


@pytest.mark.parametrize("damage", ["missing", "empty", "changed", "not ASCII"])
def test_without_the_last_head_a_ledger_is_not_opened(path: Path, damage: str) -> None:
    with opened(path) as ledger:
        fill(ledger)
    file = path.with_suffix(".head")
    text = file.read_text()
    if damage == "missing":
        file.unlink()
    else:
        other = text.replace(f'"hash": "{text.split(chr(34))[7]}', f'"hash": "{"0" * 64}')
        assert other != text
        file.write_bytes({"empty": b"", "changed": other.encode(), "not ASCII": b"\xff"}[damage])
    with pytest.raises(LedgerError, match="the last head of the ledger"):
        opened(path)
    file.write_text(text)
    opened(path).close()


def test_the_last_head_shows_that_there_was_a_ledger(path: Path) -> None:
    opened(path).close()
    path.unlink()
    path.with_suffix(".key").unlink()
    with pytest.raises(LedgerError, match="was replaced, or deleted"):
        opened(path)


def test_a_crash_before_the_last_head_is_kept_costs_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head that is kept is at most one commit behind, never ahead; no answer leaves before it is not."""

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Book, "_keep_head", crash)
        opened(path)  # a new ledger, with nothing but its start kept
    with monkeypatch.context() as patch, opened(path) as ledger:
        patch.setattr(Book, "_keep_head", crash)
        with pytest.raises(KeyboardInterrupt):
            ledger.admit("a", plan_of(ONE))
    with opened(path) as ledger:
        assert [run.id for run in ledger.runs] == ["a"]
        kept = path.with_suffix(".head").read_text()
        assert ledger.head.hash not in kept
        assert ledger.head.hash in path.with_suffix(".head").read_text()  # asking for it has kept it


def test_a_head_that_cannot_be_kept_is_not_handed_out(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with opened(path) as ledger, monkeypatch.context() as patch:
        patch.setattr("discretion.ledger.witness.write_draft", full)
        with pytest.raises(StorageError, match="in which all is on record") as problem:
            ledger.admit("a", plan_of(ONE))
        assert problem.value.fault == "its disk is full"
        with pytest.raises(StorageError):
            ledger.head  # noqa: B018
        assert [run.id for run in ledger.runs] == ["a"]


def test_what_is_no_key_signs_nothing() -> None:
    assert not keys.is_signed("00", bytes(32), bytes(64)) and not keys.is_signed("0" * 64, b"", b"")


# copies


def test_a_copy_is_whole_and_its_owners_alone(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "copy.sqlite"
    with pytest.raises(LedgerError, match="never started"):
        back_up(path, target)
    with opened(path) as ledger:
        fill(ledger)
        back_up(path, target)
        with Ledger.existing(target) as copy:
            assert seen(copy) == seen(ledger)
    assert target.stat().st_mode & 0o777 == 0o600
    with pytest.raises(InputError, match="a file of this name; give another"):
        back_up(path, target)
    with pytest.raises(InputError, match="there is no folder"):
        back_up(path, tmp_path / "none" / "copy.sqlite")
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("DELETE FROM round")
    for _ in range(2):
        with pytest.raises(LedgerError, match=f"the ledger {path} is damaged"):
            back_up(path, tmp_path / "other.sqlite")
        path.write_bytes(b"no database, but as long as one\n" * 9)
    assert not (tmp_path / "other.sqlite").exists()


def test_a_key_that_cannot_be_read_is_not_called_lost(path: Path) -> None:
    opened(path).close()
    keys.key_file(str(path)).unlink()
    keys.key_file(str(path)).mkdir()
    with pytest.raises(StorageError, match="Is a directory") as raised:
        opened(path)
    assert raised.value.fault == "its disk cannot be read or written"


def test_a_copy_of_a_runs_ledger_in_use_has_its_write_ahead_log(path: Path, tmp_path: Path) -> None:
    with Ledger(path, PEOPLE) as ledger:
        fill(ledger)
        back_up(path, tmp_path / "copy.sqlite")
        with Ledger.existing(tmp_path / "copy.sqlite") as copy:
            assert seen(copy) == seen(ledger)


# faults, in words


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        (sqlite3.SQLITE_FULL, "its disk is full"),
        (sqlite3.SQLITE_IOERR_WRITE, "its disk cannot be read or written"),
        (sqlite3.SQLITE_CORRUPT_INDEX, "its ledger is damaged"),
        (sqlite3.SQLITE_BUSY, "its ledger is in use by another process"),
        (sqlite3.SQLITE_ERROR, "its ledger cannot be used"),
    ],
)
def test_faults_are_named(code: int, fault: str) -> None:
    problem = sqlite3.OperationalError("words")
    problem.sqlite_errorcode = code
    assert storage_error("x", problem).fault == fault
    damaged = code in (sqlite3.SQLITE_CORRUPT_INDEX, sqlite3.SQLITE_ERROR)
    assert (storage_error("x", problem, damaged=True).fault == "its ledger is damaged") == damaged


def test_a_ledger_in_use_is_not_called_damaged(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Ledger(path, PEOPLE).close()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with closing(sqlite3.connect(path, timeout=0.01)) as db, pytest.raises(StorageError) as problem:
            chain.check(db, "x")
        assert "cannot be used now" in str(problem.value)
