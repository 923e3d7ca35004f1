"""Charts of a report, as data: groups of runs and plans, over rounds and by budget class."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from discretion.arrays import Floats, Ints
from discretion.plan.advice import round_noise
from discretion.plan.plan import Plan
from discretion.plan.summary import noise_over_clip, treatment
from discretion.report import numbers
from discretion.report.chart import SYMBOLS, Chart, Series, Style, categories, linear, logarithmic, rounds
from discretion.report.run_group import COUNTED, BudgetClass, Group, class_names

ORDERS = 8  # --order-1 … in page.css
HEADROOM = 1.12  # above the budget
MOST_SHOWN = 2.0  # budgets
WIDE = 16.0  # what is further apart than this gets a logarithmic axis
EVERYBODY = Style("--line-strong", "", "solid")
BUDGET = Style("--ink", "", "dot")
ALIKE = 1e-3  # relative differences below this cannot be seen


@dataclass(frozen=True)
class Panel:
    """One budget class of the chart on spending."""

    name: str
    clients: int
    parts: tuple[tuple[Group, BudgetClass], ...]


def class_styles(names: Sequence[str]) -> list[Style]:
    """Return a style for each class, strictest first, spread over the order of colours."""
    place = np.linspace(1, ORDERS, len(names)).round().astype(int) if len(names) > 1 else [4]
    return [Style(f"--order-{k}", SYMBOLS[i % len(SYMBOLS)], "solid") for i, k in enumerate(place)]


def over_time(plan: Plan, member: Ints) -> dict[str, Floats]:
    """Return, by title, (S, C) values in each phase by the (N,) classes of clients.

    Clips and multipliers are medians of clients with a positive rate; NaN where a class has none.
    """
    phases, sizes = plan.phases, np.bincount(member)
    multipliers = [_medians(noise_over_clip(plan, phase), phase.rate > 0, member) for phase in phases]
    return {
        "Chance of taking part": np.array([np.bincount(member, phase.expected) / sizes for phase in phases]),
        "Clip": np.array([_medians(phase.clip, phase.rate > 0, member) for phase in phases]),
        "Noise multiplier": np.array(multipliers),
    }


def _medians(column: Floats, taking: NDArray[np.bool_], member: Ints) -> Floats:
    """Return the (C,) median of each class."""
    found = np.full(int(member.max()) + 1, np.nan)
    for k in range(len(found)):
        mine = column[(member == k) & taking & np.isfinite(column)]
        if mine.size:
            found[k] = np.median(mine)
    return found


def varies(values: Floats) -> bool:
    """Return whether values differ visibly along the first axis."""
    known = values[:, ~np.isnan(values).any(axis=0)] if values.ndim == 2 else values[~np.isnan(values)]
    if not known.size:
        return False
    low, high = known.min(axis=0), known.max(axis=0)
    return bool(np.any(high - low > ALIKE * np.abs(high)))


def some(epsilon: Floats, size: Ints, most: int) -> Ints:
    """Return at most `most` clients of finite budget, evenly picked, in order of budget and size."""
    order = np.lexsort([size, epsilon])
    order = order[np.isfinite(epsilon[order])]
    if len(order) > most:
        order = order[np.linspace(0, len(order) - 1, most).round().astype(np.int64)]
    return order


Lines = list[tuple[str, Style]]  # of a legend


def class_lines(names: Sequence[str]) -> Lines:
    return [(name, look.bare) for name, look in zip(names, class_styles(names), strict=True)]


def method_lines(groups: Iterable[Group], bare: bool = False) -> Lines:
    return [(part.label, part.look.bare if bare else part.look) for part in groups]


def accuracy(groups: Sequence[Group]) -> Chart:
    """Return a line for each method, in a band of one standard deviation over seeds."""
    lines = []
    for part in groups:
        curve = part.curve
        several = curve.runs > 1
        pairs = zip(curve.mean, curve.std, strict=True)
        shown = [f"{100 * m:.2f}" + (f" ± {100 * s:.2f}" if several else "") + " %" for m, s in pairs]
        spread = curve.std.tolist() if several else ()
        values = (curve.rounds.tolist(), curve.mean.tolist())
        lines.append(Series(part.label, *values, part.look, shown=shown, spread=spread))
    low = min(float((part.curve.mean - part.curve.std).min()) for part in groups)
    high = max(float((part.curve.mean + part.curve.std).max()) for part in groups)
    room = 0.06 * max(high - low, 0.02)
    last = max(int(part.curve.rounds[-1]) for part in groups)
    y = linear("Accuracy", max(0.0, low - room), min(1.0, high + room), 6, percent=True)
    return Chart(tuple(lines), rounds(last, 10), y, 340)


def spending(panel: Panel, as_share: bool) -> Chart:
    """Return epsilon over rounds in one budget class: a line for each method, the budget dotted.

    Every axis ends just above its class's budget, so that the dotted lines of the classes stand level.
    Where budgets differ within a class, each client is drawn as its share of its own budget.
    """
    some = panel.parts[0][1]
    budget = 1.0 if as_share else some.budget
    lines: list[Series] = []
    for part, mine in panel.parts:
        look = part.look
        if any(_coincide(mine, other) for _, other in panel.parts[: len(lines)]):
            look = replace(look, dash="gaps")  # lets the line show that lies beneath
        curve = mine.curve / mine.budget if as_share else mine.curve
        pairs = [numbers.spent_of(float(value), mine.budget) for value in mine.curve]
        shown = [f"{used} of {allowed}" for used, allowed in pairs]
        lines.append(Series(part.label, list(mine.rounds), curve.tolist(), look.bare, shown=shown))
    highest = max(budget, *(max(line.y) for line in lines))
    if any(mine.spent <= mine.budget for _, mine in panel.parts):  # who overspends does not flatten others
        highest = min(highest, MOST_SHOWN * budget)
    title = "Share of the budget" if as_share else "Epsilon"
    y = linear(title, 0.0, highest * HEADROOM, 5, percent=as_share)
    return Chart(tuple(lines), rounds(some.rounds[-1], 5), y, 210, levels=((budget, "--ink"),))


def _coincide(one: BudgetClass, other: BudgetClass) -> bool:
    return len(one.curve) == len(other.curve) and np.allclose(one.curve, other.curve, rtol=0.02)


def panels(groups: Sequence[Group]) -> list[Panel]:
    """Return a panel for each budget class, with the methods that spend a finite epsilon on it.

    Public data, which has no budget, gets no panel.
    """
    private = [part for part in groups if part.verdict in COUNTED]
    found = []
    for k, name in enumerate(class_names(private)):
        parts = [(part, part.classes[k]) for part in private if math.isfinite(part.classes[k].spent)]
        if parts and all(math.isfinite(mine.budget) for _, mine in parts):
            found.append(Panel(name, parts[0][1].clients, tuple(parts)))
    return found


def participation(groups: Sequence[Group]) -> Chart:
    """Return bars by budget class: its share of all clients, and of the updates each method expects."""
    names = class_names(groups)
    classes = groups[0].classes
    share = np.array([mine.clients for mine in classes], dtype=np.float64)
    bars = [_shares("all clients", share / share.sum(), EVERYBODY)]
    for part in groups:
        updates = np.array([mine.updates for mine in part.classes])
        bars.append(_shares(part.label, updates / max(updates.sum(), 1e-300), part.look))
    highest = max(max(series.y) for series in bars)
    y = linear("Share", 0.0, highest * 1.05, 5, percent=True)
    return Chart(tuple(bars), categories("Budget class", names), y, 270)


def _shares(name: str, values: Floats, look: Style) -> Series:
    shown = [f"{100 * value:.1f} %" for value in values]
    return Series(name, list(range(len(values))), values.tolist(), look, "bars", shown)


def decision(groups: Sequence[Group], title: str, values: Mapping[str, Sequence[float]]) -> Chart:
    """Return bars by budget class, one for each method: `values` by label, NaN where there is none."""
    bars = []
    for part in groups:
        known = [(k, value) for k, value in enumerate(values[part.label]) if math.isfinite(value)]
        across, up = [float(k) for k, _ in known], [value for _, value in known]
        bars.append(Series(part.label, across, up, part.look, "bars"))
    highest = max(max(series.y, default=0.0) for series in bars)
    x = categories("Budget class", class_names(groups))
    return Chart(tuple(bars), x, linear(title, 0.0, 1.05 * highest, 5), 230)


def noise(groups: Sequence[Group]) -> Chart | None:
    """Return noise over signal in each round, a line for each method; None where all of them are level."""
    lines = []
    for part in groups:
        plan, population = part.first.plan, part.first.population
        each = [round_noise(phase, population) for phase in plan.phases]
        level = [noise / signal if signal > 0 else math.nan for noise, signal in each]
        x, y = stretches([phase.rounds for phase in plan.phases], np.array(level))
        lines.append(Series(part.label, x, y, part.look.bare))
    if not any(varies(np.array(line.y)) for line in lines):
        return None
    last = max(part.first.plan.rounds for part in groups)
    highest = max(max(line.y, default=0.0) for line in lines)
    return Chart(tuple(lines), rounds(last, 10), linear("Noise over signal", 0.0, 1.08 * highest, 6), 270)


def stretches(lengths: Sequence[int], values: Floats) -> tuple[list[float], list[float]]:
    """Return the corners of a line that is level in each stretch of rounds; NaN stretches are left out."""
    ends, known = np.cumsum(lengths), np.isfinite(values)
    corners = np.stack([ends - lengths + 1, ends], axis=1)[known].reshape(-1)
    return corners.astype(float).tolist(), np.repeat(values[known], 2).tolist()


def changing(plan: Plan, names: Sequence[str], member: Ints) -> dict[str, Chart]:
    """Return, by title, what changes from round to round, by the (N,) budget classes of clients."""
    columns, key = over_time(plan, member), class_lines(names)
    if treatment(plan).public:
        del columns["Chance of taking part"]
    return {title: by_round(plan, values, key, title) for title, values in columns.items() if varies(values)}


def by_round(plan: Plan, values: Floats, key: Lines, title: str) -> Chart:
    """Return (S, C) values over rounds: a line for each class of a legend, level in each phase."""
    lengths, columns = [phase.rounds for phase in plan.phases], zip(key, values.T, strict=True)
    lines = [Series(name, *stretches(lengths, column), look) for (name, look), column in columns]
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    wide = 0 < WIDE * low < high
    y_axis = logarithmic(title, low, high) if wide else linear(title, 0.0, 1.08 * high, 5)
    return Chart(tuple(lines), rounds(plan.rounds, 6), y_axis, 250)
