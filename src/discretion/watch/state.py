"""What is seen of a run by budget class, and as plain values for machines."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from discretion.accounting.certify import share_of
from discretion.on_record import nothing
from discretion.plan import Plan
from discretion.watch.following import Seen


@dataclass(frozen=True)
class Class:
    """Spent is that of the client that uses most of its budget: at the next point of the certificate's curve,
    so never too small. Left is of the same client, as far as this run is concerned."""

    name: str
    clients: int
    budget: float
    spent: float
    left: float
    share: float  # of the budget that is spent; 0 of an infinite one
    refusing: int  # clients whose budgets do not allow the round that was last reserved
    refusals: int  # rounds that single clients refused because of their budgets
    declined: int | None  # clients whose guards refused an order; None where that tells whose coins came up


def classes(seen: Seen) -> tuple[Class, ...]:
    """Strictest first; none where nothing is proved of the run."""
    if seen.run is None or seen.run.broken:
        return ()
    run, count = seen.run, len(seen.run.classes[0])
    member = run.classes[1]
    curve = run.certificate.spending
    spent = curve.after(seen.counted)
    share, left = share_of(spent, curve.budget), np.maximum(curve.budget - spent, 0.0)
    left = np.where(np.isinf(spent), 0.0, left)
    record = seen.record or nothing(len(member))
    refusing = np.bincount(member[record.refusing], minlength=count)
    refusals = np.bincount(member, record.refusals, count)
    guarded = [name in seen.answers.refused for name in run.population.client]
    declined = np.bincount(member[guarded], minlength=count)
    return tuple(
        Class(
            name=run.classes[0][k],
            clients=int(np.sum(member == k)),
            budget=float(curve.budget[k]),
            spent=float(spent[k]),
            left=float(left[k]),
            share=float(share[k]),
            refusing=int(refusing[k]),
            refusals=int(refusals[k]),
            declined=None if run.secret else int(declined[k]),
        )
        for k in range(count)
    )


def expected(plan: Plan, rounds: int) -> float:
    """Orders that the plan expects to go out in its first rounds, whatever the coins say."""
    left, found = rounds, 0.0
    for phase in plan.phases:
        found += min(left, phase.rounds) * float(phase.expected.sum())
        left -= min(left, phase.rounds)
    return found


def record_of(seen: Seen) -> dict[str, Any]:
    """Guarantees:
    Where coins are secret, nothing of the pace, of how many were asked, or of who refused in which round.
    """
    record: dict[str, Any] = {"folder": str(seen.folder), "status": seen.status, "problem": seen.problem}
    if seen.run is None:
        return record
    run, answers = seen.run, seen.answers
    heard: dict[str, Any] = {"expected": expected(run.plan, seen.done), "lost": answers.lost}
    if not run.secret:
        heard |= {"asked": answers.asked, "answered": answers.answered}
        refused = {name: {"round": at, "reason": why} for name, (at, why) in answers.refused.items()}
        record |= {"refused_by": refused}
    return record | {
        "id": run.about.id,
        "method": run.plan.method,
        "data": run.about.data,
        "clients": len(run.population),
        "rounds": run.plan.rounds,
        "done": seen.done,
        "counted": seen.counted,
        "seconds_a_round": seen.pace,
        "seconds_left": seen.left,
        "evaluated": list(seen.rounds),
        "accuracy": list(seen.accuracy),
        "loss": list(seen.loss),
        "certified": not run.broken,
        "within_budget": not run.broken and len(run.certificate.overspent) == 0,
        "classes": [asdict(each) for each in classes(seen)],
        "other_runs_on_these_budgets": seen.record.other_runs if seen.record else None,
        "answers": heard,
        "refused": dict(run.why_refused(why for _, why in answers.refused.values())),
    }
