"""Content of the operator's tab: state, accuracy, participation, spending, exhaustion, noise and time."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from discretion.accounting import Pld
from discretion.plan.advice import noise_to_signal
from discretion.plan.plan import Plan
from discretion.report import charts, numbers, wording
from discretion.report.charts import Panel
from discretion.report.run_group import COUNTED, BudgetClass, ClassRows, Group
from discretion.runs.read import Timed

TIMED = {
    "Training": ("train",),
    "Evaluation": ("evaluate",),
    "Privacy": ("select", "clip", "noise", "combine"),
    "On disk": ("ledger", "write"),
}
LONGEST = 10  # times the rounds of the plan: no later round is looked for
USED_UP = 0.98  # of a budget: a plan that uses this share of it lasts as long as the budget
NEAR = 0.01  # relative, of the round that is found


def refusals(part: Group) -> tuple[str, str]:
    """Return how many clients were there or refused, and rounds refused by clients' accounts."""
    counted = sum(int(run.ledger.refusals.sum()) for run in part.runs if run.ledger)
    guards = sum(len(run.refusals) for run in part.runs)
    said = list(dict.fromkeys(run.turnout.words for run in part.runs if run.turnout))
    said += [f"{numbers.count(guards, 'guard')} said no"] if guards else []
    if not counted and not guards:
        return ("none", "") if not said else (said[0], "none refused")
    refused = f"{numbers.count(counted, 'round')} refused by clients’ accounts"
    return said[0] if said else refused, "; ".join([*said[1:], *([refused] if said else [])])


def took(part: Group) -> tuple[str, str]:
    """Return the time from the first round to the last, in simulations only: time tells who took part."""
    seconds = [run.took for run in part.runs if run.took is not None]
    if not seconds:
        return "–", ""
    return numbers.duration(sum(seconds) / len(seconds)), "mean of runs" if seconds[1:] else ""


def told_accuracy(groups: Sequence[Group]) -> str:
    ends = (f"{part.label} ends at {wording.score(part.accuracy)}" for part in groups if part.accuracy)
    return f"Accuracy on the test records over rounds. {'; '.join(ends)}."


def told_participation(groups: Sequence[Group]) -> str:
    said = []
    for part in groups:
        total = max(sum(mine.updates for mine in part.classes), 1e-300)
        shares = (f"{mine.name} {numbers.percent(mine.updates / total)}" for mine in part.classes)
        said.append(f"{part.label}: {', '.join(shares)}")
    return f"Share of the expected updates by budget class. {'; '.join(said)}."


def told_spending(panel: Panel) -> str:
    ends = (
        f"{part.label} ends at {' of '.join(numbers.spent_of(mine.spent, mine.budget))}"
        for part, mine in panel.parts
    )
    return f"Epsilon spent over rounds in budget class {panel.name}. {'; '.join(ends)}."


def as_share(groups: Sequence[Group]) -> bool:
    """Return whether budgets differ within a class, so that only shares of them can be drawn together."""
    return any(mine.budgets[0] != mine.budgets[1] for part in groups for mine in part.classes)


def drawn(panels: Sequence[Panel]) -> list[Group]:
    """Return the methods of panels, each once."""
    return list({part.label: part for panel in panels for part, _ in panel.parts}.values())


def spending(panels: Sequence[Panel], as_share: bool) -> str:
    """Return an introduction to the figures on spending."""
    if not panels:
        return "No method here has a finite epsilon that could be drawn."
    intro = " ".join(filter(None, map(wording.use_of_budgets, drawn(panels))))
    if as_share:
        intro += " Drawn as shares, because clients of one class have different budgets."
    if any(mine.spent > charts.MOST_SHOWN * mine.budget for panel in panels for _, mine in panel.parts):
        intro += " Lines that pass twice the budget leave the figure; the table beneath has them whole."
    return intro


def running_out(groups: Sequence[Group]) -> Sequence[ClassRows]:
    """Return rows on exhaustion, of methods with finite epsilons and classes with finite budgets."""
    found = []
    for part in groups:
        if part.verdict in COUNTED and all(math.isfinite(mine.spent) for mine in part.classes):
            exhausted = enumerate(zip(part.classes, exhaustion(part), strict=True))
            rows = [(k, _cells(mine, at, part)) for k, (mine, at) in exhausted if math.isfinite(mine.budget)]
            found.append((part, "", rows))
    return found


def _cells(mine: BudgetClass, found: "Exhaustion", part: Group) -> list[str]:
    used = numbers.percent(float(mine.curve[-1]) / mine.budget)
    return [mine.name, _after(found.half), _after(found.most), used, _lasts(found, part)]


@dataclass(frozen=True)
class Exhaustion:
    """Of the client that uses most of its budget in a class."""

    half: int | None  # the first round after which half of the budget is spent; None: never
    most: int | None  # and nine tenths
    out: int | None  # the last round that the budget would allow; None: longer than is looked for
    known: bool  # whether `out` was looked for: not where turns are public, or a fixed number is drawn


def exhaustion(part: Group) -> list[Exhaustion]:
    """Return the exhaustion of each budget class of a group's first run; its epsilons are finite."""
    found = []
    for k, mine in enumerate(part.classes):
        half, most, plan = _first(mine, 0.5), _first(mine, 0.9), part.first.plan
        known = not part.first.treatment.public and plan.sampling == "poisson"
        ends = not known or mine.curve[-1] >= USED_UP * mine.budget
        found.append(Exhaustion(half, most, plan.rounds if ends else _longest(part, k), known))
    return found


def _first(mine: BudgetClass, share: float) -> int | None:
    reached = np.flatnonzero(mine.curve >= share * mine.budget)
    return mine.rounds[reached[0]] if len(reached) else None


def _longest(part: Group, k: int) -> int | None:
    run = part.first
    client = run.worst[[k]]
    delta, budget = run.population.delta[client], float(run.population.epsilon[client][0])
    plan = _going_on(run.plan)

    def within(rounds: int) -> bool:
        return bool(Pld().epsilon(plan.steps(rounds).of(client), delta)[0] <= budget)

    low, high = run.plan.rounds, plan.rounds
    if within(high):
        return None
    if not within(low):
        return low
    while high - low > max(1, NEAR * low):
        middle = (low + high) // 2
        low, high = (middle, high) if within(middle) else (low, middle)
    return low


def _going_on(plan: Plan) -> Plan:
    """Return the plan with its last phase repeated, up to LONGEST times the rounds."""
    last = plan.phases[-1]
    longer = replace(last, rounds=last.rounds + (LONGEST - 1) * plan.rounds)
    return replace(plan, phases=(*plan.phases[:-1], longer))


def _after(found: int | None) -> str:
    return "never" if found is None else f"by round {found:,}"


def _lasts(found: Exhaustion, part: Group) -> str:
    rounds = part.first.plan.rounds
    if not found.known:
        return f"the {rounds:,} rounds of the plan"
    if found.out is None:
        return f"beyond round {LONGEST * rounds:,}"
    return f"until round {found.out:,}" + (", its last" if found.out == rounds else "")


def noisy(groups: Sequence[Group]) -> list[tuple[Group, list[str]]]:
    """Return, of methods with noise, noise over signal in a round and over the run."""
    levels = [(part, noise_to_signal(part.first.plan, part.first.population)) for part in groups]
    return [(part, list(map(numbers.plain, level))) for part, level in levels if 0 < level[1] < math.inf]


def time(groups: Sequence[Group]) -> list[tuple[Group, list[str]]]:
    """Return the time of a round and its shares; of simulations only."""
    rows = []
    for part in groups:
        profiles = [run.profile for run in part.runs if run.simulated and run.profile and run.profile.rounds]
        if not profiles:
            continue
        count = sum(profile.rounds for profile in profiles)
        total = sum(sum(profile.seconds.values()) for profile in profiles) or 1.0
        shares = [_sum(profiles, names) / total for names in TIMED.values()]
        each = [numbers.percent(share, 0) for share in (*shares, 1 - sum(shares))]
        rows.append((part, [f"{1000 * total / count:,.0f} ms", *each]))
    return rows


def _sum(profiles: Sequence[Timed], names: Sequence[str]) -> float:
    return sum(profile.seconds.get(name, 0.0) for profile in profiles for name in names)
