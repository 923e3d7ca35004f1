"""Content of pages as plain data; templates/content.html has a macro for each class that lays it out."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from markupsafe import Markup

from discretion.report.chart import Chart, Style


class Part:
    """Content that is laid out by the macro with the class's name, in lower case."""


Content: TypeAlias = str | Part | Sequence["Content"]  # all text is escaped when it is laid out
Rows = Sequence[Sequence[Content]]


@dataclass(frozen=True)
class Tagged(Part):
    """Words in an element, such as <b>."""

    tag: str
    inside: Content = ""
    kind: str = ""  # classes of page.css


def bold(words: Content) -> Tagged:
    return Tagged("b", words)


def small(words: Content) -> Tagged:
    return Tagged("small", words)


def code(words: Content) -> Tagged:
    return Tagged("code", words)


def listing(text: str) -> Tagged:
    """Return commands or a file, as they are typed."""
    return Tagged("pre", code(text))


def note(*sentences: Content) -> Tagged:
    """Return a paragraph in small print, with a space between the sentences."""
    return Tagged("p", _joined(" ", sentences), "note")


def lines(each: Iterable[Content]) -> Content:
    """Return one beneath the other."""
    return _joined(Markup("<br>"), each)


def _joined(between: str, parts: Iterable[Content]) -> list[Content]:
    return [found for part in parts for found in (between, part)][1:]


@dataclass(frozen=True)
class Badge(Part):
    kind: str  # good, warn, bad or plain
    words: str


@dataclass(frozen=True)
class Meter(Part):
    """Bar of the used share of a budget, beside the number."""

    share: float


@dataclass(frozen=True)
class Named(Part):
    """A method's line and mark, as in the charts, beside its name."""

    look: Style
    words: Content


@dataclass(frozen=True)
class Section(Part):
    anchor: str
    heading: str
    intro: Content = ""
    parts: Content = ()


@dataclass(frozen=True)
class RowGroup:
    """Rows of a table under a heading of their own."""

    rows: Rows
    heading: Content = ""
    classes: Sequence[int | None] = ()  # budget class of each row, by which it can be hidden


@dataclass(frozen=True)
class PageTable(Part):
    """The first cell of a row names it. On a phone each row becomes a card with its own labels."""

    head: Sequence[str]
    groups: Sequence[RowGroup]
    kind: str  # classes of page.css
    caption: str


def table(head: Sequence[str], rows: Rows, kind: str, caption: str) -> PageTable:
    return PageTable(head, [RowGroup(rows)], kind, caption)


@dataclass(frozen=True)
class Fold(Part):
    """A summary, and the content that is shown when it is unfolded."""

    summary: str
    parts: Content


@dataclass(frozen=True)
class Legend(Part):
    """Series that a press hides in all charts of the section; then those that stay."""

    series: Sequence[tuple[str, Style]]
    still: Sequence[tuple[str, Style]] = ()


@dataclass(frozen=True)
class ClassFilter(Part):
    """Boxes that hide budget classes in the whole page; nothing where there is only one class."""

    names: Sequence[str]


@dataclass(frozen=True)
class FactGrid(Part):
    pairs: Sequence[tuple[str, Content]]


@dataclass(frozen=True)
class Bullets(Part):
    kind: str  # a class of page.css
    items: Sequence[Content]


@dataclass(frozen=True)
class Drawing(Part):
    """A chart with its numbers beside it, for the values under a pointer."""

    name: str  # the element's id
    chart: Chart
    description: str


@dataclass(frozen=True)
class Figure(Drawing):
    """A drawing with its caption, legend, table of the same values, and a file of them to take away."""

    caption: Content = ""
    key: Content = ""
    of: int | None = None  # the budget class that the figure is of, if it is of one


@dataclass(frozen=True)
class FigureGrid(Part):
    """Figures side by side, as many as there is room for."""

    figures: Sequence[Part]
    stacked: bool = False
