"""Result table of an experiment: published accuracy beside ours, in paper and tight mode."""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from discretion.experiments.cells import Cell, Result
from discretion.experiments.settings import Published, has_modes


@dataclass(frozen=True)
class Figures:
    """Accuracy and cost of one row in one mode, over its seeds; accuracies in per cent."""

    seeds: int
    mean: float
    std: float | None  # sample standard deviation; None for a single seed
    share: float  # largest share of a budget that any client spends, in any seed
    spent: float  # epsilon of that client
    budget: float  # of that client
    seconds: float  # mean of a cell

    @property
    def accuracy(self) -> str:
        return f"{self.mean:.2f}" + (f" ± {self.std:.2f}" if self.std is not None else "")

    @property
    def cost(self) -> str:
        """Share of the budget, rounded up, with epsilon spent of the budget where it is passed."""
        if math.isinf(self.share):
            return "∞"
        share = f"{math.ceil(self.share * 1e3 - 1e-6) / 1e3:.3f}"
        passed = self.spent > self.budget
        return share + (f" ({_up(self.spent)} of {self.budget:.3g})" if passed else "")


def _up(value: float) -> str:
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return f"{math.ceil(value / unit - 1e-9) * unit:.4g}"


@dataclass(frozen=True)
class TableLine:
    table: str
    variation: str
    row: str
    label: str
    published: Published | None
    paper: Figures | None
    tight: Figures | None

    @property
    def said(self) -> str:
        """The published accuracy."""
        if self.published is None:
            return ""
        if isinstance(self.published, tuple):
            return "{:.2f} ± {:.2f}".format(*self.published)
        return f"{self.published:.2f}"

    @property
    def seconds(self) -> float | None:
        known = [part.seconds for part in (self.paper, self.tight) if part]
        return sum(known) / len(known) if known else None


def lines(cells: Sequence[Cell], results: Mapping[str, Result]) -> list[TableLine]:
    """Return a line for each row and variation, in the order of the file, with or without results."""
    made: dict[tuple[str, str], TableLine] = {}
    for cell in cells:
        where = cell.variation.name, cell.row.name
        if where in made:
            continue
        alike = [other for other in cells if (other.variation.name, other.row.name) == where]
        paper, tight = (
            _figures([results[c.name] for c in alike if c.accounting == mode and c.name in results])
            for mode in ("paper", "tight")
        )
        if not has_modes(cell.row):
            paper = tight
        published = cell.row.published.get(cell.variation.name)
        made[where] = TableLine(cell.variation.table, *where, cell.row.label, published, paper, tight)
    return list(made.values())


def _figures(results: Sequence[Result]) -> Figures | None:
    if not results:
        return None
    accuracy = 100 * np.array([result.accuracy for result in results])
    worst = max(results, key=lambda result: result.share)
    return Figures(
        len(results),
        float(accuracy.mean()),
        float(accuracy.std(ddof=1)) if len(results) > 1 else None,
        worst.share,
        worst.spent,
        worst.budget,
        float(np.mean([result.seconds for result in results])),
    )


HEADINGS = ("published", "paper mode", "spent / budget", "tight mode", "spent / budget", "s")


def columns(line: TableLine) -> tuple[str, ...]:
    """Return the cells under HEADINGS."""
    paper, tight = ((mode.accuracy, mode.cost) if mode else ("", "") for mode in (line.paper, line.tight))
    return line.said, *paper, *tight, "" if line.seconds is None else f"{line.seconds:.0f}"


def parts(table: Sequence[TableLine]) -> dict[str, list[TableLine]]:
    """Return lines by the published table that they reproduce, in order."""
    made: dict[str, list[TableLine]] = {}
    for line in table:
        made.setdefault(line.table, []).append(line)
    return made


def cells_csv(cells: Sequence[Cell], results: Mapping[str, Result]) -> str:
    """Return CSV with a line for each cell that has a result."""
    text = io.StringIO()
    long = {"rounds", "accuracies"}
    names = ["cell", *(name for name in Result.model_fields if name not in long)]
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    for cell in cells:
        if cell.name in results:
            writer.writerow({"cell": cell.name, **results[cell.name].model_dump(exclude=long)})
    return text.getvalue()
