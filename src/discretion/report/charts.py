"""The figures as plotly JSON, with colours left as names that the page gives a value in each theme."""

import csv
import html
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from discretion.methods import METHODS
from discretion.report import numbers
from discretion.report.comparing import class_names
from discretion.report.groups import BudgetClass, Group

Figure = dict[str, Any]

COLOURS = 7  # --method-1 … in page.css
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star")
BAND = "0.16"  # opacity
GAPS = "7px,7px"  # lets the line show that lies beneath
HEADROOM = 1.12  # above the budget
MOST_SHOWN = 2.0  # budgets


@dataclass(frozen=True)
class Style:
    """How a method looks in every figure and table of one report."""

    colour: str  # a custom property of page.css
    symbol: str
    dash: str


@dataclass(frozen=True)
class Panel:
    """One budget class of the figure on spending."""

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


def accuracy(groups: Sequence[Group], style: dict[str, Style]) -> Figure:
    """A line for each method with a band of one standard deviation over seeds."""
    bands: list[Figure] = []
    lines: list[Figure] = []
    for part in groups:
        curve, look, name = part.curve, style[part.label], html.escape(part.label)
        rounds = curve.rounds.tolist()
        if curve.runs > 1:
            low, high = (curve.mean - curve.std).tolist(), (curve.mean + curve.std).tolist()
            bands.append(
                {
                    "x": rounds + rounds[::-1],
                    "y": high + low[::-1],
                    "fill": "toself",
                    "fillcolor": f"{look.colour}/{BAND}",
                    "line": {"width": 0},
                    "mode": "lines",
                    "hoverinfo": "skip",
                    "name": name,
                }
            )
        spread = [f" ± {100 * s:.1f}" if curve.runs > 1 else "" for s in curve.std]
        lines.append(
            {
                **_line(look, rounds, curve.mean.tolist(), name),
                "mode": "lines+markers" if len(rounds) <= 30 else "lines",
                "text": spread,
                "hovertemplate": f"{name}  <b>%{{y:.1%}}</b>%{{text}}<extra></extra>",
            }
        )
    frame = layout(340)
    frame["xaxis"] |= round_axis(max(int(part.curve.rounds[-1]) for part in groups), ticks=10)
    frame["yaxis"] |= {"tickformat": ".0%", "nticks": 7}
    return {"data": bands + lines, "layout": frame}


def spending(panel: Panel, style: dict[str, Style], as_share: bool) -> Figure:
    """Epsilon over rounds in one budget class, a line for each method, the budget dotted.

    Every axis ends just above its class's budget, so that the dotted lines of the classes stand level.
    Where budgets differ within a class, each client is drawn as its share of its own budget.
    """
    some = panel.parts[0][1]
    budget = 1.0 if as_share else some.budget
    lines: list[Figure] = []
    for part, mine in panel.parts:
        name, look = html.escape(part.label), style[part.label]
        if any(_coincide(mine, other) for _, other in panel.parts[: len(lines)]):
            look = replace(look, dash=GAPS)
        curve = mine.curve / mine.budget if as_share else mine.curve
        shown = [numbers.spent_of(float(value), mine.budget) for value in mine.curve]
        lines.append(
            {
                **_line(look, list(mine.rounds), curve.tolist(), name),
                "mode": "lines",
                "text": [f"{used} of {allowed}" if as_share else used for used, allowed in shown],
                "hovertemplate": f"{name}  <b>%{{text}}</b><extra></extra>",
            }
        )
    limit = {
        "x": [some.rounds[0], some.rounds[-1]],
        "y": [budget, budget],
        "mode": "lines",
        "line": {"color": "--ink", "width": 1.5, "dash": "dot"},
        "name": "budget",
        "hoverinfo": "skip",
    }
    highest = max(budget, *(max(line["y"]) for line in lines))
    frame = layout(210)
    frame["xaxis"] |= round_axis(some.rounds[-1], ticks=5)
    if any(mine.spent <= mine.budget for _, mine in panel.parts):  # who overspends does not flatten others
        highest = min(highest, MOST_SHOWN * budget)
    frame["yaxis"] |= {"range": [0, highest * HEADROOM], "nticks": 5}
    if as_share:
        frame["yaxis"]["tickformat"] = ".0%"
    return {"data": [limit, *lines], "layout": frame}


def _coincide(one: BudgetClass, other: BudgetClass) -> bool:
    return len(one.curve) == len(other.curve) and np.allclose(one.curve, other.curve, rtol=0.02)


def shares_needed(groups: Sequence[Group]) -> bool:
    """Whether clients of one class have different budgets."""
    return any(mine.budgets[0] != mine.budgets[1] for part in groups for mine in part.classes)


def _line(look: Style, x: list[int], y: list[float], name: str) -> Figure:
    return {
        "x": x,
        "y": y,
        "name": name,
        "line": {"color": look.colour, "width": 2.5, "dash": look.dash},
        "marker": {"color": look.colour, "size": 7, "symbol": look.symbol},
    }


def round_axis(last: int, ticks: int) -> Figure:
    """Round numbers are whole: the ticks, too."""
    steps = (factor * 10**power for power in range(9) for factor in (1, 2, 5))
    step = next(step for step in steps if step * ticks >= last)
    return {"dtick": step, "tick0": 0, "title": {"text": "Round", "standoff": 6, "font": {"size": 12}}}


def layout(height: int) -> Figure:
    axis = {
        "fixedrange": True,  # a finger on a phone scrolls the page, not the figure
        "gridcolor": "--line",
        "linecolor": "--line-strong",
        "zeroline": False,
        "automargin": True,
        "tickfont": {"size": 12},
    }
    pointer = {
        "unifiedhovertitle": {"text": "Round %{x}"},
        "spikecolor": "--line-strong",
        "spikethickness": -2,  # negative: without an outline
        "spikedash": "solid",
    }
    return {
        "height": height,
        "margin": {"l": 8, "r": 12, "t": 10, "b": 8},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "--font", "size": 13, "color": "--muted"},
        "showlegend": False,
        "dragmode": False,
        "hovermode": "x unified",
        "hoverdistance": -1,
        "hoverlabel": {
            "bgcolor": "--surface",
            "bordercolor": "--line-strong",
            "font": {"color": "--ink", "size": 13},
        },
        "xaxis": {**axis, **pointer, "showgrid": False, "showline": True, "ticks": "outside", "ticklen": 4},
        "yaxis": dict(axis),
    }


def panels(groups: Sequence[Group]) -> list[Panel]:
    """For each budget class, the methods whose spending can be drawn; public data has no budget."""
    private = [part for part in groups if part.verdict in ("within", "over")]
    found = []
    for k, name in enumerate(class_names(private)):
        parts = [(part, part.classes[k]) for part in private if math.isfinite(part.classes[k].spent)]
        if parts and all(math.isfinite(mine.budget) for _, mine in parts):
            found.append(Panel(name, parts[0][1].clients, tuple(parts)))
    return found


def table(groups: Sequence[Group]) -> str:
    """All that is drawn, as CSV in full precision."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["figure", "method", "budget_class", "budget", "round", "value", "std", "runs"])
    for part in groups:
        curve, label = part.curve, _inert(part.label)
        for at, mean, std in zip(curve.rounds, curve.mean, curve.std, strict=True):
            spread = float(std) if curve.runs > 1 else ""
            writer.writerow(["accuracy", label, "", "", int(at), float(mean), spread, curve.runs])
    for panel in panels(groups):
        for part, mine in panel.parts:
            for at, value in zip(mine.rounds, mine.curve, strict=True):
                cells = [_inert(part.label), panel.name, mine.budget, at, float(value), ""]
                writer.writerow(["epsilon spent", *cells, len(part.runs)])
    return out.getvalue()


def _inert(text: str) -> str:
    """A spreadsheet takes a cell that begins so for a formula."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text
