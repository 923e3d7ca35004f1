"""The SQLite file of a ledger: tables, transactions, clients and their budgets."""

import math
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from discretion.arrays import Floats
from discretion.errors import LedgerError, nearest
from discretion.ledger import chain, keys, witness
from discretion.ledger.faults import PROBLEMS, storage_error
from discretion.ledger.keys import Head
from discretion.plan.population import Population

VERSION = 1_400_009  # of the tables below; tells a ledger from other SQLite files
# Clients of a run are numbered by `place`. Rates and multipliers are lists with an entry for each class,
# `releases` of a round is a number for all or lists of places and numbers, `refused` a list of places.
# Only guards join runs and keep releases: `asked` and `kept` are digests of an order and of its answer.
# `choice` has the survivors of a secure sum for whom a guard gave its masks: a digest, one for each sum.
# `lost` has the keys of heads that are not on record; '' in a copy, and where there was no key.
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
CREATE TABLE choice (
    run TEXT, round INTEGER, pool INTEGER, survivors TEXT, PRIMARY KEY (run, round, pool));
CREATE TABLE lost (key TEXT, noticed TEXT, recovered TEXT);
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
        self._witnessed = ""  # hash of the head that this process knows to be kept beside the ledger
        try:
            self._db = self._connect()
            with ExitStack() as closing_it:
                closing_it.callback(self._db.close)
                yield
                closing_it.pop_all()
        except PROBLEMS as problem:
            raise storage_error(self._path, problem) from None

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self._path, isolation_level=None, timeout=30.0)
        # one file at any moment: of a write-ahead log that is damaged, SQLite drops the end in silence
        db.execute("PRAGMA journal_mode = DELETE")
        db.execute("PRAGMA synchronous = EXTRA")  # only this keeps the last commit when the power fails
        db.execute("PRAGMA secure_delete = ON")
        return db

    def _lay_out(self, rule: Rule | None) -> None:
        """Make the tables in a new file; refuse a file that is no ledger, or that keeps another rule."""
        tables = self._read("SELECT name FROM sqlite_schema")
        ((version,),) = self._read("PRAGMA user_version")
        if version != (VERSION if tables else 0) or (not tables and rule is None):
            raise LedgerError(
                f"{self._path} is not a ledger of Discretion of this version: expected format {VERSION} or a "
                f"new file, found format {version}. For earlier versions see Upgrading in docs/operating.md."
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
        if signing == "kept" and known:
            self._take_kept(known)
        elif signing == "kept":
            self._require_new()
            self._key = keys.draft(self._path)
            witness.write(self._path, Head.signed(self._key, witness.START))  # before there is a ledger
            self._insert("key", keys.public_of(self._key))
        elif signing == "new":
            self._replace_key(known)

    def _take_kept(self, known: Sequence[str]) -> None:
        """Take the key beside this ledger; raise unless the head that was kept last is on record."""
        key, last = keys.settled(self._path, known[-1]), witness.read(self._path)
        file = witness.witness_file(self._path)
        if last is None:
            raise LedgerError(
                f"the last head of the ledger {self._path} is not in {file}: the file is missing or damaged, "
                f"so nothing shows that the ledger is the newest one. {keys.PUT_BACK}"
            )
        made = last.hash == witness.START and last.key in known
        if not made and not self._read("SELECT 1 FROM entry WHERE hash = ?", [bytes.fromhex(last.hash)]):
            raise LedgerError(
                f"the ledger {self._path} went back in time: it was replaced by an older copy, since the "
                f"last head, in {file}, is not on record. {keys.PUT_BACK}"
            )
        self._key, self._witnessed = key, last.hash

    def _require_new(self) -> None:
        """Raise if there was a ledger of a guard here before."""
        key, last = keys.key_file(self._path), witness.read(self._path)
        begun = last is not None and last.hash == witness.START  # and interrupted
        kept = witness.witness_file(self._path).exists() and not begun
        if chain.newest(self._db)[0] > 1 or key.exists() or kept:  # the first entry is on the rule
            raise LedgerError(
                f"the ledger {self._path} has nothing on record that its key {key} signed: it was replaced, "
                f"or deleted. {keys.PUT_BACK}"
            )

    def _replace_key(self, known: list[str]) -> None:
        """Make a new key; until what was lost is charged, the ledger is one that lost something."""
        on_file = keys.read(keys.key_file(self._path))
        if on_file is not None and keys.public_of(on_file) not in known:
            self._insert("key", keys.public_of(on_file))
            known = [*known, keys.public_of(on_file)]
        public = known[-1] if known else ""
        if not self._read("SELECT 1 FROM lost WHERE key = ? AND recovered IS NULL", [public]):
            self._insert("lost", public, now(), None)
        self._key = keys.draft(self._path)
        self._insert("key", keys.public_of(self._key))

    def _begin(self, population: Population) -> None:
        self.population = population
        self._place = {name: i for i, name in enumerate(population.client)}
        first = dict(self._read("SELECT name, epsilon FROM client"))
        self._first = np.array([first[name] for name in population.client])

    def close(self) -> None:
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _transaction(self, kind: Literal["IMMEDIATE", "DEFERRED"] = "IMMEDIATE") -> Iterator[None]:
        """Run a transaction; a deferred one is for reading everything as it was at one moment.

        Inside another one it is a part of that. Once it is on disk, a guard's ledger keeps its head.
        """
        if self._db.in_transaction:
            yield
            return
        try:
            self._db.execute(f"BEGIN {kind}")
            with self._db:  # commits or, after any exception, rolls back
                yield
                sealed = kind == "IMMEDIATE" and self._seal()
            if sealed and self._key is not None:
                self._keep_head()
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

    def _seal(self) -> bool:
        """Let the head name the last entry, signed if this ledger has a key; return whether it is new."""
        ((sealed,),) = self._read("SELECT count FROM head")
        number, link = chain.newest(self._db)
        if number == sealed:
            return False
        known = [public for (public,) in self._read("SELECT public FROM key ORDER BY rowid")]
        if self._key is None and known:
            self._take_kept(known)
        signature = b"" if self._key is None else keys.sign(self._key, link)
        self._db.execute("UPDATE head SET count = ?, hash = ?, signature = ?", [number, link, signature])
        return True

    def _keep_head(self) -> Head:
        """Keep the head beside the ledger, and return it; no other process enters anything meanwhile.

        Guarantees:
            The head that is kept is on record, also after a loss of power: it was on disk before.
        """
        try:
            self._db.execute("BEGIN IMMEDIATE")
            with self._db:
                head = self._head()
                witness.write(self._path, head)
        except PROBLEMS as problem:
            raise storage_error(f"{self._path}, in which all is on record,", problem) from None
        self._witnessed = head.hash
        return head

    def _head(self) -> Head:
        query = "SELECT public, hash, signature FROM head, key ORDER BY key.rowid DESC LIMIT 1"
        ((public, link, signature),) = self._read(query)
        return Head(key=public, hash=link.hex(), signature=signature.hex())

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
                where, use = ("the population", "use the population.csv of the earlier run")
                if self._key is not None:
                    where, use = ("GUARD.toml", "put the earlier one back")
                raise LedgerError(
                    f"client {name} has the budget (epsilon {now:g}, delta {its_delta:g}) in {self._path}, "
                    f"but (epsilon {epsilon:g}, delta {delta:g}) in {where}. A budget holds for life: {use}, "
                    "use another ledger for other data, or change the budget with `discretion ledger`."
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
            budget = float(self.budget[self._place[client]])
            if by < -budget:
                raise LedgerError(f"at most the whole budget can be withdrawn: {budget:.6g}, found {-by:.6g}")
            self._insert("change", None, client, by, note, now())


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def copy_ledger(path: Path, target: Path) -> None:
    """Copy a ledger as it is at one moment."""
    with closing(sqlite3.connect(path)) as ours, closing(sqlite3.connect(target)) as copy:
        ours.backup(copy)
