"""State of a run: by budget class, as a JSON record, and in sentences."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from discretion.accounting.certificate import share_of
from discretion.audit import cautions
from discretion.audit.cautions import Caution
from discretion.audit.verdicts import contradicted
from discretion.clients.turnout import Orders, clauses, nobody, orders_until, sentence
from discretion.ledger.reader import nothing
from discretion.report import numbers
from discretion.runs import preflight
from discretion.watch.follow import Seen


@dataclass(frozen=True)
class Class:
    """A budget class of a run.

    `spent` is of the client that uses most of its budget, at the next point of the certificate's curve: never
    too small. `left` is of the same client; where other runs spend from the ledger, or budgets were changed,
    it is the least that a client has left of its budget now, over all runs.
    """

    name: str
    clients: int
    budget: float
    spent: float
    left: float
    share: float  # of the budget that is spent; 0 of an infinite one
    refusing: int  # clients whose budgets do not allow the round that was last reserved
    refusals: int  # rounds that single clients refused because of their budgets
    declined: int | None  # clients whose guards refused an order; None where that tells whose coins came up

    @property
    def finite(self) -> bool:
        """Whether a share of the budget can be told."""
        return math.isfinite(self.budget) and math.isfinite(self.spent)


def classes(seen: Seen) -> tuple[Class, ...]:
    """Return the budget classes, strictest first; none where the certificate does not fit the run."""
    if seen.run is None or seen.run.broken:
        return ()
    run, count = seen.run, len(seen.run.classes[0])
    member = run.classes[1]
    curve = run.certificate.spending
    spent = curve.after(seen.counted)
    share, left = share_of(spent, curve.budget), np.maximum(curve.budget - spent, 0.0)
    life = run.refreshed().life
    left = np.where(np.isinf(spent), 0.0, left) if life is None else life.least(member)
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


def answered(seen: Seen) -> str:
    """Return who was ready, there and trained, where clients are elsewhere, and rounds without any."""
    answers = seen.answers
    if seen.run is None:
        return ""
    rest = nobody(seen.run.plan, seen.record.idle if seen.record else 0)
    first = preflight.stopped(seen.run)
    if answers.turnout is None:
        return " ".join(filter(None, (first, rest)))
    said = clauses(seen.run.plan, answers.turnout, _all_orders(seen), seen.run.tells_orders)
    return " ".join(filter(None, (first, sentence(said), rest)))


def nobody_trained(seen: Seen) -> bool:
    """Return whether all orders came to nothing; False where that may not be told, as coins are secret."""
    return seen.run is not None and seen.run.tells_orders and _all_orders(seen).nobody


def _all_orders(seen: Seen) -> Orders:
    answers = seen.answers
    until = answers.last[0] if answers.last else 0
    return Orders(answers.asked, answers.answered, until, len(answers.refused))


def warnings(seen: Seen) -> tuple[Caution, ...]:
    """Return what is wrong with the last evaluation, and with the plan."""
    run = seen.run
    if run is None:
        return ()
    found = cautions.of_plan(run.plan, run.population, run.certificate) + cautions.of_ledger(run)
    if not seen.rounds:
        return found
    last = seen.rounds[-1], seen.accuracy[-1], seen.loss[-1]
    return cautions.of_result(run, *last, finished=seen.status == "finished") + found


def record_of(seen: Seen) -> dict[str, Any]:
    """Return the state of a run as a JSON record.

    Guarantees:
        Where coins are secret, the record does not tell the pace, how many clients were asked, or which
        client refused in which round. `turnout` depends on no coin of a client that answers.
    """
    record: dict[str, Any] = {"folder": str(seen.folder), "status": seen.status, "problem": seen.problem}
    if seen.run is None:
        return record
    run, answers = seen.run, seen.answers
    doubted = contradicted(run)
    heard: dict[str, Any] = {"expected": orders_until(run.plan, seen.done), "lost": answers.lost}
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
        "within_budget": not run.broken and not doubted and len(run.certificate.overspent) == 0,
        "contradicted": doubted,
        "classes": [asdict(each) for each in classes(seen)],
        "other_runs_on_these_budgets": _others(seen),
        "not_ready": preflight.stopped(run),
        "turnout": asdict(answers.turnout) if answers.turnout else None,
        "answers": heard,
        "warnings": [each.to_record() for each in warnings(seen)],
        "refused": dict(run.why_refused(why for _, why in answers.refused.values())),
    }


def _others(seen: Seen) -> int | None:
    """Return how many other runs spend from the same budgets; None where a run's own ledger cannot tell."""
    others = seen.record.other_runs if seen.record else 0
    shared = seen.run is not None and seen.run.config.ledger and seen.record
    return others if others or shared else None


def lead(seen: Seen) -> str:
    """Return who was there and trained, and the progress of a run, in a few sentences."""
    return " ".join(filter(None, (answered(seen), _progress(seen))))


def _progress(seen: Seen) -> str:
    if seen.run is None and seen.problem:
        return f"{seen.problem}."
    if seen.run is None:
        begin = f"discretion run config.toml --out {seen.folder}"
        return f"There is no run in {seen.folder} yet. This page shows it as soon as it is there: {begin}"
    rounds = seen.run.plan.rounds
    reached = f" at {numbers.percent(seen.accuracy[-1])} accuracy" if seen.accuracy else ""
    far = f"Round {seen.done:,} of {rounds:,}{reached}"
    if seen.status == "finished":
        return f"All {rounds:,} rounds are done{reached}."
    if seen.status == "ready":
        return f"The plan of {rounds:,} rounds is made and certified. Training has not begun."
    if seen.status == "stopped":
        return f"{far}. No process is training it now: it goes on with discretion run {seen.folder} --resume."
    if seen.run.secret:
        return f"{far}."
    if seen.left is None:
        return f"{far}. How long it will take is not known yet."
    return f"{far}. About {numbers.duration(seen.left)} left."


def pace(seconds: float) -> str:
    return f"{1 / seconds:.3g} rounds a second" if 0 < seconds < 1 else f"{seconds:.3g} seconds a round"


def missing(seen: Seen, rows: Sequence[Class]) -> list[str]:
    """Return sentences on refusals, lost answers and unreadable files; none where all is well."""
    found = []
    refusing, refusals = sum(row.refusing for row in rows), sum(row.refusals for row in rows)
    if refusals:
        words = numbers.count(refusing, "client")
        found.append(
            f"The budgets of {words} do not allow the round that was last reserved; so far clients refused "
            f"{numbers.count(refusals, 'time')}."
        )
    answers = seen.answers
    if answers.refused:
        found.append(f"The guards of {numbers.count(len(answers.refused), 'client')} refused an order.")
    if answers.lost:
        found.append(f"{_orders(seen)} not answered.")
    if seen.problem:
        found.append(f"{seen.problem[:1].upper()}{seen.problem[1:]}.")
    return found


def _orders(seen: Seen) -> str:
    """Return how many orders were lost of those sent; where coins are secret, of those the plan expects."""
    lost, run = seen.answers.lost, seen.run
    if run is None or not run.secret:
        return f"{lost:,} of {seen.answers.asked:,} orders were"
    wanted = numbers.plain(orders_until(run.plan, seen.done))
    were = "was" if lost == 1 else "were"
    return f"{numbers.count(lost, 'order')}, where the plan expects {wanted} so far, {were}"
