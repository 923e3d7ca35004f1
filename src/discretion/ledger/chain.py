"""The chain over a ledger's entries: each hash covers rows of the ledger and the hash before it."""

import hashlib
import json
import os
import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import cache
from typing import Any, NamedTuple

from discretion.ledger.faults import PROBLEMS, damage, storage_error
from discretion.ledger.keys import is_signed

TABLES = """
CREATE TABLE entry (number INTEGER PRIMARY KEY, kind TEXT, first INTEGER, last INTEGER, salt BLOB,
    hash BLOB UNIQUE);
CREATE TABLE head (count INTEGER, hash BLOB, signature BLOB);
CREATE TABLE key (public TEXT);
INSERT INTO head VALUES (0, zeroblob(32), zeroblob(0));
"""
START = bytes(32)  # the hash before the first entry


class Covered(NamedTuple):
    """Columns that an entry covers. `changed`: the entry is on a later change, of rows like these."""

    table: str
    columns: str
    changed: str = ""


KINDS = {
    "about": Covered("about", "rule"),
    "key": Covered("key", "public"),
    "client": Covered("client", "name, epsilon, delta"),
    "change": Covered("change", "client, epsilon, note, made"),
    "run": Covered(
        "run", "id, plan, noise, method, unit, adjacency, promise, rounds, unprotected, changes, admitted"
    ),
    "close": Covered("run", "closed", "closed IS NOT NULL"),
    "member": Covered("member", "run, place, client, class"),
    "price": Covered("price", "run, price, rate, multiplier"),
    "phase": Covered("phase", "run, phase, part, rounds, price, releases"),
    "round": Covered("round", "run, round, phase, refused, reserved, changes"),
    "commit": Covered("round", "state, committed", "state IS NOT 'reserved' OR committed IS NOT NULL"),
    "joined": Covered("joined", "run, operator, message"),
    "release": Covered("release", "run, round, kind, turn, asked"),
    "keep": Covered("release", "kept", "kept IS NOT NULL"),
    "choice": Covered("choice", "run, round, pool, survivors"),
    "lost": Covered("lost", "key, noticed"),
    "recover": Covered("lost", "recovered", "recovered IS NOT NULL"),
}

Read = Callable[[str, Sequence[object]], list[Any]]


def add(db: sqlite3.Connection, kind: str, first: int, last: int) -> None:
    """Chain the rows first … last of a table, as they are now, inside the transaction that wrote them.

    Every entry has a random salt: its hash, which guards hand out, tells nothing about what it covers, not
    even whether there was anything between two of them.
    """
    number, before = newest(db)
    salt = os.urandom(16)
    content = [
        number + 1,
        kind,
        first,
        last,
        _rows(lambda *asked: db.execute(*asked).fetchall(), kind, first, last),
    ]
    values = [number + 1, kind, first, last, salt, _link(before, salt, content)]
    db.execute("INSERT INTO entry VALUES (?, ?, ?, ?, ?, ?)", values)


def newest(db: sqlite3.Connection) -> tuple[int, bytes]:
    """Return number and hash of the last entry."""
    row = db.execute("SELECT number, hash FROM entry ORDER BY number DESC LIMIT 1").fetchone()
    return row or (0, START)


def check(db: sqlite3.Connection, name: str) -> None:
    """Raise unless the ledger is as its entries say. Call it inside a transaction.

    Guarantees:
        Tables, indexes and every row of the record are as they were written; the last entry is the one that
        the head names and, in a guard's ledger, that its key signed.
        The time grows in proportion to the number of rows.
    """
    try:
        found = _fault(lambda query, values: db.execute(query, values).fetchall())
    except (*PROBLEMS, ValueError, TypeError, LookupError, OverflowError, MemoryError) as problem:
        raise storage_error(name, problem, damaged=True) from None
    if found:
        raise damage(name, found)


def _fault(read: Read) -> str:
    """Return the first fault found, in words; an empty string if there is none."""
    ((said,),) = read("PRAGMA integrity_check(1)", [])
    if said != "ok":
        return f"SQLite says: {said}"
    if read("SELECT sql FROM sqlite_schema ORDER BY rowid", []) != _schema():
        return "its tables are not those of this version"
    number, before, covered = 0, START, Counter[str]()
    for number, (own, kind, first, last, salt, link) in enumerate(
        read("SELECT * FROM entry ORDER BY number", []), 1
    ):
        if kind not in KINDS:
            return f"entry {number} is of no known kind"
        rows = _rows(read, kind, first, last)
        if link != _link(before, salt, [number, kind, first, last, rows]) or own != number:
            return f"entry {number} ({kind}) or its rows are not as they were written"
        if not KINDS[kind].changed and first != covered[kind] + 1:
            return f"entry {number} ({kind}) does not follow the one before it"
        covered[kind] += len(rows)
        before = link
    for kind, (table, _, changed) in KINDS.items():
        ((rows_now,),) = read(f"SELECT COUNT(*) FROM {table} WHERE {changed or 'TRUE'}", [])
        if rows_now != covered[kind]:
            return f"{rows_now} rows ({kind}) where its entries have {covered[kind]}"
    ((count, head, signature),) = read("SELECT * FROM head", [])
    if (count, head) != (number, before):
        return f"its head is not the last of its {number} entries"
    keys = read("SELECT public FROM key ORDER BY rowid", [])
    signed = is_signed(keys[-1][0], head, signature) if keys else signature == b""
    return "" if signed else "its head is not signed by its key"


def _rows(read: Read, kind: str, first: int, last: int) -> list[Any]:
    table, columns, _ = KINDS[kind]
    return read(
        f"SELECT rowid, {columns} FROM {table} WHERE rowid BETWEEN ? AND ? ORDER BY rowid", [first, last]
    )


def _link(before: bytes, salt: bytes, content: list[Any]) -> bytes:
    return hashlib.sha256(before + salt + json.dumps(content, default=_digest).encode()).digest()


def _digest(blob: bytes) -> dict[str, str]:
    return {"sha256": hashlib.sha256(blob).hexdigest()}


@cache
def _schema() -> list[tuple[str | None]]:
    from discretion.ledger.store import SCHEMA  # which contains these tables

    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(SCHEMA)
        return db.execute("SELECT sql FROM sqlite_schema ORDER BY rowid").fetchall()
