"""The SQLite file of a ledger: tables, transactions, clients and their budgets."""

import math
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from discretion.arrays import Floats
from discretion.errors import LedgerError, nearest
from discretion.ledger import chain, keys
from discretion.ledger.faults import PROBLEMS, storage_error
from discretion.plan.population import Population

VERSION = 1_400_007  # of the tables below; tells a ledger from other SQLite files
# Clients of a run are numbered by `place`. Rates and multipliers are lists with an entry for each class,
# `releases` of a round is a number for all or lists of places and numbers, `refused` a list of places.
# Only guards join runs and keep releases: `asked` and `kept` are digests of an order and of its answer.
# Rows are never deleted, and every row is covered by an entry of the chain.
SCHEMA = f"""{chain.TABLES}
CREATE TABLE about (rule TEXT);
CREATE TABLE client (name TEXT PRIMARY KEY, epsilon REAL, delta REAL);
CREATE TABLE change (number INTEGER PRIMARY KEY, client TEXT, epsilon REAL, note TEXT, made TEXT);
CREATE TABLE run (
    id TEXT PRIMARY KEY, plan TEXT, noise TEXT, method TEXT, unit TEXT, adjacency TEXT, promise TEXT,
    rounds INTEGER, unprotected INTEGER, changes INTEGER, admitted TEXT, closed TEXT);
CREATE TABLE member (run TEXT, place INTEGER, client TEXT, class INTEGER, PRIMARY KEY (run, place));
CREATE TABLE price (run TEXT, price INTEGER, rate TEXT, multiplier TEXT, PRIMARY KEY (run, price));
CREATE TABLE phase (
    run TEXT, phase INTEGER, part INTEGER, rounds INTEGER, price INTEGER, releases TEXT,
    PRIMARY KEY (run, phase, part));
CREATE TABLE round (
    number INTEGER PRIMARY KEY, run TEXT, round INTEGER, phase INTEGER, state TEXT, refused TEXT,
    reserved TEXT, committed TEXT, changes INTEGER, UNIQUE (run, round));
CREATE TABLE joined (run TEXT PRIMARY KEY, operator TEXT, message BLOB);
CREATE TABLE release (
    run TEXT, round INTEGER, kind TEXT, turn INTEGER, asked TEXT, kept TEXT, answer BLOB,
    PRIMARY KEY (run, round, kind, turn));
CREATE TABLE lost (key TEXT PRIMARY KEY, noticed TEXT, recovered TEXT);
"""

Rule = Literal["planned", "adaptive"]
Signing = Literal["none", "kept", "new"]  # without a key; by the key that is kept beside it; by a new one


class Change(NamedTuple):
    """A top-up (by > 0) of a client's epsilon, or a withdrawal (by < 0)."""

    client: str
    by: float
    note: str
    made: str


class Book:
    """An open ledger file. A client's budget is its first epsilon, plus top-ups, less withdrawals."""

    def __init__(
        self, path: Path | str, population: Population, rule: Rule = "planned", signing: Signing = "none"
    ) -> None:
        with self._opening(path):
            with self._transaction():
                self._lay_out(rule)
                self._take_key(signing)
                self._enrol(population)
            if self._key is not None:
                keys.settled(self._path, keys.public_of(self._key))
            self._begin(population)
            # a guard's ledger is one file at any moment, and what is erased in it is gone
            self._journal("WAL" if self._key is None else "DELETE")

    @classmethod
    def existing(cls, path: Path | str) -> Self:
        """Open the ledger in this file, with all clients that are on record."""
        if not Path(path).is_file():
            raise LedgerError(f"there is no ledger {path}: give the ledger.sqlite of a run, or a shared one")
        self = cls.__new__(cls)
        with self._opening(path):
            with self._transaction("DEFERRED"):
                self._lay_out(None)
            rows = self._read("SELECT name, epsilon, delta FROM client ORDER BY rowid")
            names, epsilon, delta = zip(*rows, strict=True)
            self._begin(replace(Population.of(epsilon, np.array(delta)), client=names))
        return self

    @contextmanager
    def _opening(self, path: Path | str) -> Iterator[None]:
        """Open the file; close it again if what follows fails."""
        self._path = str(path)
        self._key: Ed25519PrivateKey | None = None
        try:
            self._db = sqlite3.connect(self._path, isolation_level=None, timeout=30.0)
            self._db.execute("PRAGMA synchronous = EXTRA")
            self._db.execute("PRAGMA secure_delete = ON")
        except PROBLEMS as problem:
            raise storage_error(self._path, problem) from None
        try:
            yield
        except BaseException:
            self._db.close()
            raise

    def _journal(self, mode: Literal["WAL", "DELETE"]) -> None:
        """Set SQLite's journal mode, unless another process prevents it.

        Both modes are equally safe; a transaction takes one disk write with WAL, about five without.
        """
        with suppress(sqlite3.Error):
            self._db.execute(f"PRAGMA journal_mode = {mode}")

    def _lay_out(self, rule: Rule | None) -> None:
        """Make the tables in a new file; refuse a file that is no ledger, or that keeps another rule."""
        tables = self._read("SELECT name FROM sqlite_schema")
        ((version,),) = self._read("PRAGMA user_version")
        if version != (VERSION if tables else 0) or (not tables and rule is None):
            raise LedgerError(
                f"{self._path} is not a ledger of Discretion of this version: expected one, or a new file"
            )
        if tables:
            chain.check(self._db, self._path)
        else:
            for statement in SCHEMA.split(";"):
                self._db.execute(statement)
            self._db.execute(f"PRAGMA user_version = {VERSION}")
            self._insert("about", rule)
        self.rule: Rule
        ((self.rule,),) = self._read("SELECT rule FROM about")
        if rule not in (None, self.rule):
            raise LedgerError(
                f"the ledger {self._path} goes by the rule {self.rule}, not {rule}. A ledger keeps its rule: "
                f"set rule to {self.rule}, or use another ledger for other data."
            )

    def _take_key(self, signing: Signing) -> None:
        """Take the key that is to sign this ledger, or make it."""
        known = [public for (public,) in self._read("SELECT public FROM key ORDER BY rowid")]
        file, entries = keys.key_file(self._path), chain.newest(self._db)[0]
        if signing == "kept" and known:
            self._key = keys.settled(self._path, known[-1])
        elif signing == "kept" and (entries > 1 or file.exists()):  # the first entry is on the rule
            raise LedgerError(
                f"the ledger {self._path} has nothing on record that its key {file} signed: it was replaced, "
                "or deleted. Put it back, or say what was lost with `discretion guard GUARD.toml --recover`."
            )
        elif signing != "none":
            on_file = keys.read(file)
            if on_file is not None and keys.public_of(on_file) not in known:
                self._insert("key", keys.public_of(on_file))
                known.append(keys.public_of(on_file))
            for public in known[-1:]:  # until what was lost is charged, nothing is released
                if not self._read("SELECT 1 FROM lost WHERE key = ?", [public]):
                    self._insert("lost", public, now(), None)
            self._key = keys.draft(self._path)
            self._insert("key", keys.public_of(self._key))

    def _begin(self, population: Population) -> None:
        self.population = population
        self._place = {name: i for i, name in enumerate(population.client)}
        first = dict(self._read("SELECT name, epsilon FROM client"))
        self._first = np.array([first[name] for name in population.client])

    def close(self) -> None:
        self._journal("DELETE")  # one file again, that can be copied, moved and read where nobody may write
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _transaction(self, kind: Literal["IMMEDIATE", "DEFERRED"] = "IMMEDIATE") -> Iterator[None]:
        """Run a transaction; a deferred one is for reading everything as it was at one moment.

        Inside another one it is a part of that.
        """
        if self._db.in_transaction:
            yield
            return
        try:
            self._db.execute(f"BEGIN {kind}")
            with self._db:  # commits or, after any exception, rolls back
                yield
                if kind == "IMMEDIATE":
                    self._seal()
        except PROBLEMS as problem:
            raise storage_error(self._path, problem) from None

    def _read(self, query: str, values: Sequence[object] = ()) -> list[Any]:
        try:
            return self._db.execute(query, values).fetchall()
        except PROBLEMS as problem:
            raise storage_error(self._path, problem) from None

    def _insert(self, table: str, *values: object) -> None:
        """Enter one row, and chain it."""
        marks = ", ".join("?" * len(values))
        row = self._db.execute(f"INSERT INTO {table} VALUES ({marks})", values).lastrowid
        assert row is not None
        chain.add(self._db, table, row, row)

    def _update(self, kind: str, query: str, *values: object) -> None:
        """Change rows by a query without RETURNING, and chain each change."""
        for (row,) in self._db.execute(f"{query} RETURNING rowid", values).fetchall():
            chain.add(self._db, kind, row, row)

    @contextmanager
    def _entering(self, *tables: str) -> Iterator[None]:
        """Chain the rows that are entered meanwhile, one entry for each table."""
        before = {table: self._last_row(table) for table in tables}
        yield
        for table, row in before.items():
            if (last := self._last_row(table)) > row:
                chain.add(self._db, table, row + 1, last)

    def _last_row(self, table: str) -> int:
        ((row,),) = self._read(f"SELECT COALESCE(MAX(rowid), 0) FROM {table}")
        return int(row)

    def _seal(self) -> None:
        """Let the head name the last entry, signed if this ledger has a key."""
        ((sealed,),) = self._read("SELECT count FROM head")
        number, link = chain.newest(self._db)
        if number == sealed:
            return
        if self._key is None:
            for (public,) in self._read("SELECT public FROM key ORDER BY rowid DESC LIMIT 1"):
                self._key = keys.settled(self._path, public)
        signature = b"" if self._key is None else keys.sign(self._key, link)
        self._db.execute("UPDATE head SET count = ?, hash = ?, signature = ?", [number, link, signature])

    def _enrol(self, population: Population) -> None:
        """Enter new clients; a client on record keeps its budget, and a different one is refused."""
        rows = self._read("SELECT name, epsilon, delta FROM client")
        known = {name: (epsilon, delta) for name, epsilon, delta in rows}
        changed = dict(self._read("SELECT client, SUM(epsilon) FROM change GROUP BY client"))
        new = []
        budgets = zip(population.epsilon.tolist(), population.delta.tolist(), strict=True)
        for name, (epsilon, delta) in zip(population.client, budgets, strict=True):
            if name not in known:
                new.append((name, epsilon, delta))
                continue
            first, its_delta = known[name]
            now = first + changed.get(name, 0.0)
            as_changed = name in changed and math.isclose(epsilon, now, rel_tol=1e-9)
            if delta != its_delta or not (epsilon == first or as_changed):
                raise LedgerError(
                    f"client {name} has the budget (epsilon {now:g}, delta {its_delta:g}) in {self._path}, "
                    f"but (epsilon {epsilon:g}, delta {delta:g}) in the population. A budget holds for life: "
                    "use the population.csv of the earlier run, another ledger for other data, or change "
                    "the budget with `discretion ledger`."
                )
        with self._entering("client"):
            self._db.executemany("INSERT INTO client VALUES (?, ?, ?)", new)

    @property
    def budget(self) -> Floats:
        """(N,) epsilon that each client allows now, over its life, with top-ups and withdrawals."""
        return self._budget(self._last_change())

    def _budget(self, last: int) -> Floats:
        """(N,) epsilon that each client allowed after change number `last`, plus later top-ups."""
        query = "SELECT client, SUM(epsilon) FROM change WHERE number <= ? OR epsilon > 0 GROUP BY client"
        now = self._first.copy()
        for name, by in self._read(query, [last]):
            if name in self._place:
                now[self._place[name]] += by
        return np.asarray(np.maximum(now, 0.0))

    def _last_change(self) -> int:
        ((number,),) = self._read("SELECT COALESCE(MAX(number), 0) FROM change")
        return int(number)

    @property
    def changes(self) -> list[Change]:
        """Return all changes of budgets, the first one first."""
        return [Change(*row) for row in self._read("SELECT client, epsilon, note, made FROM change")]

    def change_budget(self, client: str, by: float, note: str = "") -> None:
        """Top up a client's epsilon, or withdraw some of it (by < 0): an entry that stays on record.

        What is spent stays spent: a client that withdrew more than it has left refuses every round that costs
        anything. A top-up replaces the promise by a weaker one. A promise is proved if it was settled
        beforehand, and not in the light of releases, that it would be the last.
        """
        if client not in self._place:
            near = nearest(client, self._place)
            raise LedgerError(f"there is no client {client!r} in the ledger {self._path}.{near}")
        if not (math.isfinite(by) and by != 0):
            raise LedgerError(f"a budget is changed by a finite number, up or down; found {by}")
        if math.isinf(self._first[self._place[client]]):
            raise LedgerError(
                f"client {client} has no limit, so a change would change nothing: its data is public. "
                "Use a ledger in which it has a budget."
            )
        with self._transaction():
            self._insert("change", None, client, by, note, now())


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def copy_ledger(path: Path, target: Path) -> None:
    """Copy a ledger, with what its write-ahead log holds, as it is at one moment; the copy is one file."""
    try:
        with closing(sqlite3.connect(path)) as ours, closing(sqlite3.connect(target)) as copy:
            ours.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")
    except PROBLEMS as problem:
        raise storage_error(f"{path}, copied to {target},", problem) from None
