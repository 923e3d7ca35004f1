"""Draws a chart as SVG and HTML that fits any width: the drawing stretches, strokes and words do not.

Nothing has to be drawn again: colours follow the theme by the style sheet, paper and phones get the same
drawing, and without scripts all but the values under the pointer is there.
"""

import csv
import html
import io
import json
from collections.abc import Iterable, Sequence
from urllib.parse import quote

from discretion.report.chart import Axis, Chart, Series, Style

SIZE = 1000  # of the drawing to each side, stretched to its place
DASHES = {"solid": "", "dash": "6 4", "dashdot": "8 3 2 3", "longdash": "11 4", "dot": "2 4", "gaps": "7 7"}
CAPS = {"circle": "round", "ring": "round", "square": "square", "frame": "square"}
MARK, HOLE = 8.0, 4.0  # pixels
MOST_MARKED = 30  # points of a line that get a mark
BAR = 0.76  # of the room of a name, for all its bars together
MOST_ROWS = 120  # of a table
SHORT = 36  # letters, of all names beneath a chart


def draw(chart: Chart, name: str, description: str) -> str:
    """The chart, and its numbers beside it for whoever points at it; `<` cannot end the script."""
    record = json.dumps(_record(chart), allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    wide = max((len(words) for _, words in chart.y.ticks), default=1)
    ticks = _ticks(chart.x, "x", "left") + _ticks(chart.y, "y", "bottom")
    return (
        f'<div class="chart" id="{name}" role="img" tabindex="0" aria-label="{description}" '
        f'style="height:{chart.height}px;--labels:{wide}ch"><div class="plot">'
        f'<svg viewBox="0 0 {SIZE} {SIZE}" preserveAspectRatio="none" aria-hidden="true">'
        f"{_drawing(chart)}</svg>"
        f'{ticks}<span class="axis">{_text(chart.x.title)}</span></div></div>\n'
        f'<script type="application/json" data-figure="{name}">{record}</script>'
    )


def _drawing(chart: Chart) -> str:
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
        parts.append(f'<g data-group="{_text(group_of(series))}">{inside}</g>')
    return "".join(parts)


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
    """One path for each colour, however many points there are."""
    places: dict[str, list[tuple[str, str]]] = {}
    for k, place in enumerate(zip(across, down, strict=True)):
        places.setdefault(series.colours[k] if series.colours else series.look.colour, []).append(place)
    return "".join(_marks(found, series.look.symbol, colour) for colour, found in places.items())


def _marks(places: Iterable[tuple[str, str]], symbol: str, colour: str) -> str:
    """Lines of hardly any length with round or square ends: they keep their shape when the rest stretches."""
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
    """Up at the earlier point, level to the later one."""
    first = f"M{across[0]} {down[0]}" if across else ""
    return first + "".join(f"V{y}H{x}" for x, y in zip(across[1:], down[1:], strict=True))


def _across(axis: Axis, value: float) -> str:
    return f"{SIZE * axis.place(value):.1f}"


def _down(axis: Axis, value: float) -> str:
    """What passes the axis is drawn just beyond its end, where it is cut off."""
    place = min(max(axis.place(value), -0.5), 1.5) if value > 0 or not axis.logarithmic else -0.5
    return f"{SIZE * (1 - place):.1f}"


def _ticks(axis: Axis, kind: str, side: str) -> str:
    """Where there is little room every second one is left out; of names only where they are long."""
    few = axis.named and sum(len(words) for _, words in axis.ticks) <= SHORT
    found = []
    for k, (at, words) in enumerate(axis.ticks):
        kinds = f"{kind} odd" if k % 2 and not few else kind
        style = f"{side}:{100 * axis.place(at):.2f}%"
        found.append(f'<span class="{kinds}" style="{style}" aria-hidden="true">{_text(words)}</span>')
    return "".join(found)


def _record(chart: Chart) -> dict[str, object]:
    """What page.js needs to find the values under a pointer, as places between 0 and 1, and to show them."""
    ends = {k: [a.low, a.high, a.logarithmic, a.title] for k, a in (("x", chart.x), ("y", chart.y))}
    names = [words for _, words in chart.x.ticks] if chart.x.named else []
    return {**ends, "names": names, "series": [_series(chart, series) for series in chart.series]}


def _series(chart: Chart, series: Series) -> dict[str, object]:
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
    """The chart as a table, with a row for each place; none for clouds of points, or where it is too long."""
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
    """All that is drawn as CSV, in full precision."""
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
    """As one line; a spreadsheet takes a cell that begins as some do for a formula."""
    line = text.replace("\r", " ").replace("\n", " ")
    return f"'{line}" if text.startswith(("=", "+", "-", "@", "\t", "\r", "\n")) else line


def _text(value: object) -> str:
    return html.escape(str(value))


def swatch(look: Style) -> str:
    """The line and mark of a series, as in the charts."""
    mark = ""
    if look.symbol:
        cap = CAPS[look.symbol]
        mark = f'<path d="M14 6h.01" stroke-width="{MARK}" stroke-linecap="{cap}"/>'
        if look.symbol in ("ring", "frame"):
            mark += (
                f'<path d="M14 6h.01" stroke="var(--surface)" stroke-width="{HOLE}" stroke-linecap="{cap}"/>'
            )
    line = (
        ""
        if look.dash == "none"
        else (f'<path d="M0 6H28" stroke-width="2.2" stroke-dasharray="{DASHES[look.dash] or "none"}"/>')
    )
    return (
        f'<svg class="swatch" viewBox="0 0 28 12" aria-hidden="true" style="stroke:var({look.colour})">'
        f"{line}{mark}</svg>"
    )
