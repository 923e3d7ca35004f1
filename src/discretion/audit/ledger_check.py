"""Checks of every ledger row of a run against its plan."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from discretion.ledger.reader import DAMAGED, LedgerReader, plan_rows
from discretion.plan.population import Population
from discretion.runs.read import Run


@dataclass(frozen=True)
class Finding:
    what: str
    holds: bool | None  # None where it could not be compared
    said: str  # what was found, in words


def finding(what: str, holds: bool, said: str, otherwise: str) -> Finding:
    return Finding(what, holds, said if holds else otherwise)


def all_hold(findings: tuple[Finding, ...]) -> bool | None:
    """Return whether all findings hold; None if the only others could not be compared."""
    found = {each.holds for each in findings}
    return False if False in found else None if None in found else True


def reconcile(ledger: LedgerReader, run: Run) -> Iterator[Finding]:
    """Yield the findings on a run that the ledger knows.

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
            yield check(ledger, run, what)
        except DAMAGED as problem:
            yield Finding(what, False, f"the ledger is damaged: {problem}")


def _of_plan(ledger: LedgerReader, run: Run, what: str) -> Finding:
    expected, found = plan_rows(run.about.id, run.plan), ledger.plan_rows(run.about.id)
    odd = [name for name, rows in expected.items() if rows != found[name]]
    about = ledger.run(run.about.id)
    odd += [] if about and about[:2] == (run.plan.method, run.plan.rounds) else ["run"]
    said = "clients, prices and phases are those of the plan"
    return finding(what, not odd, said, f"not as the plan makes it: {', '.join(odd)}")


def _of_rounds(ledger: LedgerReader, run: Run, what: str) -> Finding:
    rows = [entry[:3] for entry in ledger.rounds(run.about.id)]
    ends = np.cumsum([phase.rounds for phase in run.plan.phases])
    phases = np.searchsorted(ends, np.arange(1, len(rows) + 1)).tolist()
    expected = [(number, phase, "committed") for number, phase in enumerate(phases, start=1)]
    last = [(*row[:2], "committed") if row[2] == "reserved" else row for row in rows[-1:]]
    same = rows[:-1] + last == expected and len(rows) <= run.plan.rounds
    odd = next((i for i, pair in enumerate(zip(rows, expected, strict=True), 1) if pair[0] != pair[1]), 0)
    said = f"{len(rows)} on record, each in its turn and phase"
    return finding(what, same, said, f"entry {odd or len(rows)} is not the round that the plan has there")


def _of_refusals(ledger: LedgerReader, run: Run, what: str) -> Finding:
    rule = ledger.rule
    if rule != run.config.rule:
        return Finding(what, False, f"the ledger’s rule is {rule}, in config.toml {run.config.rule}")
    entries = [entry for entry in ledger.rounds(run.about.id) if entry.refused]
    if not entries:
        return Finding(what, True, "nobody refused")
    if rule == "adaptive":
        said = f"in {len(entries)} rounds some refused, as the adaptive rule has it: not judged"
        return Finding(what, None, said)
    admitted = ledger.run(run.about.id)
    place = {name: i for i, name in enumerate(run.population.client)}
    lowered = [
        (change.number, place.get(change.client, -1))
        for change in ledger.changes()
        if change.by < 0 and admitted and change.number > admitted.changes
    ]
    for entry in entries:
        odd = set(entry.refused) - {client for number, client in lowered if number <= entry.changes}
        if odd:
            said = f"in round {entry.round}, {len(odd)} clients refused whose budget was not lowered"
            return Finding(what, False, said)
    return Finding(what, True, "only clients refused whose budget was lowered")


def _of_clients(ledger: LedgerReader, run: Run, what: str) -> Finding:
    known = ledger.budgets()
    steps: dict[str, list[float]] = {}
    for change in ledger.changes():
        steps.setdefault(change.client, []).append(change.by)
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
