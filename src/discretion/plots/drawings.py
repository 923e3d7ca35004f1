"""The charts of a plan, as data."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from discretion.accounting import Certificate
from discretion.plan import Plan
from discretion.population import Floats, Ints, Population
from discretion.report import numbers
from discretion.report.chart import (
    SYMBOLS,
    Axis,
    Chart,
    Series,
    Shape,
    Style,
    linear,
    logarithmic,
    rounds,
)
from discretion.report.charts import HEADROOM, ORDERS
from discretion.report.curves import some

MOST_POINTS = 2000
WIDE = 8.0  # what is further apart than this gets a logarithmic axis


def spending(certificate: Certificate, styles: Sequence[Style], in_steps: bool) -> Chart | None:
    """Epsilon after each round, a line for each budget class; its budget dotted in the same colour.

    Between two points the later one holds, and is drawn so where a client has its turns now and then. None
    where nothing is finite.
    """
    curve = certificate.spending
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
        bare = replace(look, symbol="")
        lines.append(Series(name, list(curve.rounds), spent.tolist(), bare, shape, shown))
    if not lines:
        return None
    y = linear("Epsilon", 0.0, highest * HEADROOM, 6)
    return Chart(tuple(lines), rounds(curve.rounds[-1], 10), y, 340, tuple(levels))


def details(curves: Mapping[str, Floats], styles: Sequence[Style], title: str) -> Chart:
    """Curves that a method gives over rounds, by their names."""
    lines = [
        Series(name, list(range(len(values))), values.tolist(), look)
        for (name, values), look in zip(curves.items(), styles, strict=True)
    ]
    last = max(len(values) for values in curves.values()) - 1
    low = min(0.0, min(float(values.min()) for values in curves.values()))
    high = max(float(values.max()) for values in curves.values())
    return Chart(tuple(lines), rounds(max(last, 1), 8), linear(title, low, 1.08 * high, 6), 290)


def by_epsilon(
    population: Population, values: Floats, title: str, pool: Ints | None = None, level: float | None = None
) -> Chart:
    """(N,) values against budgets, a point for each client; by `pool` where sums are of groups."""
    who = some(population.epsilon, population.size, MOST_POINTS)
    who = who[~np.isnan(values[who])]
    groups = np.zeros(len(population), dtype=np.int64) if pool is None else pool
    clouds = []
    for number, group in enumerate(np.unique(groups[who])):
        mine = who[groups[who] == group]
        look = Style(f"--method-{(number + 1) % 7 + 1}", SYMBOLS[number % len(SYMBOLS)], "none")
        clouds.append(
            Series(
                title if pool is None else group_name(int(group)),
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


def group_name(group: int) -> str:
    return f"group {group + 1}, summed apart"


def selection(population: Population, chance: Floats, title: str) -> Chart:
    """Each client at its budget and its number of records, in the colour of its chance to be drawn."""
    who = some(population.epsilon, population.size, MOST_POINTS)
    top = float(chance[who].max(initial=0.0)) or 1.0
    order = np.minimum((chance[who] / top * ORDERS).astype(int), ORDERS - 1) + 1
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


def group_of(plan: Plan) -> Ints | None:
    """(N,) in whose sum a client is, where there are a few sums that stay the same."""
    first = plan.phases[0]
    same = all(phase.pool is first.pool or np.array_equal(phase.pool, first.pool) for phase in plan.phases)
    return first.pool if same and 1 < len(first.noise) <= len(SYMBOLS) and not first.own_pools else None


def _budgets(epsilon: Floats) -> Axis:
    low, high = (float(epsilon.min()), float(epsilon.max())) if len(epsilon) else (0.0, 1.0)
    if high > WIDE * low > 0:
        return logarithmic("Budget (epsilon)", low, high)
    room = 0.05 * (high - low) or 0.1 * high
    return linear("Budget (epsilon)", max(0.0, low - room), high + room, 6)
