"""Read-only access to a ledger as it is at one moment: for verification, receipts and pages."""

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import quote

import numpy as np

from discretion.arrays import Ints
from discretion.ledger import chain
from discretion.ledger.entries import Accounts, record
from discretion.ledger.store import SCHEMA
from discretion.plan.plan import Plan

WAIT = 5.0  # seconds for a ledger that cannot be read at once
DAMAGED = (sqlite3.Error, ValueError, TypeError, LookupError)  # what reading a damaged ledger raises

PLAN_TABLES = {"member": "place", "price": "price", "phase": "phase, part"}  # with the order of their rows
PlanRows = dict[str, list[tuple[object, ...]]]


class AdmittedRun(NamedTuple):
    method: str
    rounds: int
    changes: int  # the last change of a budget before the run was admitted


class RoundEntry(NamedTuple):
    round: int
    phase: int
    state: str
    refused: list[int]  # places of the clients that refused
    changes: int  # the last change of a budget before the round


class BudgetChange(NamedTuple):
    number: int
    client: str
    by: float


def connect_for_reading(ledger: Path, wait: float = WAIT) -> sqlite3.Connection:
    """Return a connection that makes and changes no file."""
    address = f"file:{quote(str(ledger.absolute()))}?mode=ro"
    return sqlite3.connect(address, uri=True, isolation_level=None, timeout=wait)


class LedgerReader:
    """A ledger opened for reading.

    Guarantees:
        Neither the ledger nor a file beside it is made or changed.
        Everything that is read is as it was at one moment.
    """

    def __init__(self, ledger: Path, wait: float = WAIT) -> None:
        self._name = str(ledger)
        self._db = connect_for_reading(ledger, wait)
        self._db.execute("BEGIN DEFERRED")

    @classmethod
    def over(cls, db: sqlite3.Connection) -> Self:
        """Read from a ledger in memory."""
        made = cls.__new__(cls)
        made._name, made._db = "the ledger", db
        return made

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

    def rows(self, query: str, values: Sequence[object] = ()) -> list[Any]:
        return self._db.execute(query, values).fetchall()

    def check(self) -> None:
        """Raise unless every row is as it was written."""
        chain.check(self._db, self._name)

    @property
    def rule(self) -> str:
        ((rule,),) = self.rows("SELECT rule FROM about")
        return str(rule)

    def accounts(self, clients: Sequence[str]) -> Accounts:
        """Return what is on record, as Gaussian steps of these clients."""
        return Accounts(self.rows, {name: i for i, name in enumerate(clients)})

    def budgets(self) -> dict[str, tuple[float, float]]:
        """Return the (epsilon, delta) that each client came with."""
        rows = self.rows("SELECT name, epsilon, delta FROM client")
        return {name: (epsilon, delta) for name, epsilon, delta in rows}

    def changes(self) -> list[BudgetChange]:
        """Return all top-ups and withdrawals, the first one first."""
        rows = self.rows("SELECT number, client, epsilon FROM change ORDER BY number")
        return [BudgetChange(*row) for row in rows]

    def run(self, run: str) -> AdmittedRun | None:
        rows = self.rows("SELECT method, rounds, changes FROM run WHERE id = ?", [run])
        return AdmittedRun(*rows[0]) if rows else None

    def plan_rows(self, run: str) -> PlanRows:
        """Return the rows in which the plan of a run is written down, by table."""
        return {
            table: self.rows(f"SELECT * FROM {table} WHERE run = ? ORDER BY {order}", [run])
            for table, order in PLAN_TABLES.items()
        }

    def rounds(self, run: str) -> list[RoundEntry]:
        """Return the rounds of a run that are on record, in the order in which they were entered."""
        query = "SELECT round, phase, state, refused, changes FROM round WHERE run = ? ORDER BY number"
        rows = self.rows(query, [run])
        return [RoundEntry(*row)._replace(refused=json.loads(row[3])) for row in rows]

    def refused_by(self, client: str) -> dict[str, list[int]]:
        """Return the rounds that a client refused, by run; runs without a round on record are left out."""
        query = "SELECT run, round, refused, place FROM round JOIN member USING (run) WHERE client = ? "
        found: dict[str, list[int]] = {}
        for run, number, refused, place in self.rows(query + "ORDER BY number", [client]):
            found.setdefault(run, []).extend([number] if place in json.loads(refused) else [])
        return found

    def charged_under(self, client: str) -> float:
        """Return the epsilon that a client allowed when its last round was charged, plus later top-ups."""
        query = "SELECT round.changes, refused, place FROM round JOIN member USING (run) WHERE client = ?"
        charged = (
            last for last, refused, place in self.rows(query, [client]) if place not in json.loads(refused)
        )
        last, first = max(charged, default=0), self.budgets()[client][0]
        changes = [each for each in self.changes() if each.client == client]
        return max(first + sum(each.by for each in changes if each.number <= last or each.by > 0), 0.0)


def plan_rows(run: str, plan: Plan) -> PlanRows:
    """Return the rows in which a plan would be written down, by table."""
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(SCHEMA)
        record(db, run, plan, np.arange(len(plan.clients)))
        return {
            table: db.execute(f"SELECT * FROM {table} ORDER BY {order}").fetchall()
            for table, order in PLAN_TABLES.items()
        }


@dataclass(frozen=True)
class OnRecord:
    """What a ledger has of one run. A refusal is that of one client in one round, to keep its budget."""

    reserved: int  # rounds whose cost is counted, released or not
    committed: int  # of these, rounds that were released
    other_runs: int  # further runs that spend from the same budgets
    refusals: Ints  # (N,) rounds that each client refused
    refusing: Ints  # numbers of the clients that refused the last round on record
    since: str  # when the first round was reserved; empty where none was
    until: str  # when the last was reserved or committed
    idle: int = 0  # rounds that all clients refused


def nothing(clients: int) -> OnRecord:
    return OnRecord(0, 0, 0, np.zeros(clients, dtype=np.int64), np.zeros(0, dtype=np.int64), "", "")


def read_on(path: Path, run: str, known: OnRecord, wait: float = WAIT) -> OnRecord | None:
    """Return what is on record now, given what was `known` before; None where no ledger can be read.

    Guarantees:
        Neither the ledger nor a file beside it is made or changed.
        It is open for one short reading, and waited for `wait` seconds at most.
    """
    states = (
        "SELECT COALESCE(SUM(state = 'committed'), 0), COALESCE(MIN(reserved), ''), "
        "COALESCE(MAX(COALESCE(committed, reserved)), '') FROM round WHERE run = ?"
    )
    later = "SELECT refused FROM round WHERE run = ? AND round > ? ORDER BY round"
    try:
        with LedgerReader(path, wait) as ledger:
            ((others,),) = ledger.rows("SELECT COUNT(*) FROM run WHERE id <> ?", [run])
            ((committed, since, until),) = ledger.rows(states, [run])
            new = [json.loads(refused) for (refused,) in ledger.rows(later, [run, known.reserved])]
        refusals = known.refusals.copy()
        for places in new:
            refusals[np.array(places, dtype=np.uint64)] += 1  # a place below 0 is damage, too
        refusing = np.array(new[-1], dtype=np.int64) if new else known.refusing
        idle = known.idle + sum(len(set(places)) == len(refusals) for places in new)
    except (*DAMAGED, RecursionError, OverflowError):
        return None
    return OnRecord(known.reserved + len(new), committed, others, refusals, refusing, since, until, idle)
