"""The few pieces of HTML that every section is made of; whoever passes text in has escaped it."""

import html
import json
from collections.abc import Sequence
from typing import Any

from discretion.report.charts import Style

SHAPES = {
    "circle": '<circle cx="14" cy="6" r="3.6"/>',
    "square": '<rect x="10.6" y="2.6" width="6.8" height="6.8"/>',
    "diamond": '<path d="M14 1.4 18.6 6 14 10.6 9.4 6z"/>',
    "triangle-up": '<path d="M14 1.6 18.4 9.4H9.6z"/>',
    "cross": '<path d="M12.6 2h2.8v2.6H18v2.8h-2.6V10h-2.8V7.4H10V4.6h2.6z"/>',
    "x": '<path d="m11 2 3 3 3-3 1 1-3 3 3 3-1 1-3-3-3 3-1-1 3-3-3-3z"/>',
    "star": '<path d="m14 1 1.4 3.4 3.6.3-2.8 2.3.9 3.6L14 8.7l-3.1 1.9.9-3.6L9 4.7l3.6-.3z"/>',
}
DASHES = {"solid": "none", "dash": "5 3", "dashdot": "6 2.5 1.5 2.5", "longdash": "9 3", "dot": "2 3"}


def text(value: object) -> str:
    return html.escape(str(value))


def section(anchor: str, heading: str, intro: str, *parts: str) -> str:
    lead = f'<p class="intro">{intro}</p>' if intro else ""
    body = "\n".join(part for part in parts if part)
    return f'<section id="{anchor}">\n<h2>{heading}</h2>\n{lead}\n{body}\n</section>'


Rows = Sequence[Sequence[str]]


def table(head: Sequence[str], rows: Rows, kind: str, caption: str) -> str:
    """The first cell of a row names it. On a phone each row becomes a card with its own labels."""
    return grouped_table(head, [("", rows)], kind, caption)


def grouped_table(head: Sequence[str], groups: Sequence[tuple[str, Rows]], kind: str, caption: str) -> str:
    """Several groups of rows under one head, each with a heading of its own."""
    top = "".join(f'<th scope="col">{cell}</th>' for cell in head)
    bodies = []
    for name, rows in groups:
        title = f'<tr class="group"><th scope="rowgroup" colspan="{len(head)}">{name}</th></tr>\n'
        lines = "\n".join(f"<tr>{_cells(head, row)}</tr>" for row in rows)
        bodies.append(f"<tbody>{title if name else ''}{lines}</tbody>")
    return (
        f'<div class="wide"><table class="{kind}"><caption class="unseen">{caption}</caption>'
        f"<thead><tr>{top}</tr></thead>\n{''.join(bodies)}</table></div>"
    )


def _cells(head: Sequence[str], row: Sequence[str]) -> str:
    cells = [f'<th scope="row">{row[0]}</th>']
    for label, cell in zip(head[1:], row[1:], strict=True):
        cells.append(f'<td data-label="{label}">{cell}</td>')
    return "".join(cells)


def fold(summary: str, body: str, kind: str = "") -> str:
    return f'<details class="{kind}"><summary>{summary}</summary>\n{body}\n</details>'


def swatch(look: Style) -> str:
    """The line and mark of a method, as in the figures."""
    return (
        f'<svg class="swatch" viewBox="0 0 28 12" aria-hidden="true" style="color:var({look.colour})">'
        f'<line x1="0" y1="6" x2="28" y2="6" stroke="currentColor" stroke-width="2.2" '
        f'stroke-dasharray="{DASHES[look.dash]}"/>'
        f'<g fill="currentColor">{SHAPES.get(look.symbol, "")}</g></svg>'
    )


def legend(styles: Sequence[tuple[str, Style]]) -> str:
    items = "".join(f"<li>{swatch(look)}{text(label)}</li>" for label, look in styles)
    return f'<ul class="legend">{items}</ul>'


def note(sentences: Sequence[str]) -> str:
    return f'<p class="note">{" ".join(sentences)}</p>'


def figure(name: str, drawing: dict[str, Any], description: str) -> str:
    """A place for a figure, and its JSON beside it; `<` is written so that no text can end the script."""
    record = json.dumps(drawing, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    height = drawing["layout"]["height"]
    return (
        f'<div class="chart" role="img" aria-label="{description}" data-figure="{name}" '
        f'style="height:{height}px"></div>\n<script type="application/json" id="{name}">{record}</script>'
    )


def named(look: Style, words: str) -> str:
    """A method's mark beside its name."""
    return f'<div class="named">{swatch(look)}<div>{words}</div></div>'


def badge(kind: str, words: str) -> str:
    return f'<span class="badge {kind}">{words}</span>'


def facts(pairs: Sequence[tuple[str, str]]) -> str:
    return '<dl class="facts">' + "".join(f"<div><dt>{k}</dt><dd>{v}</dd></div>" for k, v in pairs) + "</dl>"
