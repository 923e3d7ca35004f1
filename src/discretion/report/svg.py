"""Charts as SVG of any width, as tables and as CSV: the drawing stretches, strokes and words do not.

Nothing has to be drawn again: colours follow the theme by the style sheet, paper and phones get the same
drawing, and without scripts all but the values under the pointer is there.
"""

import csv
import io
import json
from collections.abc import Iterable, Sequence
from urllib.parse import quote

from markupsafe import Markup

from discretion.report.chart import Axis, Chart, Series

SIZE = 1000  # of the drawing to each side, stretched to its place
DASHES = {"solid": "", "dash": "6 4", "dashdot": "8 3 2 3", "longdash": "11 4", "dot": "2 4", "gaps": "7 7"}
CAPS = {"circle": "round", "ring": "round", "square": "square", "frame": "square"}
MARK, HOLE = 8.0, 4.0  # pixels
MOST_MARKED = 30  # points of a line that get a mark
BAR = 0.76  # of the room of a name, for all its bars together
MOST_ROWS = 120  # of a table
SHORT = 36  # letters, of all names beneath a chart


def shapes(chart: Chart) -> Markup:
    """Return the contents of an <svg> of SIZE by SIZE: grid, levels, and a group for each series."""
    parts = []
    for at, _ in chart.y.ticks:
        parts.append(f'<path class="grid" d="M0 {_down(chart.y, at)}H{SIZE}"/>')
    for value, colour in chart.levels:
        line = f"M0 {_down(chart.y, value)}H{SIZE}"
        parts.append(f'<path class="level" style="stroke:var({colour})" d="{line}"/>')
    bars = [series for series in chart.series if series.shape == "bars"]
    for series in chart.series:
        number = bars.index(series) if series.shape == "bars" else 0
        inside = _bars(chart, series, number, len(bars)) if series.shape == "bars" else _curve(chart, series)
        parts.append(Markup('<g data-group="{}">{}</g>').format(group_of(series), Markup(inside)))
    return Markup("".join(parts))


def _curve(chart: Chart, series: Series) -> str:
    across = [_across(chart.x, value) for value in series.x]
    down = [_down(chart.y, value) for value in series.y]
    look, parts = series.look, []
    if series.shape == "points":
        return _points(across, down, series)
    if len(series.spread):
        high = [_down(chart.y, y + s) for y, s in zip(series.y, series.spread, strict=True)]
        low = [_down(chart.y, y - s) for y, s in zip(series.y, series.spread, strict=True)]
        outline = _path(across + across[::-1], high + low[::-1])
        parts.append(f'<path class="band" style="fill:var({look.colour})" d="{outline}Z"/>')
    dash = f' stroke-dasharray="{DASHES[look.dash]}"' if DASHES[look.dash] else ""
    line = _stairs(across, down) if series.shape == "stairs" else _path(across, down)
    parts.append(f'<path class="line" style="stroke:var({look.colour})"{dash} d="{line}"/>')
    if look.symbol and len(across) <= MOST_MARKED and series.shape == "line":
        parts.append(_marks(zip(across, down, strict=True), look.symbol, look.colour))
    return "".join(parts)


def _points(across: Sequence[str], down: Sequence[str], series: Series) -> str:
    """Return one path for each colour, however many points there are."""
    places: dict[str, list[tuple[str, str]]] = {}
    for k, place in enumerate(zip(across, down, strict=True)):
        places.setdefault(series.colours[k] if series.colours else series.look.colour, []).append(place)
    return "".join(_marks(found, series.look.symbol, colour) for colour, found in places.items())


def _marks(places: Iterable[tuple[str, str]], symbol: str, colour: str) -> str:
    """Return lines of hardly any length with round or square ends: stretching leaves their shape as it is."""
    dots = "".join(f"M{x} {y}h.01" for x, y in places)
    style = f"stroke:var({colour});stroke-linecap:{CAPS[symbol]}"
    found = f'<path class="mark" style="{style};stroke-width:{MARK}px" d="{dots}"/>'
    if symbol in ("ring", "frame"):
        inner = f"stroke:var(--surface);stroke-linecap:{CAPS[symbol]};stroke-width:{HOLE}px"
        found += f'<path class="mark" style="{inner}" d="{dots}"/>'
    return found


def _bars(chart: Chart, series: Series, number: int, count: int) -> str:
    room = SIZE / (chart.x.high - chart.x.low)
    wide = BAR * room / count
    parts = []
    for x, y in zip(series.x, series.y, strict=True):
        left = chart.x.place(x) * SIZE - BAR * room / 2 + number * wide
        top = SIZE * (1 - chart.y.place(min(y, chart.y.high)))
        parts.append(
            f'<rect x="{left:.1f}" y="{top:.1f}" width="{0.92 * wide:.1f}" height="{SIZE - top:.1f}" '
            f'style="fill:var({series.look.colour})"/>'
        )
    return "".join(parts)


def _path(across: Sequence[str], down: Sequence[str]) -> str:
    return "M" + "L".join(f"{x} {y}" for x, y in zip(across, down, strict=True)) if across else ""


def _stairs(across: Sequence[str], down: Sequence[str]) -> str:
    """Return a path that goes up at the earlier point, and level to the later one."""
    first = f"M{across[0]} {down[0]}" if across else ""
    return first + "".join(f"V{y}H{x}" for x, y in zip(across[1:], down[1:], strict=True))


def _across(axis: Axis, value: float) -> str:
    return f"{SIZE * axis.place(value):.1f}"


def _down(axis: Axis, value: float) -> str:
    """Return the place from the top; values beyond the axis are drawn just past its end and cut off."""
    place = min(max(axis.place(value), -0.5), 1.5) if value > 0 or not axis.logarithmic else -0.5
    return f"{SIZE * (1 - place):.1f}"


def ticks(axis: Axis, kind: str, side: str) -> list[tuple[str, str, str]]:
    """Return an axis's labels as (CSS classes, position as a CSS style, text).

    Every second label has the class `odd`, which page.css hides where room is short; short names never have.
    """
    few = axis.named and sum(len(words) for _, words in axis.ticks) <= SHORT
    return [
        (f"{kind} odd" if k % 2 and not few else kind, f"{side}:{100 * axis.place(at):.2f}%", words)
        for k, (at, words) in enumerate(axis.ticks)
    ]


def widest(axis: Axis) -> int:
    """Return the letters of the longest word beside an axis."""
    return max((len(words) for _, words in axis.ticks), default=1)


def record(chart: Chart) -> str:
    """Return the JSON from which page.js finds and shows the values under a pointer."""
    ends = {k: [a.low, a.high, a.logarithmic, a.title] for k, a in (("x", chart.x), ("y", chart.y))}
    names = [words for _, words in chart.x.ticks] if chart.x.named else []
    found = {**ends, "names": names, "series": [_series(series) for series in chart.series]}
    return json.dumps(found, allow_nan=False, separators=(",", ":"))


def _series(series: Series) -> dict[str, object]:
    found: dict[str, object] = {
        "name": series.name,
        "group": group_of(series),
        "shape": series.shape,
        "colour": series.look.colour,
        "x": list(series.x),
        "y": list(series.y),
        "text": shown(series),
    }
    return found | ({"labels": list(series.labels)} if series.labels else {})


def shown(series: Series) -> list[str]:
    return list(series.shown) or [f"{value:.4g}" for value in series.y]


def group_of(series: Series) -> str:
    return series.group or series.name


def rows(chart: Chart) -> tuple[list[str], list[list[str]]] | None:
    """Return head and rows of a table of the chart; None for clouds of points, or beyond MOST_ROWS."""
    if any(series.shape == "points" for series in chart.series):
        return None
    places = sorted({x for series in chart.series for x in series.x})
    if not places or len(places) > MOST_ROWS:
        return None
    columns = [dict(zip(series.x, shown(series), strict=True)) for series in chart.series]
    names = dict(chart.x.ticks) if chart.x.named else {}
    body = [[names.get(at, f"{at:,.6g}"), *(column.get(at, "–") for column in columns)] for at in places]
    return [chart.x.title, *(series.name for series in chart.series)], body


def table(chart: Chart) -> str:
    """Return all values of the chart as CSV, in full precision."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    labelled = any(series.labels for series in chart.series)
    spread = any(len(series.spread) for series in chart.series)
    head = ["series", *(["of"] if labelled else []), chart.x.title.lower(), chart.y.title.lower()]
    writer.writerow([*head, *(["std"] if spread else [])])
    names = dict(chart.x.ticks) if chart.x.named else {}
    for series in chart.series:
        for k, (x, y) in enumerate(zip(series.x, series.y, strict=True)):
            of = [inert(series.labels[k])] if labelled else []
            std = [series.spread[k] if len(series.spread) else ""] if spread else []
            writer.writerow([inert(series.name), *of, inert(names[x]) if names else x, y, *std])
    return out.getvalue()


def download(chart: Chart) -> str:
    return "data:text/csv;charset=utf-8," + quote(table(chart))


def inert(text: str) -> str:
    """Return text as one line that no spreadsheet takes for a formula."""
    line = text.replace("\r", " ").replace("\n", " ")
    return f"'{line}" if text.startswith(("=", "+", "-", "@", "\t", "\r", "\n")) else line
