"""Sentences about a run as it is seen: how far it is, how long it will take, who is missing."""

from collections.abc import Sequence

from discretion.report import numbers
from discretion.watch.following import Seen
from discretion.watch.summary import Class, expected


def lead(seen: Seen) -> str:
    """How far it is, in one sentence or two."""
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
    return f"{far}." if seen.run.secret else f"{far}. {numbers_left(seen.left)}."


def numbers_left(seconds: float | None) -> str:
    return (
        "How long it will take is not known yet"
        if seconds is None
        else f"About {numbers.duration(seconds)} left"
    )


def pace(seconds: float) -> str:
    return f"{1 / seconds:.3g} rounds a second" if 0 < seconds < 1 else f"{seconds:.3g} seconds a round"


def missing(seen: Seen, rows: Sequence[Class]) -> list[str]:
    """Who refused, and what did not come; nothing where all is well."""
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
    """How many were lost, of how many; where coins are secret, of how many the plan expects."""
    lost, run = seen.answers.lost, seen.run
    if run is None or not run.secret:
        return f"{lost:,} of {seen.answers.asked:,} orders were"
    wanted = numbers.plain(expected(run.plan, seen.done))
    were = "was" if lost == 1 else "were"
    return f"{numbers.count(lost, 'order')}, where the plan expects {wanted} so far, {were}"
