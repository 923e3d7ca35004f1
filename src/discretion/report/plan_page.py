"""Plan page: figures of one plan, chosen by what the plan holds, not by its method."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from discretion.accounting import Certificate
from discretion.arrays import Floats, Ints
from discretion.audit import statements
from discretion.methods import Details, find
from discretion.plan.plan import ADVERSARIES, Plan
from discretion.plan.population import Population
from discretion.plan.summary import Treatment, ends, treatment
from discretion.report import charts, html, numbers, page
from discretion.report.chart import SYMBOLS, Axis, Chart, Series, Shape, Style, linear, logarithmic, rounds
from discretion.report.overview import VERDICTS, verdict

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
READERS = {who: name.capitalize() for who, name in statements.OBSERVERS.items()}
MOST_POINTS = 2000
WIDE_BUDGETS = 8.0  # what is further apart than this gets a logarithmic axis
KEPT, BROKEN = html.Badge("good", "kept"), html.Badge("bad", "broken")


def render(plan: Plan, population: Population, certificate: Certificate, details: Details) -> str:
    mine, method = treatment(plan), find(plan.method)
    found = [
        _drawn(population, mine, details),
        _by_budget(plan, population, mine),
        _spending(certificate, mine),
        _over_rounds(plan, population, mine),
        _details(details),
        _classes(population, certificate, mine),
    ]
    sections = [section for section in found if section is not None]
    many, clients = numbers.count(plan.rounds, "round"), numbers.count(len(population), "client")
    return page.render(
        "plan.html",
        f"Plan by {method.title}",
        {name: HEADINGS[name] for name in ("plan", *(section.anchor for section in sections))},
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
        statements=statements,
        sections=sections,
        secret=not mine.public,
    )


def _marks(certificate: Certificate) -> list[html.Badge]:
    return [
        VERDICTS[verdict(certificate)],
        *([html.Badge("warn", "paper mode")] if certificate.accounting == "paper" else []),
    ]


def _turn(mine: Treatment) -> str:
    if mine.batch is None:
        return ""
    steps = "1 noisy step" if mine.steps == (1, 1) else f"{numbers.span(mine.steps)} noisy steps"
    batch = ends(mine.batch)
    return f"a turn: {steps}, a record in each with chance {numbers.span(batch)}" if batch else ""


def _drawn(population: Population, mine: Treatment, details: Details) -> html.Section | None:
    """Return the section on chances of a draw over budget and size, where turns are public."""
    if not mine.public or not np.isfinite(population.epsilon).any():
        return None
    planned = details.chance is not None
    chance = mine.turns / max(mine.turns.sum(), 1.0) if details.chance is None else details.chance
    title = "Chance in one draw" if planned else "Share of all turns"
    intro = (
        "The chance of each client to be the one that is drawn, which the method chose."
        if planned
        else "The share of all turns that each client was drawn for."
    )
    share = population.size / population.size.sum()
    panels = []
    if len(np.unique(population.size)) > 1:
        drawing = selection_chart(population, chance, title)
        key = html.Tagged(
            "div", ("0 % ", html.Tagged("span"), f" {numbers.percent(float(chance.max()), 2)}"), "scale"
        )
        aside = "by budget and number of records"
        panels.append(_panel("figure-selection", drawing, title, aside, key))
    heading = f"{title}, over the share of the data"
    ratio = _by_epsilon(population, chance / share, heading, level=1.0)
    aside = "1 (dotted): as often as a draw without bias"
    panels.append(_panel("figure-selection-ratio", ratio, heading, aside))
    return html.Section("drawn", "Who is drawn", intro, html.FigureGrid(panels, stacked=True))


def _by_budget(plan: Plan, population: Population, mine: Treatment) -> html.Section:
    """Return the section that draws what differs between clients against budgets, and words the rest."""
    often = "Turns in the whole plan" if mine.public else "Chance of taking part, mean over rounds"
    columns = {
        often: mine.turns if mine.public else mine.turns / plan.rounds,
        "Clip": mine.clip.mean(axis=0),
        "Noise multiplier": mine.multiplier.mean(axis=0),
    }
    pool, panels = _group_of(plan), []
    same: list[str] = []
    private = np.isfinite(population.epsilon)
    for number, (title, column) in enumerate(columns.items()):
        finite = np.where(np.isfinite(column), column, np.nan)
        if private.any() and charts.varies(finite[private]):
            drawing = _by_epsilon(population, finite, title, pool)
            panels.append(_panel(f"figure-budget-{number}", drawing, title, ""))
        elif (found := ends(column)) is not None:
            value = "unbounded" if math.isinf(found[0]) else numbers.span(found)
            same.append(f"{title}: {value} for every client.")
    groups = []
    if pool is not None:
        looks = [
            Style(f"--method-{(k + 1) % 7 + 1}", SYMBOLS[k % len(SYMBOLS)], "none") for k in np.unique(pool)
        ]
        groups = [(_group_name(k), look) for k, look in enumerate(looks)]
    intro = "A point is a client. Noise multiplier: noise over clip; larger protects more." if panels else ""
    return html.Section(
        "budgets",
        "What budgets decide",
        intro,
        [
            html.Legend(groups) if groups and panels else "",
            html.FigureGrid(panels),
            html.note(*same) if same else "",
        ],
    )


def _spending(certificate: Certificate, mine: Treatment) -> html.Section:
    heading = "Who spends what, when"
    drawing = _spending_chart(certificate, in_steps=mine.public)
    if drawing is None:
        return html.Section("spending", heading, "Epsilon is infinite: there is nothing to draw.")
    key = charts.class_legend(certificate.spending.classes)
    return html.Section(
        "spending",
        heading,
        "Epsilon that is spent after each round, against whom the plan promises to protect; in each class of "
        "the client that uses most of its budget. Dotted: the budget.",
        html.Figure("figure-spending", drawing, "Epsilon spent over rounds, by budget class", key=key),
    )


def _over_rounds(plan: Plan, population: Population, mine: Treatment) -> html.Section | None:
    """Return the section on what changes from round to round, by budget class."""
    names, member = population.classes()
    panels = []
    for number, (title, drawing) in enumerate(charts.changing(plan, names, member).items()):
        aside = "" if title.startswith("Chance") else "median client of each class"
        panels.append(_panel(f"figure-round-{number}", drawing, title, aside))
    key: html.Content = charts.class_legend(names) if panels else ""
    time = charts.over_time(plan, member)
    if charts.varies(time.cohort):
        one = [Style("--ink", "", "solid")]
        title = "Turns in a round" if mine.public else "Clients expected in a round"
        drawing = charts.by_round(time, time.cohort[:, None], [title], one, title)
        panels.append(_panel("figure-round-cohort", drawing, title, "all clients together"))
    if not panels:
        return None
    return html.Section("rounds", "What changes over rounds", parts=[key, html.FigureGrid(panels)])


def _details(details: Details) -> html.Section | None:
    if not (details.rounds or details.numbers):
        return None
    panels = []
    for number, (title, curves) in enumerate(details.rounds.items()):
        dashes = ("solid", "dash", "dot", "dashdot")
        looks = [Style(f"--method-{k % 7 + 1}", "", dashes[k % 4]) for k in range(len(curves))]
        key = html.Legend(list(zip(curves, looks, strict=True)))
        drawing = _details_chart(curves, looks, title)
        panels.append(html.Figure(f"figure-details-{number}", drawing, title, html.bold(title), key))
    rows = [[name, numbers.plain(value)] for name, value in details.numbers.items()]
    found = html.table(["Found on the way", "Value"], rows, "data", "What the method found") if rows else ""
    return html.Section(
        "details", "What is behind it", parts=[html.FigureGrid(panels), html.lines(["", found])]
    )


def _classes(population: Population, certificate: Certificate, mine: Treatment) -> html.Section:
    names, member = population.classes()
    often = "Turns" if mine.public else "Rate"
    head = ["Budget class", "Clients", often, "Clip", "Noise multiplier", "Epsilon spent", "Budgets"]
    rows: list[list[html.Content]] = []
    for k, name in enumerate(_names(names)):
        who = member == k
        spent, budget = certificate.spent[who], certificate.budget[who]
        cells = (mine.turns[who] if mine.public else mine.rate[:, who], mine.clip[:, who])
        shown = [_span(column) for column in (*cells, mine.multiplier[:, who])]
        cost = numbers.spent(float(spent.max()))
        rows.append([name, f"{int(who.sum()):,}", *shown, cost, KEPT if (spent <= budget).all() else BROKEN])
    return html.Section(
        "classes",
        "In numbers",
        parts=[
            html.table(head, rows, "data", "What each budget class does, and what that costs"),
            html.Tagged("h3", "Epsilon, by who is looking"),
            _against(names, member, certificate),
            html.note(
                *(f"{READERS[who]}: {words}." for who, words in statements.against(certificate).items())
            ),
        ],
    )


def _against(names: Sequence[str], member: Ints, certificate: Certificate) -> html.PageTable:
    rows: list[list[html.Content]] = []
    for k, name in enumerate(_names(names)):
        worst = (float(certificate.epsilon[who][member == k].max()) for who in ADVERSARIES)
        rows.append([name, *map(numbers.spent, worst)])
    promised, marks = ADVERSARIES.index(certificate.promise), []
    for place, who in enumerate(ADVERSARIES):
        within = bool((certificate.epsilon[who] <= certificate.budget).all())
        marks.append(KEPT if within else BROKEN if place <= promised else html.Badge("plain", "not promised"))
    rows.append(["all budgets", *marks])
    head = ["Budget class", *(statements.observer(certificate, who).capitalize() for who in ADVERSARIES)]
    return html.table(head, rows, "data", "Epsilon against each adversary, by budget class")


def _span(column: Floats) -> str:
    found = ends(column)
    return "–" if found is None else numbers.span(found)


def _names(names: Sequence[str]) -> list[str]:
    return [name.replace("ε inf", "public data").replace("inf", "∞") for name in names]


def _panel(name: str, drawing: Chart, title: str, aside: str, key: html.Content = "") -> html.Figure:
    described = f"{title} {aside}".strip()
    return html.Figure(name, drawing, described, (html.bold(title), f" {aside}"), key)


def write(plan: Plan, population: Population, certificate: Certificate, details: Details, out: Path) -> None:
    """Write the page to `out`, one HTML file that needs nothing else."""
    page.write(render(plan, population, certificate, details), out, "figures")


def _spending_chart(certificate: Certificate, in_steps: bool) -> Chart | None:
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


def _details_chart(curves: Mapping[str, Floats], styles: Sequence[Style], title: str) -> Chart:
    """Return the curves over rounds that a method explains itself by."""
    lines = [
        Series(name, list(range(len(values))), values.tolist(), look)
        for (name, values), look in zip(curves.items(), styles, strict=True)
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
        look = Style(f"--method-{(number + 1) % 7 + 1}", SYMBOLS[number % len(SYMBOLS)], "none")
        clouds.append(
            Series(
                title if pool is None else _group_name(int(group)),
                population.epsilon[mine].tolist(),
                values[mine].tolist(),
                look,
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
