"""Checks of every ledger row of a run against its plan."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from discretion.errors import LedgerError
from discretion.ledger.reader import DAMAGED, LedgerReader, plan_rows
from discretion.runs.read import Run

Outcome = tuple[bool | None, str]  # as a finding has them


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


def reconcile(ledger: LedgerReader, run: Run, left_out: Sequence[str] = ()) -> Iterator[Finding]:
    """Yield the findings on a run that the ledger knows, but those that are left out.

    Guarantees:
        Every row of the ledger is as it was written, by its chain of hashes.
        Who is in the run, prices and phases are, in every row, what the plan makes anew.
        Rounds on record are 1, 2, … without a gap, each in its phase of the plan; all but the last are
        released. By the planned rule only clients whose budget was lowered since the run was admitted
        refuse; by the adaptive rule refusals are not judged.
        Every client is on record with the delta, and the epsilon, or one that it was changed from.
    """
    checks = {
        "ledger, row by row": _of_chain,
        "plan on record": _of_plan,
        "rounds, one by one": _of_rounds,
        "refusals": _of_refusals,
        "budgets on record": _of_clients,
    }
    for what, check in checks.items():
        if what in left_out:
            continue
        try:
            yield Finding(what, *check(ledger, run))
        except DAMAGED as problem:
            yield Finding(what, False, f"the ledger is damaged: {problem}")


def _of_chain(ledger: LedgerReader, run: Run) -> Outcome:
    try:
        ledger.check()
    except LedgerError as problem:
        return False, str(problem)
    return True, "every row is as it was written"


def _of_plan(ledger: LedgerReader, run: Run) -> Outcome:
    expected, found = plan_rows(run.about.id, run.plan), ledger.plan_rows(run.about.id)
    odd = [name for name, rows in expected.items() if rows != found[name]]
    about = ledger.run(run.about.id)
    odd += [] if about and about[:2] == (run.plan.method, run.plan.rounds) else ["run"]
    if odd:
        return False, f"not as the plan makes it: {', '.join(odd)}"
    return True, "clients, prices and phases are those of the plan"


def _of_rounds(ledger: LedgerReader, run: Run) -> Outcome:
    rows = [entry[:3] for entry in ledger.rounds(run.about.id)]
    if rows and rows[-1][2] == "reserved":  # the last round alone need not be released
        rows[-1] = (*rows[-1][:2], "committed")
    ends = np.cumsum([phase.rounds for phase in run.plan.phases])
    phases = np.searchsorted(ends, np.arange(1, len(rows) + 1)).tolist()
    odd = next((n for n, row in enumerate(rows, 1) if row != (n, phases[n - 1], "committed")), 0)
    if odd or len(rows) > run.plan.rounds:
        return False, f"entry {odd or len(rows)} is not the round that the plan has there"
    return True, f"{len(rows)} on record, each in its turn and phase"


def _of_refusals(ledger: LedgerReader, run: Run) -> Outcome:
    rule = ledger.rule
    if rule != run.config.rule:
        return False, f"the ledger’s rule is {rule}, in config.toml {run.config.rule}"
    entries = [entry for entry in ledger.rounds(run.about.id) if entry.refused]
    if not entries:
        return True, f"no client’s budget refused a round, by the server’s ledger{_by_guards(run)}"
    if rule == "adaptive":
        return None, f"in {len(entries)} rounds some refused, as the adaptive rule has it: not judged"
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
            return False, f"in round {entry.round}, {len(odd)} clients refused whose budget was not lowered"
    return True, "only clients refused whose budget was lowered"


def _by_guards(run: Run) -> str:
    """Return what guards refused: the server's ledger does not know, and charges whoever may be asked."""
    if not (count := len(run.refusals)):
        return ""
    guards = "the guard of 1 client" if count == 1 else f"the guards of {count} clients"
    return f"; but {guards} refused orders. What each guard charged itself: discretion ledger RUN --reconcile"


def _of_clients(ledger: LedgerReader, run: Run) -> Outcome:
    known, population = ledger.budgets(), run.population
    steps: dict[str, list[float]] = {}
    for change in ledger.changes():
        steps.setdefault(change.client, []).append(change.by)
    declared = zip(population.epsilon.tolist(), population.delta.tolist(), strict=True)
    for name, (epsilon, delta) in zip(population.client, declared, strict=True):
        if name not in known:
            return False, f"client {name} is not on record"
        first, its_delta = known[name]
        at_times = np.maximum(first + np.cumsum([0.0, *steps.get(name, [])]), 0.0)
        if delta != its_delta or not (epsilon == first or np.isclose(at_times[1:], epsilon, rtol=1e-9).any()):
            found, expected = f"({first:.6g}, {its_delta:.6g})", f"({epsilon:.6g}, {delta:.6g})"
            return False, f"client {name} has {found}, not {expected}"
    return True, "every client’s epsilon and delta are those of the population"
