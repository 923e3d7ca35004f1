"""Plan page: figures of one plan, chosen by what the plan holds, not by its method."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from discretion.accounting import Certificate
from discretion.arrays import Floats, Ints
from discretion.audit import statements
from discretion.methods import Details, find
from discretion.plan.plan import ADVERSARIES, Plan
from discretion.plan.population import Population
from discretion.plan.summary import Treatment, ends, treatment
from discretion.report import charts, numbers, page
from discretion.report.chart import SYMBOLS, Axis, Chart, Series, Shape, Style, linear, logarithmic, rounds
from discretion.report.run_group import VERDICTS, verdict

HEADINGS = {
    "plan": "Plan",
    "drawn": "Who is drawn",
    "budgets": "By budget",
    "spending": "Spending",
    "rounds": "Over rounds",
    "details": "Behind it",
    "classes": "In numbers",
}
NOISE = {"tight": "As little as keeps every budget", "paper": "By the paper’s own formula"}
MOST_POINTS = 2000
WIDE_BUDGETS = 8.0  # what is further apart than this gets a logarithmic axis
KEPT, BROKEN = ("good", "kept"), ("bad", "broken")


@dataclass(frozen=True)
class Figure:
    """A figure with its title above."""

    name: str  # the element's id
    chart: Chart
    title: str
    aside: str = ""
    most: str = ""  # at the end of a scale of colours


def render(plan: Plan, population: Population, certificate: Certificate, details: Details) -> str:
    mine, method = treatment(plan), find(plan.method)
    names, member = population.classes()
    drawn, over_rounds = _drawn(population, mine, details), _over_rounds(plan, names, member, mine)
    by_budget, same = _by_budget(plan, population, mine)
    shown = {"drawn": drawn, "rounds": over_rounds, "details": details.rounds or details.numbers}
    many, clients = numbers.count(plan.rounds, "round"), numbers.count(len(population), "client")
    return page.render(
        "plan.html",
        f"Plan by {method.title}",
        {name: words for name, words in HEADINGS.items() if shown.get(name, True)},
        anchor="plan",
        marks=_marks(certificate),
        heading=f"{method.title}: {many} for {clients}",
        lead=f"{method.idea} {statements.protection(certificate)}",
        plan=plan,
        population=population,
        certificate=certificate,
        mine=mine,
        method=method,
        turn=_turn(mine),
        noise=NOISE,
        details=details,
        details_styles=_details_styles,
        details_chart=_details_chart,
        charts=charts,
        drawn=drawn,
        by_budget=by_budget,
        same=same,
        pools=_pools(plan),
        spending=_spending(certificate, mine.public),
        over_rounds=over_rounds,
        classes=_classes(_names(names), member, certificate, mine),
        against=_against(_names(names), member, certificate),
        promised=_promised(certificate),
        observers=[statements.observer(certificate, who).capitalize() for who in ADVERSARIES],
        secret=not mine.public,
    )


def _marks(certificate: Certificate) -> list[tuple[str, str]]:
    paper = [("warn", "paper mode")] if certificate.accounting == "paper" else []
    return [VERDICTS[verdict([certificate])], *paper]


def _turn(mine: Treatment) -> str:
    if mine.batch is None:
        return ""
    steps = "1 noisy step" if mine.steps == (1, 1) else f"{numbers.span(mine.steps)} noisy steps"
    batch = ends(mine.batch)
    return f"a turn: {steps}, a record in each with chance {numbers.span(batch)}" if batch else ""


def _drawn(population: Population, mine: Treatment, details: Details) -> list[Figure]:
    """Return figures of chances of a draw over budget and size, where turns are public."""
    if not mine.public or not np.isfinite(population.epsilon).any():
        return []
    chance = mine.turns / max(mine.turns.sum(), 1.0) if details.chance is None else details.chance
    title = "Share of all turns" if details.chance is None else "Chance in one draw"
    panels = []
    if len(np.unique(population.size)) > 1:
        drawing, most = selection_chart(population, chance, title), numbers.percent(float(chance.max()), 2)
        panels.append(Figure("figure-selection", drawing, title, "by budget and number of records", most))
    heading = f"{title}, over the share of the data"
    share = population.size / population.size.sum()
    ratio = _by_epsilon(population, chance / share, heading, level=1.0)
    aside = "1 (dotted): as often as a draw without bias"
    return [*panels, Figure("figure-selection-ratio", ratio, heading, aside)]


def _by_budget(plan: Plan, population: Population, mine: Treatment) -> tuple[list[Figure], list[str]]:
    """Return figures of what differs between clients, against budgets, and sentences on what does not."""
    often = "Turns in the whole plan" if mine.public else "Chance of taking part, mean over rounds"
    columns = {
        often: mine.turns if mine.public else mine.turns / plan.rounds,
        "Clip": mine.clip.mean(axis=0),
        "Noise multiplier": mine.multiplier.mean(axis=0),
    }
    pool, panels, same = _group_of(plan), [], []
    private = np.isfinite(population.epsilon)
    for number, (title, column) in enumerate(columns.items()):
        finite = np.where(np.isfinite(column), column, np.nan)
        if private.any() and charts.varies(finite[private]):
            panels.append(
                Figure(f"figure-budget-{number}", _by_epsilon(population, finite, title, pool), title)
            )
        elif (found := ends(column)) is not None:
            value = "unbounded" if math.isinf(found[0]) else numbers.span(found)
            same.append(f"{title}: {value} for every client.")
    return panels, same


def _pools(plan: Plan) -> charts.Lines:
    pool = _group_of(plan)
    return [] if pool is None else [(_group_name(k), _group_style(k)) for k in range(len(np.unique(pool)))]


def _over_rounds(plan: Plan, names: Sequence[str], member: Ints, mine: Treatment) -> list[Figure]:
    """Return figures of what changes from round to round: by budget class, and of all clients together."""
    panels = []
    for number, (title, drawing) in enumerate(charts.changing(plan, names, member).items()):
        aside = "" if title.startswith("Chance") else "median client of each class"
        panels.append(Figure(f"figure-round-{number}", drawing, title, aside))
    time = charts.over_time(plan, member)
    if charts.varies(time.cohort):
        title = "Turns in a round" if mine.public else "Clients expected in a round"
        drawing = charts.by_round(time, time.cohort[:, None], [title], [Style("--ink", "", "solid")], title)
        panels.append(Figure("figure-round-cohort", drawing, title, "all clients together"))
    return panels


Row = tuple[list[str], tuple[str, str]]  # cells, and a mark


def _classes(names: Sequence[str], member: Ints, certificate: Certificate, mine: Treatment) -> list[Row]:
    rows = []
    for k, name in enumerate(names):
        who = member == k
        spent, budget = certificate.spent[who], certificate.budget[who]
        often = mine.turns[who] if mine.public else mine.rate[:, who]
        found = map(ends, (often, mine.clip[:, who], mine.multiplier[:, who]))
        shown = ["–" if each is None else numbers.span(each) for each in found]
        cells = [name, f"{int(who.sum()):,}", *shown, numbers.spent(float(spent.max()))]
        rows.append((cells, KEPT if (spent <= budget).all() else BROKEN))
    return rows


def _against(names: Sequence[str], member: Ints, certificate: Certificate) -> list[list[str]]:
    rows = []
    for k, name in enumerate(names):
        worst = (float(certificate.epsilon[who][member == k].max()) for who in ADVERSARIES)
        rows.append([name, *map(numbers.spent, worst)])
    return rows


def _promised(certificate: Certificate) -> list[tuple[str, str]]:
    """Return a mark for each adversary: whether all budgets hold against it, or do not have to."""
    last, marks = ADVERSARIES.index(certificate.promise), []
    for place, who in enumerate(ADVERSARIES):
        within = bool((certificate.epsilon[who] <= certificate.budget).all())
        marks.append(KEPT if within else BROKEN if place <= last else ("plain", "not promised"))
    return marks


def _names(names: Sequence[str]) -> list[str]:
    return [name.replace("ε inf", "public data").replace("inf", "∞") for name in names]


def write(plan: Plan, population: Population, certificate: Certificate, details: Details, out: Path) -> None:
    """Write the page to `out`, one HTML file that needs nothing else."""
    page.write(render(plan, population, certificate, details), out, "figures")


def _spending(certificate: Certificate, in_steps: bool) -> Chart | None:
    """Return epsilon after each round: a line for each budget class, its budget dotted in the same colour.

    With `in_steps` the later of two points holds between them, as where clients have single turns. Return
    None where no epsilon is finite.
    """
    curve, styles = certificate.spending, charts.class_styles(certificate.spending.classes)
    lines: list[Series] = []
    levels: list[tuple[float, str]] = []
    highest = 0.0
    for name, budget, spent, look in zip(curve.classes, curve.budget, curve.epsilon, styles, strict=True):
        if not np.isfinite(spent).all():
            continue
        highest = max(highest, float(spent.max()))
        if math.isfinite(budget):
            highest = max(highest, float(budget))
            levels.append((float(budget), look.colour))
        shown = [numbers.spent(float(value)) for value in spent]
        shape: Shape = "stairs" if in_steps else "line"
        lines.append(Series(name, list(curve.rounds), spent.tolist(), look.bare, shape, shown))
    if not lines:
        return None
    y = linear("Epsilon", 0.0, highest * charts.HEADROOM, 6)
    return Chart(tuple(lines), rounds(curve.rounds[-1], 10), y, 340, tuple(levels))


def _details_styles(curves: Mapping[str, Floats]) -> charts.Lines:
    dashes = ("solid", "dash", "dot", "dashdot")
    return [(name, Style(f"--method-{k % 7 + 1}", "", dashes[k % 4])) for k, name in enumerate(curves)]


def _details_chart(curves: Mapping[str, Floats], title: str) -> Chart:
    """Return the curves over rounds that a method explains itself by."""
    lines = [
        Series(name, list(range(len(curves[name]))), curves[name].tolist(), look)
        for name, look in _details_styles(curves)
    ]
    last = max(len(values) for values in curves.values()) - 1
    low = min(0.0, min(float(values.min()) for values in curves.values()))
    high = max(float(values.max()) for values in curves.values())
    return Chart(tuple(lines), rounds(max(last, 1), 8), linear(title, low, 1.08 * high, 6), 290)


def _by_epsilon(
    population: Population, values: Floats, title: str, pool: Ints | None = None, level: float | None = None
) -> Chart:
    """Return (N,) values against budgets: a point for each client, a series for each pool."""
    who = charts.some(population.epsilon, population.size, MOST_POINTS)
    who = who[~np.isnan(values[who])]
    groups = np.zeros(len(population), dtype=np.int64) if pool is None else pool
    clouds = []
    for number, group in enumerate(np.unique(groups[who])):
        mine = who[groups[who] == group]
        clouds.append(
            Series(
                title if pool is None else _group_name(int(group)),
                population.epsilon[mine].tolist(),
                values[mine].tolist(),
                _group_style(number),
                "points",
                labels=[f"client {population.client[i]}" for i in mine],
            )
        )
    highest = float(max(values[who].max(initial=0.0), level or 0.0))
    levels = ((level, "--ink"),) if level is not None else ()
    y = linear(title, min(0.0, float(values[who].min(initial=0.0))), 1.08 * highest, 6)
    return Chart(tuple(clouds), _budgets(population.epsilon[who]), y, 270, levels)


def _group_name(group: int) -> str:
    return f"group {group + 1}, summed apart"


def _group_style(number: int) -> Style:
    return Style(f"--method-{(number + 1) % 7 + 1}", SYMBOLS[number % len(SYMBOLS)], "none")


def selection_chart(population: Population, chance: Floats, title: str) -> Chart:
    """Return each client at its budget and number of records, coloured by its chance to be drawn."""
    who = charts.some(population.epsilon, population.size, MOST_POINTS)
    top = float(chance[who].max(initial=0.0)) or 1.0
    order = np.minimum((chance[who] / top * charts.ORDERS).astype(int), charts.ORDERS - 1) + 1
    cloud = Series(
        title,
        population.epsilon[who].tolist(),
        population.size[who].astype(float).tolist(),
        Style("--order-4", "circle", "none"),
        "points",
        shown=[
            f"{100 * mine:.3g} %; {size:,} records"
            for mine, size in zip(chance[who], population.size[who], strict=True)
        ],
        labels=[f"client {population.client[i]}" for i in who],
        colours=[f"--order-{k}" for k in order],
    )
    low, high = float(population.size[who].min()), float(population.size[who].max())
    room = 0.06 * (high - low)
    y = linear("Records", max(0.0, low - room), high + room, 7)
    return Chart((cloud,), _budgets(population.epsilon[who]), y, 400)


def _group_of(plan: Plan) -> Ints | None:
    """Return the (N,) pool of each client, or None unless the plan has a few pools that never change."""
    first = plan.phases[0]
    same = all(phase.pool is first.pool or np.array_equal(phase.pool, first.pool) for phase in plan.phases)
    return first.pool if same and 1 < len(first.noise) <= len(SYMBOLS) and not first.own_pools else None


def _budgets(epsilon: Floats) -> Axis:
    low, high = (float(epsilon.min()), float(epsilon.max())) if len(epsilon) else (0.0, 1.0)
    if high > WIDE_BUDGETS * low > 0:
        return logarithmic("Budget (epsilon)", low, high)
    room = 0.05 * (high - low) or 0.1 * high
    return linear("Budget (epsilon)", max(0.0, low - room), high + room, 6)
