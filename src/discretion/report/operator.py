"""Operator's tab of the report: state, accuracy, participation, spending, exhaustion, noise and time."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np

from discretion.accounting import Pld
from discretion.audit import statements
from discretion.plan.advice import noise_to_signal
from discretion.plan.plan import Plan
from discretion.report import charts, html, numbers, wording
from discretion.report.chart import Style
from discretion.report.charts import Panel, varies
from discretion.report.run_group import BudgetClass, Group, class_names, comparable
from discretion.runs.read import Run, Timed

BUDGET = ("budget", Style("--ink", "", "dot"))
TIMED = {
    "Training": ("train",),
    "Evaluation": ("evaluate",),
    "Privacy": ("select", "clip", "noise", "combine"),
    "On disk": ("ledger", "write"),
}
LONGEST = 10  # times the rounds of the plan: no later round is looked for
USED_UP = 0.98  # of a budget: a plan that uses this share of it lasts as long as the budget
NEAR = 0.01  # relative, of the round that is found


def sections(groups: Sequence[Group]) -> dict[str, html.Content]:
    """Return the contents of each section, by its anchor; nothing where there is nothing to show."""
    chosen = comparable(groups)
    return {
        "happened": _happened(groups),
        "accuracy": accuracy(groups),
        "participation": participation(chosen),
        "spending": spending(groups),
        "running_out": running_out(chosen),
        "noise": noise(chosen),
        "time": time(groups),
    }


def _happened(groups: Sequence[Group]) -> html.PageTable:
    head = ["Method", "State", "Clients in a round", "Refusals", "Took"]
    rows: list[list[html.Content]] = []
    for part in groups:
        how = "asked" if part.first.plan.reading else "expected"
        expected = f"{numbers.span(run.plan.cohort for run in part.runs)} {how}"
        coming = (expected, html.small(statements.COINS[part.first.treatment.coming]))
        rows.append([_named(part), _state(part), coming, _refusals(part), _took(part.runs)])
    return html.table(head, rows, "matrix", "State of the runs")


def _named(part: Group) -> html.Named:
    return html.Named(part.look, part.label)


def _state(part: Group) -> html.Content:
    waiting = [run for run in part.runs if not run.finished]
    if not waiting:
        return html.Badge("good", "finished"), html.small(numbers.count(part.first.plan.rounds, "round"))
    left = ", ".join(f"{run.history.done} of {run.plan.rounds} rounds" for run in waiting)
    return html.Badge("warn", f"{len(waiting)} of {len(part.runs)} unfinished"), html.small(left)


def _refusals(part: Group) -> html.Content:
    counted = sum(int(run.ledger.refusals.sum()) for run in part.runs if run.ledger)
    guards = sum(len(run.refusals) for run in part.runs)
    if not counted and not guards:
        return "none"
    refused = f"{numbers.count(counted, 'round')} refused by clients’ accounts"
    return refused, html.small(f"{numbers.count(guards, 'guard')} said no") if guards else ""


def _took(runs: Sequence[Run]) -> html.Content:
    """Return the time from the first round to the last, in simulations only: time tells who took part."""
    seconds = [found for run in runs if (found := _seconds(run)) is not None]
    if not seconds:
        return "–"
    mean = numbers.duration(sum(seconds) / len(seconds))
    return mean, html.small("mean of runs") if seconds[1:] else ""


def _seconds(run: Run) -> float | None:
    if not run.simulated or run.ledger is None or not (run.ledger.since and run.ledger.until):
        return None
    begin, end = datetime.fromisoformat(run.ledger.since), datetime.fromisoformat(run.ledger.until)
    return (end - begin).total_seconds()


def accuracy(groups: Sequence[Group]) -> html.Content:
    chosen = [part for part in comparable(groups) if len(part.curve.rounds)]
    if not chosen:
        return ""
    ends = (f"{part.label} ends at {wording.score(part.accuracy)}" for part in chosen if part.accuracy)
    key = html.Legend([(part.label, part.look) for part in chosen])
    described = f"Accuracy on the test records over rounds. {'; '.join(ends)}."
    return html.Figure("figure-accuracy", charts.accuracy(chosen), described, key=key)


def participation(groups: Sequence[Group]) -> html.Figure:
    series = [(part.label, part.look) for part in groups]
    key = html.Legend(series, [("all clients", charts.EVERYBODY)])
    chart, described = charts.participation(groups), _described_participation(groups)
    return html.Figure("figure-participation", chart, described, key=key)


def _described_participation(groups: Sequence[Group]) -> str:
    said = []
    for part in groups:
        total = max(sum(mine.updates for mine in part.classes), 1e-300)
        shares = (f"{mine.name} {numbers.percent(mine.updates / total)}" for mine in part.classes)
        said.append(f"{part.label}: {', '.join(shares)}")
    return f"Share of the expected updates by budget class. {'; '.join(said)}."


def spending(groups: Sequence[Group]) -> tuple[str, html.Content]:
    """Return an introduction, and a figure for each budget class."""
    chosen = comparable(groups)
    panels = charts.panels(chosen)
    if not panels:
        return "No method here has a finite epsilon that could be drawn.", ""
    private = list({part.label: part for panel in panels for part, _ in panel.parts}.values())
    as_share = any(mine.budgets[0] != mine.budgets[1] for part in chosen for mine in part.classes)
    intro = " ".join(filter(None, (wording.use_of_budgets(part) for part in private)))
    if as_share:
        intro += " Drawn as shares, because clients of one class have different budgets."
    if any(mine.spent > charts.MOST_SHOWN * mine.budget for panel in panels for _, mine in panel.parts):
        intro += " Lines that pass twice the budget leave the figure; the table beneath has them whole."
    names = class_names(chosen)
    figures = [_panel(k, panel, as_share, names.index(panel.name)) for k, panel in enumerate(panels)]
    key = html.Legend([(part.label, part.look.bare) for part in private], [BUDGET])
    return intro, [html.ClassFilter(names), key, html.FigureGrid(figures)]


def _panel(number: int, panel: Panel, as_share: bool, class_: int) -> html.Figure:
    ends = []
    for part, mine in panel.parts:
        used, allowed = numbers.spent_of(mine.spent, mine.budget)
        ends.append(f"{part.label} ends at {used} of {allowed}")
    description = f"Epsilon spent over rounds in budget class {panel.name}. {'; '.join(ends)}."
    caption = (html.bold(panel.name), f" {numbers.count(panel.clients, 'client')}")
    drawing = charts.spending(panel, as_share)
    return html.Figure(f"figure-spending-{number}", drawing, description, caption, of=class_)


def running_out(groups: Sequence[Group]) -> html.Content:
    private = [part for part in groups if part.verdict in ("within", "over")]
    private = [part for part in private if all(math.isfinite(mine.spent) for mine in part.classes)]
    if not private:
        return ""
    parts = []
    for part in private:
        shown = [
            (k, mine, found)
            for k, (mine, found) in enumerate(zip(part.classes, exhaustion(part), strict=True))
            if math.isfinite(mine.budget)
        ]
        rows = [
            [
                mine.name,
                _after(found.half),
                _after(found.most),
                numbers.percent(float(mine.curve[-1]) / mine.budget),
                _lasts(found, part),
            ]
            for _, mine, found in shown
        ]
        parts.append(html.RowGroup(rows, _named(part), [k for k, _, _ in shown]))
    head = ["Budget class", "Half spent", "Nine tenths", "At the end", "Lasts"]
    return html.PageTable(head, parts, "treatment", "When budgets run out, by class")


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


def noise(groups: Sequence[Group]) -> html.Content:
    levels = {part.label: noise_to_signal(part.first.plan, part.first.population) for part in groups}
    noisy = [part for part in groups if 0 < levels[part.label][1] < math.inf]
    if not noisy:
        return ""
    rows: list[list[html.Content]] = [
        [_named(part), *map(numbers.plain, levels[part.label])] for part in noisy
    ]
    chart = charts.noise(noisy)
    drawing: html.Content = ""
    if any(varies(np.array(series.y)) for series in chart.series):
        key = html.Legend([(part.label, part.look.bare) for part in noisy])
        drawing = html.Figure("figure-noise", chart, "Noise over signal in each round, by method", key=key)
    head = ["Method", "In a round", "Over the run"]
    return drawing, html.table(head, rows, "data", "Noise over signal, by method")


def time(groups: Sequence[Group]) -> html.Content:
    """Return where the time of rounds went; of simulations only."""
    rows: list[list[html.Content]] = []
    for part in groups:
        profiles = [run.profile for run in part.runs if run.simulated and run.profile and run.profile.rounds]
        if not profiles:
            continue
        count = sum(profile.rounds for profile in profiles)
        total = sum(sum(profile.seconds.values()) for profile in profiles) or 1.0
        shares = [_sum(profiles, names) / total for names in TIMED.values()]
        each = [numbers.percent(share, 0) for share in (*shares, 1 - sum(shares))]
        rows.append([_named(part), f"{1000 * total / count:,.0f} ms", *each])
    head = ["Method", "A round", *TIMED, "Other"]
    return html.table(head, rows, "data", "Time of a round, and its shares, by method") if rows else ""


def _sum(profiles: Sequence[Timed], names: Sequence[str]) -> float:
    return sum(profile.seconds.get(name, 0.0) for profile in profiles for name in names)
