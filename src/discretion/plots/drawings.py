"""The figures of a plan as plotly JSON, with colours left as names that the page gives a value."""

import html
import math
from collections.abc import Mapping, Sequence

import numpy as np

from discretion.accounting import Certificate
from discretion.plan import Plan
from discretion.plots.curves import OverTime, some
from discretion.population import Floats, Ints, Population
from discretion.report import numbers
from discretion.report.charts import HEADROOM, SYMBOLS, Figure, Style, layout, round_axis

ORDERS = 8  # --order-1 … in page.css
MOST_POINTS = 2000
WIDE = 8.0  # what is further apart than this gets a logarithmic axis
SCALE = [[k / (ORDERS - 1), f"--order-{k + 1}"] for k in range(ORDERS)]


def class_styles(names: Sequence[str]) -> list[Style]:
    """Strictest first; spread over the order of colours."""
    place = np.linspace(1, ORDERS, len(names)).round().astype(int) if len(names) > 1 else [4]
    return [Style(f"--order-{k}", SYMBOLS[i % len(SYMBOLS)], "solid") for i, k in enumerate(place)]


def spending(certificate: Certificate, styles: Sequence[Style], in_steps: bool) -> Figure:
    """Epsilon after each round, a line for each budget class; its budget dotted in the same colour.

    Between two points the later one holds, and is drawn so where a client has its turns now and then.
    """
    curve = certificate.spending
    data: list[Figure] = []
    highest = 0.0
    for name, budget, spent, look in zip(curve.classes, curve.budget, curve.epsilon, styles, strict=True):
        if not np.isfinite(spent).all():
            continue
        highest = max(highest, float(spent.max()))
        if math.isfinite(budget):
            highest = max(highest, float(budget))
            data.append(_dotted([0, curve.rounds[-1]], float(budget), look.colour))
        shown = [numbers.spent(float(value)) for value in spent]
        line = _line(look, list(curve.rounds), spent.tolist(), name)
        line["line"] |= {"shape": "vh"} if in_steps else {}
        data.append(
            {
                **line,
                "text": shown,
                "hovertemplate": f"{html.escape(name)}  <b>%{{text}}</b><extra></extra>",
            }
        )
    frame = layout(340)
    frame["xaxis"] |= round_axis(curve.rounds[-1], ticks=10)
    frame["yaxis"] |= {"range": [0, highest * HEADROOM], "nticks": 7}
    return {"data": data, "layout": frame}


def by_round(time: OverTime, values: Floats, names: Sequence[str], styles: Sequence[Style]) -> Figure:
    """(S, C) values over rounds, in steps: what holds for a stretch of rounds is drawn level."""
    data = []
    ends = np.append(time.start[1:] - 1, time.last)
    rounds = np.stack([time.start, ends], axis=1)  # (S, 2)
    for k, (name, look) in enumerate(zip(names, styles, strict=True)):
        known = ~np.isnan(values[:, k])
        line = _line(look, rounds[known].reshape(-1).tolist(), np.repeat(values[known, k], 2).tolist(), name)
        line["line"] |= {"shape": "hvh"}
        data.append(line | {"hovertemplate": f"{html.escape(name)}  <b>%{{y:.4g}}</b><extra></extra>"})
    frame = layout(250)
    frame["xaxis"] |= round_axis(time.last, ticks=6)
    frame["yaxis"] |= {"rangemode": "tozero", "nticks": 6}
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    if 0 < 2 * WIDE * low < high:
        frame["yaxis"] |= _logarithmic(low, high)
    return {"data": data, "layout": frame}


def details(curves: Mapping[str, Floats], styles: Sequence[Style]) -> Figure:
    """Curves that a method gives over rounds, by their names."""
    data = []
    for (name, values), look in zip(curves.items(), styles, strict=True):
        line = _line(look, list(range(len(values))), values.tolist(), name)
        data.append(line | {"hovertemplate": f"{html.escape(name)}  <b>%{{y:.4g}}</b><extra></extra>"})
    frame = layout(290)
    last = max(len(values) for values in curves.values()) - 1
    frame["xaxis"] |= round_axis(max(last, 1), ticks=8)
    frame["yaxis"] |= {"rangemode": "tozero", "nticks": 6}
    return {"data": data, "layout": frame}


def by_epsilon(
    population: Population,
    values: Floats,
    pool: Ints | None = None,
    level: float | None = None,
) -> Figure:
    """(N,) values against budgets, a point for each client; by `pool` where sums are of groups."""
    who = some(population.epsilon, population.size, MOST_POINTS)
    who = who[~np.isnan(values[who])]
    data: list[Figure] = []
    groups = np.zeros(len(population), dtype=np.int64) if pool is None else pool
    for number, group in enumerate(np.unique(groups[who])):
        mine = who[groups[who] == group]
        name = "" if pool is None else f"group {group + 1}"
        data.append(
            {
                "x": population.epsilon[mine].tolist(),
                "y": values[mine].tolist(),
                "mode": "markers",
                "name": name,
                "text": [html.escape(population.client[i]) for i in mine],
                "marker": {
                    "color": f"--method-{(number + 1) % 7 + 1}",
                    "size": 8,
                    "opacity": 0.75,
                    "symbol": SYMBOLS[number % len(SYMBOLS)],
                },
                "hovertemplate": f"client %{{text}}  <b>%{{y:.4g}}</b><br>budget ε %{{x:.4g}}"
                f"{'<br>' + name if name else ''}<extra></extra>",
            }
        )
    ends = population.epsilon[who]
    if level is not None and len(ends):
        data.append(_dotted([float(ends.min()), float(ends.max())], level, "--ink"))
    frame = _points_frame(ends, 270)
    frame["yaxis"] |= {"rangemode": "tozero", "nticks": 6}
    return {"data": data, "layout": frame}


def selection(population: Population, chance: Floats, title: str) -> Figure:
    """Each client at its budget and its number of records, in the colour of its chance to be drawn."""
    who = some(population.epsilon, population.size, MOST_POINTS)
    share = population.size / population.size.sum()
    colour_bar = {
        "title": {"text": title, "side": "right", "font": {"size": 12}},
        "tickformat": ".2~%",
        "thickness": 14,
        "outlinewidth": 0,
        "ticklen": 4,
    }
    points = {
        "x": population.epsilon[who].tolist(),
        "y": population.size[who].tolist(),
        "mode": "markers",
        "text": [html.escape(population.client[i]) for i in who],
        "customdata": np.stack([chance[who], share[who]], axis=1).tolist(),
        "marker": {
            "color": chance[who].tolist(),
            "colorscale": SCALE,
            "cmin": 0,
            "size": 11,
            "line": {"width": 1, "color": "--surface"},
            "colorbar": colour_bar,
        },
        "hovertemplate": "client %{text}  <b>%{customdata[0]:.3%}</b><br>budget ε %{x:.4g}, %{y:,} records, "
        "%{customdata[1]:.3%} of all<extra></extra>",
    }
    frame = _points_frame(population.epsilon[who], 420)
    frame["yaxis"] |= {"nticks": 8} | _titled("Records")
    return {"data": [points], "layout": frame}


def group_of(plan: Plan) -> Ints | None:
    """(N,) in whose sum a client is, where there are a few sums that stay the same."""
    first = plan.phases[0]
    same = all(phase.pool is first.pool or np.array_equal(phase.pool, first.pool) for phase in plan.phases)
    return first.pool if same and 1 < len(first.noise) <= len(SYMBOLS) and not first.own_pools else None


def _points_frame(epsilon: Floats, height: int) -> Figure:
    frame = layout(height)
    frame["hovermode"] = "closest"
    frame["xaxis"] = {
        **frame["yaxis"],
        "showgrid": False,
        "showline": True,
        "ticks": "outside",
        "ticklen": 4,
        **_titled("Budget (epsilon)"),
    }
    if len(epsilon) and epsilon.max() > WIDE * epsilon.min():
        frame["xaxis"] |= _logarithmic(float(epsilon.min()), float(epsilon.max()))
    return frame


def _logarithmic(low: float, high: float) -> Figure:
    """Ticks at 1, 2, 5, 10, …, each written out."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [factor * 10.0**power for power in powers for factor in (1, 2, 5)]
    return {"type": "log", "tickmode": "array", "tickvals": ticks, "ticktext": [f"{at:g}" for at in ticks]}


def _titled(title: str) -> Figure:
    return {"title": {"text": title, "standoff": 8, "font": {"size": 12}}}


def _line(look: Style, x: list[int], y: list[float], name: str) -> Figure:
    return {
        "x": x,
        "y": y,
        "name": html.escape(name),
        "mode": "lines",
        "line": {"color": look.colour, "width": 2.5, "dash": look.dash},
    }


def _dotted(x: Sequence[float], y: float, colour: str) -> Figure:
    return {
        "x": list(x),
        "y": [y, y],
        "mode": "lines",
        "line": {"color": colour, "width": 1.5, "dash": "dot"},
        "hoverinfo": "skip",
    }
