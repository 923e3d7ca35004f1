"""The server's file of heads: the last ones, until later ones follow them."""

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from discretion.errors import LedgerError
from discretion.ledger.heads import MOST_HEADS, KnownHeads, last_head
from discretion.ledger.keys import Head

KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))


def head(number: int) -> Head:
    return Head.signed(KEY, f"{number:064x}")


def test_a_head_is_replaced_by_those_that_follow_it(tmp_path: Path) -> None:
    path = tmp_path / "operator.key.heads"
    assert last_head(path, "r", "a") is None and not path.exists()
    known = KnownHeads(path, "r")
    known.learn([("a", [], head(1)), ("b", [], head(2))])
    known.learn([("a", [head(1)], head(3)), ("a", [head(1)], head(4))])  # two orders that were sent together
    for each in (known, KnownHeads(path)):
        assert (each.of("a"), each.of("b"), each.of("c")) == ([head(3), head(4)], [head(2)], [])
    assert last_head(path, "r", "a") == head(4)
    other = KnownHeads(path, "other")  # of another run of the operator, at the same time
    other.learn([("a", [head(3), head(4)], head(5))])
    known.learn([("a", [head(3), head(4)], head(6))])
    assert KnownHeads(path).of("a") == [head(5), head(6)]
    assert last_head(path, "other", "a") == head(5) and last_head(path, "r", "a") == head(6)
    assert last_head(path, "other", "b") is None
    known.learn([("a", [head(6)], head(6))])  # nothing was entered since
    known.learn([])
    assert KnownHeads(path).of("a") == [head(5), head(6)]
    assert path.stat().st_mode & 0o777 == 0o600


def test_so_many_heads_are_sent(tmp_path: Path) -> None:
    known = KnownHeads()
    known.learn([("a", [], head(number)) for number in range(2 * MOST_HEADS)])
    assert known.of("a") == [head(number) for number in range(MOST_HEADS, 2 * MOST_HEADS)]


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "operator.key.heads"
    path.write_bytes(b"no database, but as long as one\n" * 9)
    with pytest.raises(LedgerError, match="in which guards' heads are kept: .* Restore a copy"):
        KnownHeads(path)


def test_a_head_that_was_changed_is_not_passed_over(tmp_path: Path) -> None:
    """Guards do not look at a head that no key signed: one digit would have switched the comparison off."""
    path = tmp_path / "operator.key.heads"
    KnownHeads(path).learn([("a", [], head(1)), ("b", [], head(2))])
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE head SET head = replace(head, ?, ?)", [head(2).hash, head(3).hash])
    with pytest.raises(LedgerError, match="the head of client b is not one that its key signed"):
        KnownHeads(path)


def test_what_no_key_signed_is_not_learned(tmp_path: Path) -> None:
    path = tmp_path / "operator.key.heads"
    known = KnownHeads(path)
    known.learn([("a", [], head(1))])
    known.learn([("a", [head(1)], head(2).model_copy(update={"hash": head(3).hash}))])
    assert known.of("a") == KnownHeads(path).of("a") == [head(1)]


def test_processes_that_share_the_file_lose_no_head(tmp_path: Path) -> None:
    path, most = tmp_path / "operator.key.heads", 20
    script = """
import sys
from pathlib import Path
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from discretion.ledger.heads import KnownHeads
from discretion.ledger.keys import Head
path, run, most = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
known = KnownHeads(path, str(run))
for number in range(most):
    head = Head.signed(Ed25519PrivateKey.from_private_bytes(bytes(32)), f"{1000 * run + number:064x}")
    known.learn([("a", known.of("a"), head)])
"""
    words = [sys.executable, "-c", script, str(path)]
    runs = [subprocess.Popen([*words, str(run), str(most)]) for run in (1, 2)]
    assert [run.wait(timeout=120) for run in runs] == [0, 0]
    last = [head(1000 * run + most - 1) for run in (1, 2)]
    assert [last_head(path, str(run), "a") for run in (1, 2)] == last
    assert KnownHeads(path).of("a")[-1] in last and len(KnownHeads(path).of("a")) <= 2
