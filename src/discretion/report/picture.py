"""Charts as one SVG file, readable on light and dark pages: for Markdown, where no style sheet is at hand."""

from collections.abc import Mapping, Sequence

import numpy as np

from discretion.report import page, svg
from discretion.report.chart import Chart, Series, Style, linear, rounds

LEFT, TOP, HEIGHT, BOTTOM = 56, 46, 300, 40  # pixels: margins, and the height of a drawing
WIDE, NARROW, NAMES, GAP = 450, 230, 254, 15  # widths of a drawing alone and beside others; room for names
DASHES = ("solid", "dash", "dot")
METHODS = ("#d55e00", "#1f82c4", "#009e73", "#cc79a7", "#b8860b", "#7f5fc4", "#a9744f")
ORDER = ("#8a63d2", "#7b74e0", "#5f86d6", "#3f93c9", "#1f9aa6", "#2f9e6e", "#7f9a2a", "#b08a1e")
COLOURS = {  # of page.css, in shades for any background
    **{f"--method-{k}": colour for k, colour in enumerate(METHODS, 1)},
    **{f"--order-{k}": colour for k, colour in enumerate(ORDER, 1)},
    **dict.fromkeys(("--ink", "--method-none", "--line-strong"), "#888"),
}

Curve = tuple[Sequence[float], Sequence[float], Sequence[float]]  # rounds, (E,) shares, (E,) spread or none


Words = tuple[float, float, str, str]  # place across and down, the words, their colour or none


def draw(title: str, charts: Mapping[str, Chart]) -> str:
    """Return the charts side by side as SVG, each under its name; names of series where their lines end."""
    wide = WIDE if len(charts) == 1 else NARROW
    drawn: list[dict[str, object]] = []
    left = float(LEFT)
    for name, chart in charts.items():
        names = _names(chart, wide)
        down = [(-6, HEIGHT * (1 - chart.y.place(at)) + 4, words, "") for at, words in chart.y.ticks]
        across = [(wide * chart.x.place(at), HEIGHT + 18, words, "") for at, words in chart.x.ticks]
        place = {"title": name, "left": left, "width": wide}
        drawn.append(place | {"chart": chart, "names": names, "down": down, "across": across})
        left += wide + (NAMES if names else LEFT)
    height = TOP + HEIGHT + BOTTOM
    size = {"top": TOP, "height": HEIGHT, "size": f"{left:.0f} {height}"}
    return page.fragment("picture.svg", title=title, charts=drawn, colours=COLOURS, **size)


def shares_over_rounds(title: str, curves: Mapping[str, Curve]) -> Chart:
    """Return a line for each curve, named by its key, with its spread as a band; the axis is in per cent."""
    lines = []
    for number, (name, (x, y, spread)) in enumerate(curves.items()):
        dash = DASHES[number // len(METHODS) % len(DASHES)]
        look = Style(f"--method-{number % len(METHODS) + 1}", "", dash)
        lines.append(Series(name, x, y, look, shown=[f"{100 * value:.1f} %" for value in y], spread=spread))
    bands = [(np.array(line.y), np.array(line.spread or [0.0])) for line in lines]
    low = min(float((mean - spread).min()) for mean, spread in bands)
    high = max(float((mean + spread).max()) for mean, spread in bands)
    room = 0.06 * max(high - low, 0.02)
    y_axis = linear(title, max(0.0, low - room), high + room, 6, percent=True)
    return Chart(tuple(lines), rounds(max(int(line.x[-1]) for line in lines), 6), y_axis, HEIGHT)


def _names(chart: Chart, wide: float) -> list[Words]:
    """Return each line's name and last value, where the line ends."""
    lines = [series for series in chart.series if series.shape in ("line", "stairs")]
    places = _apart([HEIGHT * (1 - chart.y.place(series.y[-1])) for series in lines])
    return [
        (wide + 8, place + 4, f"{line.name} {svg.shown(line)[-1]}", COLOURS[line.look.colour])
        for line, place in zip(lines, places, strict=True)
    ]


def _apart(places: Sequence[float]) -> list[float]:
    """Return the places in the same order, moved so that names do not lie on each other."""
    order = np.argsort(places, kind="stable")
    moved = np.array(places, dtype=np.float64)[order]
    for i in range(1, len(moved)):
        moved[i] = max(moved[i], moved[i - 1] + GAP)
    moved -= max(0.0, moved.max(initial=0.0) - HEIGHT)
    out = np.empty(len(moved))
    out[order] = moved
    return [float(place) for place in out]
