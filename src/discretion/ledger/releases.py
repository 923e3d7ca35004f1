"""Durable record of a guard's joined runs and released answers: a repeated order gets the same bytes."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

from discretion.errors import LedgerError

VERSION = 1_500_001
SCHEMA = """
CREATE TABLE joined (run TEXT PRIMARY KEY, operator TEXT, message BLOB);
CREATE TABLE release (
    run TEXT, round INTEGER, kind TEXT, turn INTEGER, asked TEXT, answer BLOB,
    PRIMARY KEY (run, round, kind, turn));
"""

Kind = Literal["train", "read"]


class Joined(NamedTuple):
    operator: str  # public key that signed the order
    message: bytes


class Release(NamedTuple):
    asked: str  # digest of the order
    answer: bytes | None  # None: begun and perhaps interrupted, or of an earlier round and deleted


class Releases:
    """SQLite file of joined runs and released answers, on disk before an answer leaves the guard.

    Guarantees:
        An answer, once kept, is never replaced.
        Of rounds before the last one only the order's digest is kept; the answer's bytes are erased.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._said():
            self._db = sqlite3.connect(path, isolation_level=None, timeout=30.0)
            self._db.execute("PRAGMA synchronous = EXTRA")
            self._db.execute("PRAGMA secure_delete = ON")
            ((version,),) = self._db.execute("PRAGMA user_version").fetchall()
            if version == 0:
                self._db.executescript(f"BEGIN;{SCHEMA}PRAGMA user_version = {VERSION};COMMIT;")
            elif version != VERSION:
                self._db.close()
                raise LedgerError(
                    f"{path}: expected a guard's releases of version {VERSION}, found version {version}"
                )

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def _said(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as problem:
            raise LedgerError(f"cannot use {self._path}: {problem}") from None

    def _do(self, query: str, *values: Any) -> list[Any]:
        with self._said():
            return self._db.execute(query, values).fetchall()

    def join(self, run: str, operator: str, message: bytes) -> None:
        self._do("INSERT INTO joined VALUES (?, ?, ?)", run, operator, message)

    def joined(self, run: str) -> Joined | None:
        rows = self._do("SELECT operator, message FROM joined WHERE run = ?", run)
        return Joined(*rows[0]) if rows else None

    def find(self, run: str, round_: int, kind: Kind, turn: int) -> Release | None:
        query = "SELECT asked, answer FROM release WHERE run = ? AND round = ? AND kind = ? AND turn = ?"
        rows = self._do(query, run, round_, kind, turn)
        return Release(*rows[0]) if rows else None

    def begin(self, run: str, round_: int, kind: Kind, turn: int, asked: str) -> None:
        """Record that an answer to this order is being made, and erase the answers of earlier rounds."""
        query = "UPDATE release SET answer = NULL WHERE run = ? AND round < ? AND answer IS NOT NULL"
        self._do(query, run, round_)
        self._do("INSERT INTO release VALUES (?, ?, ?, ?, ?, NULL)", run, round_, kind, turn, asked)

    def keep(self, run: str, round_: int, kind: Kind, turn: int, answer: bytes) -> None:
        where = "run = ? AND round = ? AND kind = ? AND turn = ? AND answer IS NULL"
        self._do(f"UPDATE release SET answer = ? WHERE {where}", answer, run, round_, kind, turn)

    def rounds(self, run: str) -> list[int]:
        """Return the rounds of a run in which an order was not refused, ascending."""
        rows = self._do("SELECT DISTINCT round FROM release WHERE run = ? ORDER BY round", run)
        return [number for (number,) in rows]
