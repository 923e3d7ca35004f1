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

from discretion.arrays import Floats
from discretion.errors import LedgerError, nearest
from discretion.plan.population import Population

VERSION = 1_400_006  # of the tables below; tells a ledger from other SQLite files
# Clients of a run are numbered by `place`. Rates and multipliers are lists with an entry for each class,
# `releases` of a round is a number for all or lists of places and numbers, `refused` a list of places.
SCHEMA = """
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
"""

Rule = Literal["planned", "adaptive"]


class Change(NamedTuple):
    """A top-up (by > 0) of a client's epsilon, or a withdrawal (by < 0)."""

    client: str
    by: float
    note: str
    made: str


class Book:
    """An open ledger file. A client's budget is its first epsilon, plus top-ups, less withdrawals."""

    def __init__(self, path: Path | str, population: Population, rule: Rule = "planned") -> None:
        with self._opening(path):
            with self._transaction():
                self._lay_out(rule)
                self._enrol(population)
            self._begin(population)
            self._journal("WAL")

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
        try:
            self._db = sqlite3.connect(self._path, isolation_level=None, timeout=30.0)
            self._db.execute("PRAGMA synchronous = EXTRA")
        except sqlite3.Error as problem:
            raise LedgerError(f"cannot open the ledger {self._path}: {problem}") from None
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
        if (tables and version != VERSION) or (not tables and rule is None):
            raise LedgerError(
                f"{self._path} is not a ledger of Discretion of this version: expected one, or a new file"
            )
        if not tables:
            for statement in SCHEMA.split(";"):
                self._db.execute(statement)
            self._db.execute(f"PRAGMA user_version = {VERSION}")
            self._db.execute("INSERT INTO about VALUES (?)", [rule])
        self.rule: Rule
        ((self.rule,),) = self._read("SELECT rule FROM about")
        if rule not in (None, self.rule):
            raise LedgerError(
                f"the ledger {self._path} goes by the rule {self.rule}, not {rule}. A ledger keeps its rule: "
                f"set rule to {self.rule}, or use another ledger for other data."
            )

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
        """Run a transaction; a deferred one is for reading everything as it was at one moment."""
        try:
            self._db.execute(f"BEGIN {kind}")
            with self._db:  # commits or, after any exception, rolls back
                yield
        except sqlite3.Error as problem:
            raise LedgerError(f"the ledger {self._path} cannot be used now: {problem}") from None

    def _read(self, query: str, values: Sequence[object] = ()) -> list[Any]:
        try:
            return self._db.execute(query, values).fetchall()
        except sqlite3.Error as problem:
            raise LedgerError(f"the ledger {self._path} cannot be used now: {problem}") from None

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
            self._db.execute("INSERT INTO change VALUES (NULL, ?, ?, ?, ?)", [client, by, note, now()])


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def copy_ledger(path: Path, target: Path) -> None:
    """Copy a ledger, with what its write-ahead log holds, as it is at one moment."""
    with closing(sqlite3.connect(path)) as ours, closing(sqlite3.connect(target)) as copy:
        ours.backup(copy)
