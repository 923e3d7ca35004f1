"""The server's file of heads: the last ones, until later ones follow them."""

from pathlib import Path

import pytest

from discretion.errors import LedgerError
from discretion.ledger.heads import MOST_HEADS, KnownHeads, last_head
from discretion.ledger.keys import Head


def head(number: int) -> Head:
    return Head(key="0" * 64, hash=f"{number:064x}", signature="1" * 128)


def test_a_head_is_replaced_by_those_that_follow_it(tmp_path: Path) -> None:
    path = tmp_path / "ledger.heads"
    assert last_head(path, "a") is None and not path.exists()
    known = KnownHeads(path)
    known.learn([("a", [], head(1)), ("b", [], head(2))])
    known.learn([("a", [head(1)], head(3)), ("a", [head(1)], head(4))])  # two orders that were sent together
    for each in (known, KnownHeads(path)):
        assert (each.of("a"), each.of("b"), each.of("c")) == ([head(3), head(4)], [head(2)], [])
    other = KnownHeads(path)  # of another run that shares the ledger
    other.learn([("a", [head(3), head(4)], head(5))])
    known.learn([("a", [head(3), head(4)], head(6))])
    assert KnownHeads(path).of("a") == [head(5), head(6)] and last_head(path, "a") == head(6)
    known.learn([("a", [head(6)], head(6))])  # nothing was entered since
    known.learn([])
    assert KnownHeads(path).of("a") == [head(5), head(6)]
    assert path.stat().st_mode & 0o777 == 0o600


def test_so_many_heads_are_sent(tmp_path: Path) -> None:
    known = KnownHeads()
    known.learn([("a", [], head(number)) for number in range(2 * MOST_HEADS)])
    assert known.of("a") == [head(number) for number in range(MOST_HEADS, 2 * MOST_HEADS)]


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "ledger.heads"
    path.write_bytes(b"no database, but as long as one\n" * 9)
    with pytest.raises(LedgerError, match="in which guards' heads are kept: .* Restore a copy"):
        KnownHeads(path)
