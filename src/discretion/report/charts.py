"""The charts of a report, as data: of groups of runs, over rounds and by budget class."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from discretion.advice import round_noise
from discretion.methods import METHODS
from discretion.population import Floats, Ints
from discretion.report import numbers
from discretion.report.chart import SYMBOLS, Chart, Series, Style, categories, linear, logarithmic, rounds
from discretion.report.comparing import class_names
from discretion.report.curves import OverTime
from discretion.report.groups import BudgetClass, Group

COLOURS = 7  # --method-1 … in page.css
ORDERS = 8  # --order-1 … in page.css
HEADROOM = 1.12  # above the budget
MOST_SHOWN = 2.0  # budgets
WIDE = 16.0  # what is further apart than this gets a logarithmic axis
EVERYBODY = Style("--line-strong", "", "solid")


@dataclass(frozen=True)
class Panel:
    """One budget class of the chart on spending."""

    name: str
    clients: int
    parts: tuple[tuple[Group, BudgetClass], ...]


def styles(groups: Sequence[Group]) -> dict[str, Style]:
    """By label. Colours follow the order of the methods, not of their results; no privacy is grey."""
    known = list(METHODS)
    order = sorted(
        groups,
        key=lambda part: (known.index(part.method) if part.method in known else len(known), part.label),
    )
    made: dict[str, Style] = {}
    private = 0
    for number, part in enumerate(order):
        symbol = SYMBOLS[number % len(SYMBOLS)]
        if part.verdict == "none":
            made[part.label] = Style("--method-none", symbol, "dash")
        else:
            again = private // COLOURS
            dash = ("solid", "dashdot", "longdash")[again % 3]
            made[part.label] = Style(f"--method-{private % COLOURS + 1}", symbol, dash)
            private += 1
    return made


def class_styles(names: Sequence[str]) -> list[Style]:
    """Strictest first; spread over the order of colours."""
    place = np.linspace(1, ORDERS, len(names)).round().astype(int) if len(names) > 1 else [4]
    return [Style(f"--order-{k}", SYMBOLS[i % len(SYMBOLS)], "solid") for i, k in enumerate(place)]


def accuracy(groups: Sequence[Group], style: Mapping[str, Style]) -> Chart:
    """A line for each method with a band of one standard deviation over seeds."""
    lines = []
    for part in groups:
        curve = part.curve
        several = curve.runs > 1
        pairs = zip(curve.mean, curve.std, strict=True)
        shown = [f"{100 * m:.2f}" + (f" ± {100 * s:.2f}" if several else "") + " %" for m, s in pairs]
        spread = curve.std.tolist() if several else ()
        values = (curve.rounds.tolist(), curve.mean.tolist())
        lines.append(Series(part.label, *values, style[part.label], shown=shown, spread=spread))
    low = min(float((part.curve.mean - part.curve.std).min()) for part in groups)
    high = max(float((part.curve.mean + part.curve.std).max()) for part in groups)
    room = 0.06 * max(high - low, 0.02)
    last = max(int(part.curve.rounds[-1]) for part in groups)
    y = linear("Accuracy", max(0.0, low - room), min(1.0, high + room), 6, percent=True)
    return Chart(tuple(lines), rounds(last, 10), y, 340)


def spending(panel: Panel, style: Mapping[str, Style], as_share: bool) -> Chart:
    """Epsilon over rounds in one budget class, a line for each method, the budget dotted.

    Every axis ends just above its class's budget, so that the dotted lines of the classes stand level.
    Where budgets differ within a class, each client is drawn as its share of its own budget.
    """
    some = panel.parts[0][1]
    budget = 1.0 if as_share else some.budget
    lines: list[Series] = []
    for part, mine in panel.parts:
        look = style[part.label]
        if any(_coincide(mine, other) for _, other in panel.parts[: len(lines)]):
            look = replace(look, dash="gaps")  # lets the line show that lies beneath
        curve = mine.curve / mine.budget if as_share else mine.curve
        pairs = [numbers.spent_of(float(value), mine.budget) for value in mine.curve]
        shown = [f"{used} of {allowed}" for used, allowed in pairs]
        bare = replace(look, symbol="")
        lines.append(Series(part.label, list(mine.rounds), curve.tolist(), bare, shown=shown))
    highest = max(budget, *(max(line.y) for line in lines))
    if any(mine.spent <= mine.budget for _, mine in panel.parts):  # who overspends does not flatten others
        highest = min(highest, MOST_SHOWN * budget)
    title = "Share of the budget" if as_share else "Epsilon"
    y = linear(title, 0.0, highest * HEADROOM, 5, percent=as_share)
    return Chart(tuple(lines), rounds(some.rounds[-1], 5), y, 210, levels=((budget, "--ink"),))


def _coincide(one: BudgetClass, other: BudgetClass) -> bool:
    return len(one.curve) == len(other.curve) and np.allclose(one.curve, other.curve, rtol=0.02)


def shares_needed(groups: Sequence[Group]) -> bool:
    """Whether clients of one class have different budgets."""
    return any(mine.budgets[0] != mine.budgets[1] for part in groups for mine in part.classes)


def panels(groups: Sequence[Group]) -> list[Panel]:
    """For each budget class, the methods whose spending can be drawn; public data has no budget."""
    private = [part for part in groups if part.verdict in ("within", "over")]
    found = []
    for k, name in enumerate(class_names(private)):
        parts = [(part, part.classes[k]) for part in private if math.isfinite(part.classes[k].spent)]
        if parts and all(math.isfinite(mine.budget) for _, mine in parts):
            found.append(Panel(name, parts[0][1].clients, tuple(parts)))
    return found


def participation(groups: Sequence[Group], style: Mapping[str, Style]) -> Chart:
    """By budget class: its share of all clients, and of all updates that are expected under each method."""
    names = class_names(groups)
    classes = groups[0].classes
    share = np.array([mine.clients for mine in classes], dtype=np.float64)
    bars = [_shares("all clients", share / share.sum(), EVERYBODY)]
    for part in groups:
        updates = np.array([mine.updates for mine in part.classes])
        bars.append(_shares(part.label, updates / max(updates.sum(), 1e-300), style[part.label]))
    highest = max(max(series.y) for series in bars)
    y = linear("Share", 0.0, highest * 1.05, 5, percent=True)
    return Chart(tuple(bars), categories("Budget class", names), y, 270)


def _shares(name: str, values: Floats, look: Style) -> Series:
    shown = [f"{100 * value:.1f} %" for value in values]
    return Series(name, list(range(len(values))), values.tolist(), look, "bars", shown)


def decision(
    groups: Sequence[Group], style: Mapping[str, Style], title: str, values: Mapping[str, Sequence[float]]
) -> Chart:
    """By budget class, a bar for each method: `values` by label, NaN where there is none."""
    bars = []
    for part in groups:
        known = [(k, value) for k, value in enumerate(values[part.label]) if math.isfinite(value)]
        across, up = [float(k) for k, _ in known], [value for _, value in known]
        bars.append(Series(part.label, across, up, style[part.label], "bars"))
    highest = max(max(series.y, default=0.0) for series in bars)
    x = categories("Budget class", class_names(groups))
    return Chart(tuple(bars), x, linear(title, 0.0, 1.05 * highest, 5), 230)


def noise(groups: Sequence[Group], style: Mapping[str, Style]) -> Chart:
    """Noise over signal in each round, a line for each method that has noise."""
    lines = []
    for part in groups:
        plan, population = part.first.plan, part.first.population
        each = [round_noise(phase, population) for phase in plan.phases]
        ends = np.cumsum([phase.rounds for phase in plan.phases])
        level = [noise / signal if signal > 0 else math.nan for noise, signal in each]
        x, y = stretches(np.concatenate([[1], ends[:-1] + 1]), int(ends[-1]), np.array(level))
        lines.append(Series(part.label, x, y, replace(style[part.label], symbol="")))
    last = max(part.first.plan.rounds for part in groups)
    highest = max(max(line.y, default=0.0) for line in lines)
    return Chart(tuple(lines), rounds(last, 10), linear("Noise over signal", 0.0, 1.08 * highest, 6), 270)


def stretches(start: Ints, last: int, values: Floats) -> tuple[list[float], list[float]]:
    """A level for each stretch of rounds as the corners of a line; stretches without a value are left out."""
    ends = np.append(start[1:] - 1, last)
    known = np.isfinite(values)
    corners = np.stack([start, ends], axis=1)[known].reshape(-1)
    return corners.astype(float).tolist(), np.repeat(values[known], 2).tolist()


def by_round(
    time: OverTime, values: Floats, names: Sequence[str], styles: Sequence[Style], title: str
) -> Chart:
    """(S, C) values over rounds, level for each stretch of rounds."""
    lines = []
    for k, (name, look) in enumerate(zip(names, styles, strict=True)):
        x, y = stretches(time.start, time.last, values[:, k])
        lines.append(Series(name, x, y, replace(look, symbol="")))
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    y_axis = linear(title, 0.0, 1.08 * high, 5)
    if 0 < WIDE * low < high:
        y_axis = logarithmic(title, low, high)
    return Chart(tuple(lines), rounds(time.last, 6), y_axis, 250)
