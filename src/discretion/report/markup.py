"""The few pieces of HTML that every section is made of; whoever passes text in has escaped it."""

import html
from collections.abc import Mapping, Sequence

from discretion.report import svg
from discretion.report.chart import Chart, Style
from discretion.report.svg import swatch


def text(value: object) -> str:
    return html.escape(str(value))


def section(anchor: str, heading: str, intro: str, *parts: str, level: int = 2) -> str:
    lead = f'<p class="intro">{intro}</p>' if intro else ""
    body = "\n".join(part for part in parts if part)
    return (
        f'<section id="{anchor}">\n<h{level} class="heading">{heading}</h{level}>\n{lead}\n{body}\n</section>'
    )


def panels_of(readers: Mapping[str, tuple[str, str, str]]) -> str:
    """A tab's panel for each reader: by anchor its heading, a sentence on it, and its sections."""
    return "\n\n".join(
        f'<div role="tabpanel" id="{anchor}" aria-labelledby="tab-{anchor}">\n'
        f'<h2 class="reader">{heading}</h2>\n<p class="intro">{intro}</p>\n{body}\n</div>'
        for anchor, (heading, intro, body) in readers.items()
    )


Rows = Sequence[Sequence[str]]


def table(
    head: Sequence[str], rows: Rows, kind: str, caption: str, classes: Sequence[int | None] = ()
) -> str:
    """The first cell of a row names it. On a phone each row becomes a card with its own labels.

    `classes` are the budget classes of the rows, by which they can be hidden.
    """
    return grouped_table(head, [("", rows)], kind, caption, [classes] if classes else [])


def grouped_table(
    head: Sequence[str],
    groups: Sequence[tuple[str, Rows]],
    kind: str,
    caption: str,
    classes: Sequence[Sequence[int | None]] = (),
) -> str:
    """Several groups of rows under one head, each with a heading of its own."""
    top = "".join(f'<th scope="col">{cell}</th>' for cell in head)
    bodies = []
    for number, (name, rows) in enumerate(groups):
        title = f'<tr class="group"><th scope="rowgroup" colspan="{len(head)}">{name}</th></tr>\n'
        marks = classes[number] if classes else [None] * len(rows)
        lines = "\n".join(
            f"<tr{of_class(mark)}>{_cells(head, row)}</tr>" for row, mark in zip(rows, marks, strict=True)
        )
        bodies.append(f"<tbody>{title if name else ''}{lines}</tbody>")
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{caption}"><table class="{kind}">'
        f'<caption class="unseen">{caption}</caption><thead><tr>{top}</tr></thead>\n{"".join(bodies)}'
        "</table></div>"
    )


def of_class(number: int | None) -> str:
    """For what is of one budget class: it goes when its class is filtered out."""
    return "" if number is None else f' data-class="{number}"'


def _cells(head: Sequence[str], row: Sequence[str]) -> str:
    cells = [f'<th scope="row">{row[0]}</th>']
    for label, cell in zip(head[1:], row[1:], strict=True):
        cells.append(f'<td data-label="{label}">{cell}</td>')
    return "".join(cells)


def fold(summary: str, body: str, kind: str = "") -> str:
    return f'<details class="{kind}"><summary>{summary}</summary>\n{body}\n</details>'


def legend(styles: Sequence[tuple[str, Style]], still: Sequence[tuple[str, Style]] = ()) -> str:
    """Series that can be hidden by a press, in all charts of the section; then those that cannot."""
    items = [
        f'<li><button type="button" aria-pressed="true" data-toggle="{text(label)}">{swatch(look)}'
        f"{text(label)}</button></li>"
        for label, look in styles
    ]
    items += [f"<li>{swatch(look)}{text(label)}</li>" for label, look in still]
    return f'<ul class="legend">{"".join(items)}</ul>'


def class_filter(names: Sequence[str]) -> str:
    """Boxes that hide budget classes in the whole page; none where there is one class only."""
    if len(names) < 2:
        return ""
    boxes = "".join(
        f'<label><input type="checkbox" checked data-filter="{k}">{text(name)}</label>'
        for k, name in enumerate(names)
    )
    return f'<fieldset class="filter"><legend>Budget classes</legend>{boxes}</fieldset>'


def note(sentences: Sequence[str]) -> str:
    return f'<p class="note">{" ".join(sentences)}</p>'


def figure(
    name: str, chart: Chart, description: str, caption: str = "", key: str = "", of: int | None = None
) -> str:
    """A chart with what stands around it: caption, legend, the same as a table, its numbers to take away.

    `of` is the budget class that it is of, if it is of one.
    """
    head = f"<figcaption>{caption}</figcaption>" if caption else ""
    rows = svg.rows(chart)
    shown = ""
    if rows is not None:
        cells = [[text(cell) for cell in row] for row in rows[1]]
        shown = fold("As a table", table([text(cell) for cell in rows[0]], cells, "data", description))
    link = f'<a download="{name}.csv" href="{svg.download(chart)}">Data (CSV)</a>'
    return (
        f'<figure class="panel"{of_class(of)}>{head}{key}{svg.draw(chart, name, description)}'
        f'<div class="tools">{shown}{link}</div></figure>'
    )


def grid(panels: Sequence[str], kind: str = "") -> str:
    return f'<div class="panels{kind}">{"".join(panels)}</div>' if panels else ""


def named(look: Style, words: str) -> str:
    """A method's mark beside its name."""
    return f'<div class="named">{swatch(look)}<div>{words}</div></div>'


def badge(kind: str, words: str) -> str:
    return f'<span class="badge {kind}">{words}</span>'


def facts(pairs: Sequence[tuple[str, str]]) -> str:
    return '<dl class="facts">' + "".join(f"<div><dt>{k}</dt><dd>{v}</dd></div>" for k, v in pairs) + "</dl>"


def meter(share: float) -> str:
    """How much of a budget is used, beside the number that says so."""
    kind = " over" if share > 1 else ""
    return f'<span class="meter{kind}"><span style="width:{min(100 * share, 100):.1f}%"></span></span>'
