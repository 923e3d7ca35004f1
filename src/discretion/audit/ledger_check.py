"""Whether a ledger has of a run what its plan says, row by row: neither more nor less."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from discretion.accounts import record
from discretion.book import SCHEMA
from discretion.plan import Plan
from discretion.population import Population
from discretion.report.reading import Run

TABLES = {"member": "place", "price": "price", "phase": "phase, part"}  # what a plan is written down in
DAMAGED = (sqlite3.Error, ValueError, TypeError, LookupError)


@dataclass(frozen=True)
class Finding:
    what: str
    holds: bool | None  # None where it could not be compared
    said: str  # what was found, in words


def finding(what: str, holds: bool, said: str, otherwise: str) -> Finding:
    return Finding(what, holds, said if holds else otherwise)


def all_hold(findings: tuple[Finding, ...]) -> bool | None:
    """None where all hold but some that could not be compared."""
    found = {each.holds for each in findings}
    return False if False in found else None if None in found else True


def reconcile(db: sqlite3.Connection, run: Run) -> Iterator[Finding]:
    """Of a run that the ledger knows.

    Guarantees:
        Who is in the run, prices and phases are, in every row, what the plan makes anew.
        Rounds on record are 1, 2, … without a gap, each in its phase of the plan; all but the last are
        released. By the planned rule only clients whose budget was lowered since the run was admitted
        refuse; by the adaptive rule refusals are not judged.
        Every client is on record with the delta, and the epsilon, or one that it was changed from.
    """
    for what, check in (
        ("plan on record", _of_plan),
        ("rounds, one by one", _of_rounds),
        ("refusals", _of_refusals),
        ("budgets on record", _of_clients),
    ):
        try:
            yield check(db, run, what)
        except DAMAGED as problem:
            yield Finding(what, False, f"the ledger is damaged: {problem}")


def _of_plan(db: sqlite3.Connection, run: Run, what: str) -> Finding:
    odd = [name for name, rows in written(run.about.id, run.plan).items() if rows != _rows(db, name, run)]
    about = db.execute("SELECT method, rounds FROM run WHERE id = ?", [run.about.id]).fetchone()
    odd += [] if about == (run.plan.method, run.plan.rounds) else ["run"]
    said = "clients, prices and phases are those of the plan"
    return finding(what, not odd, said, f"not as the plan makes it: {', '.join(odd)}")


def written(name: str, plan: Plan) -> dict[str, list[tuple[object, ...]]]:
    """The plan, written down anew: the rows of each table."""
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(SCHEMA)
        record(db, name, plan, np.arange(len(plan.clients)))
        return {
            table: db.execute(f"SELECT * FROM {table} ORDER BY {order}").fetchall()
            for table, order in TABLES.items()
        }


def _rows(db: sqlite3.Connection, table: str, run: Run) -> list[tuple[object, ...]]:
    query = f"SELECT * FROM {table} WHERE run = ? ORDER BY {TABLES[table]}"
    return db.execute(query, [run.about.id]).fetchall()


def _of_rounds(db: sqlite3.Connection, run: Run, what: str) -> Finding:
    query = "SELECT round, phase, state FROM round WHERE run = ? ORDER BY number"
    rows = db.execute(query, [run.about.id]).fetchall()
    ends = np.cumsum([phase.rounds for phase in run.plan.phases])
    phases = np.searchsorted(ends, np.arange(1, len(rows) + 1)).tolist()
    expected = [(number, phase, "committed") for number, phase in enumerate(phases, start=1)]
    last = [(*row[:2], "committed") if row[2] == "reserved" else row for row in rows[-1:]]
    same = rows[:-1] + last == expected and len(rows) <= run.plan.rounds
    odd = next((i for i, pair in enumerate(zip(rows, expected, strict=True), 1) if pair[0] != pair[1]), 0)
    said = f"{len(rows)} on record, each in its turn and phase"
    return finding(what, same, said, f"entry {odd or len(rows)} is not the round that the plan has there")


def _of_refusals(db: sqlite3.Connection, run: Run, what: str) -> Finding:
    (rule,) = db.execute("SELECT rule FROM about").fetchone()
    if rule != run.config.rule:
        return Finding(what, False, f"the ledger’s rule is {rule}, in config.toml {run.config.rule}")
    query = "SELECT refused, changes, round FROM round WHERE run = ? AND refused <> '[]' ORDER BY round"
    rows = db.execute(query, [run.about.id]).fetchall()
    if not rows:
        return Finding(what, True, "nobody refused")
    if rule == "adaptive":
        return Finding(
            what, None, f"in {len(rows)} rounds some refused, as the adaptive rule has it: not judged"
        )
    (since,) = db.execute("SELECT changes FROM run WHERE id = ?", [run.about.id]).fetchone()
    place = {name: i for i, name in enumerate(run.population.client)}
    changes = db.execute("SELECT number, client FROM change WHERE epsilon < 0").fetchall()
    lowered = [(number, place.get(client, -1)) for number, client in changes if number > since]
    for refused, last, number in rows:
        odd = set(json.loads(refused)) - {client for change, client in lowered if change <= last}
        if odd:
            said = f"in round {number}, {len(odd)} clients refused whose budget was not lowered"
            return Finding(what, False, said)
    return Finding(what, True, "only clients refused whose budget was lowered")


def _of_clients(db: sqlite3.Connection, run: Run, what: str) -> Finding:
    known = {name: budget for name, *budget in db.execute("SELECT name, epsilon, delta FROM client")}
    steps: dict[str, list[float]] = {}
    for client, by in db.execute("SELECT client, epsilon FROM change ORDER BY number"):
        steps.setdefault(client, []).append(by)
    for name, epsilon, delta in _budgets(run.population):
        if name not in known:
            return Finding(what, False, f"client {name} is not on record")
        first, its_delta = known[name]
        at_times = np.maximum(first + np.cumsum([0.0, *steps.get(name, [])]), 0.0)
        if delta != its_delta or not (epsilon == first or np.isclose(at_times[1:], epsilon, rtol=1e-9).any()):
            said = f"client {name} has ({first:.6g}, {its_delta:.6g}), not ({epsilon:.6g}, {delta:.6g})"
            return Finding(what, False, said)
    return Finding(what, True, "every client’s epsilon and delta are those of the population")


def _budgets(population: Population) -> Iterator[tuple[str, float, float]]:
    yield from zip(population.client, population.epsilon.tolist(), population.delta.tolist(), strict=True)
