"""Excerpt of a ledger that a report holds: one run's rounds, its clients' budgets, and their changes."""

import hashlib
import json
import sqlite3
from collections.abc import Sequence

import numpy as np

from discretion.jsonfile import Record
from discretion.ledger.entries import record
from discretion.ledger.reader import LedgerReader, PlanRows, plan_rows
from discretion.ledger.store import SCHEMA
from discretion.plan.plan import Plan


class AdmittedRow(Record):
    plan: str
    method: str
    unit: str
    adjacency: str
    promise: str
    rounds: int
    changes: int
    rows: str  # SHA-256 of the rows in which the ledger has the plan


class RoundRow(Record):
    round: int
    phase: int
    state: str
    refused: list[int]
    changes: int


class ClientRow(Record):
    name: str
    epsilon: float
    delta: float


class ChangeRow(Record):
    number: int
    client: str
    by: float


class Excerpt(Record):
    """What a ledger has of one run and its clients.

    Guarantees:
        No other run, no client of other runs only, no time and no note on a change is in it.
    """

    rule: str
    run: AdmittedRow | None  # None before it is admitted
    rounds: list[RoundRow]
    clients: list[ClientRow]
    changes: list[ChangeRow]
    other_runs: int


def excerpt(ledger: LedgerReader, run: str, clients: Sequence[str], other_runs: int) -> Excerpt:
    """Return what a ledger has on record of a run and its clients."""
    admitted, known, about = ledger.run(run), ledger.budgets(), ledger.accounts(clients).about(run)
    row = None
    if admitted and about:
        own = {"method": admitted.method, "rounds": admitted.rounds, "changes": admitted.changes}
        row = AdmittedRow(**about, **own, rows=_digest(ledger.plan_rows(run)))
    here = set(clients)
    return Excerpt(
        rule=ledger.rule,
        run=row,
        rounds=[RoundRow(**entry._asdict()) for entry in ledger.rounds(run)],
        clients=[
            ClientRow(name=name, epsilon=known[name][0], delta=known[name][1])
            for name in clients
            if name in known
        ],
        changes=[ChangeRow(**change._asdict()) for change in ledger.changes() if change.client in here],
        other_runs=other_runs,
    )


def as_planned(known: Excerpt, run: str, plan: Plan) -> bool:
    """Return whether the ledger had the plan in the rows that the plan makes anew."""
    return known.run is not None and known.run.rows == _digest(plan_rows(run, plan))


def reopen(known: Excerpt, run: str, plan: Plan) -> LedgerReader:
    """Return a ledger in memory with the rows of an excerpt; the rows of the plan are made by the plan."""
    db = sqlite3.connect(":memory:", isolation_level=None)
    db.executescript(SCHEMA)
    db.execute("INSERT INTO about VALUES (?)", [known.rule])
    each = known.clients
    db.executemany(
        "INSERT OR IGNORE INTO client VALUES (?, ?, ?)", [(c.name, c.epsilon, c.delta) for c in each]
    )
    changes = [(change.number, change.client, change.by) for change in known.changes]
    db.executemany("INSERT INTO change VALUES (?, ?, ?, '', '')", changes)
    if known.run is not None:
        its = known.run
        about = [run, its.plan, its.method, its.unit, its.adjacency, its.promise, its.rounds, its.changes]
        db.execute("INSERT INTO run VALUES (?, ?, '', ?, ?, ?, ?, ?, 0, ?, '', NULL)", about)
        record(db, run, plan, np.arange(len(plan.clients)))
        rows = [
            (run, row.round, row.phase, row.state, json.dumps(row.refused), row.changes)
            for row in known.rounds
        ]
        db.executemany("INSERT INTO round VALUES (NULL, ?, ?, ?, ?, ?, '', '', ?)", rows)
    return LedgerReader.over(db)


def _digest(rows: PlanRows) -> str:
    return hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()
