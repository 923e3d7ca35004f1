"""Reports on run folders: one HTML file, and summary rows for tables, from the folders' files alone."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from discretion.audit.enclosed import PageRecords, enclose, opened, seal
from discretion.report import charts, officer, operator, page, researcher, wording
from discretion.report.fairness import measure
from discretion.report.run_group import VERDICTS, Estimate, Group, Verdict, class_names, comparable, group
from discretion.runs.read import Run, read_runs

__all__ = ["Summary", "render", "summarise", "write"]

READERS = {"operator": "Operation", "officer": "Data protection", "researcher": "Research"}


@dataclass(frozen=True)
class Summary:
    """Accuracy and cost of one method over its seeds, as plain values.

    `verdict` is "within" (every client within its budget), "over", "contradicted" (an audit says that an
    epsilon is larger than certified), "none" (no privacy at all) or
    "broken" (the certificate is not of this plan or population).
    """

    label: str
    method: str
    runs: int
    averaged: int  # of these, runs in the mean
    rounds: int  # that accuracy and loss are of
    planned: int  # rounds
    accuracy: float | None
    accuracy_std: float | None  # None for a single run
    loss: float | None  # infinite where training diverged
    loss_std: float | None
    spent: Mapping[str, float]  # by budget class: epsilon of the client that uses most of its budget
    budget: Mapping[str, float]  # by budget class: of the same client
    verdict: Verdict
    comparable: bool
    remarks: tuple[str, ...]  # what must be known before the numbers are used
    warnings: tuple[dict[str, Any], ...]  # settings and results that nobody can want: fields of `Caution`


def write(
    folders: Sequence[Run | Path],
    out: Path,
    title: str | None = None,
    class_accuracy: bool = False,
    records: bool = True,
) -> None:
    """Write the report on these run folders to `out`, one HTML file that needs nothing else.

    With `class_accuracy` the report shows each model's accuracy on the records of each budget class. That
    accuracy is not private, and is refused where data may be real. With `records` the page holds what
    `discretion verify` needs to verify it alone: the clients' names, budgets and sizes, plan and ledger rows.
    """
    runs = read_runs(folders)
    measured = measure(group(runs)) if class_accuracy else {}
    estimates = {label: [(each.mean, each.std) for each in column] for label, column in measured.items()}
    held = enclose(runs, out, title or "", estimates, records)
    page.write(render(opened(held) or runs, held, out), out, "report")


def render(runs: Sequence[Run], held: PageRecords, out: Path) -> str:
    """Return the report on runs, which are those of the records that it holds, if it holds any.

    Guarantees:
        Equal records give equal pages, in every character.
    """
    groups = group(runs)
    chosen = comparable(groups)
    measured = {label: [Estimate(*each) for each in column] for label, column in held.measured.items()}
    text = page.render(
        "report.html",
        held.title or wording.title(groups),
        READERS,
        lead=re.split(r"(\S+-\S+)", wording.result(groups)),
        groups=groups,
        chosen=chosen,
        classes=class_names(chosen),
        measured={part.label: measured[part.label] for part in chosen if part.label in measured},
        secret=any(phase.turns is None for part in groups for phase in part.first.plan.phases),
        out=out,
        records=held,
        VERDICTS=VERDICTS,
        charts=charts,
        officer=officer,
        operator=operator,
        researcher=researcher,
        wording=wording,
    )
    return seal(text)


def summarise(folders: Sequence[Run | Path]) -> list[Summary]:
    """Return a row for each method: best accuracy first, then unfinished, then incomparable ones."""
    return [_summary(part) for part in group(read_runs(folders))]


def _summary(part: Group) -> Summary:
    accuracy, loss = part.accuracy, part.loss
    return Summary(
        label=part.label,
        method=part.method,
        runs=len(part.runs),
        averaged=len(part.counted),
        rounds=int(part.curve.rounds.max(initial=0)),
        planned=part.first.plan.rounds,
        accuracy=accuracy.mean if accuracy else None,
        accuracy_std=accuracy.std if accuracy else None,
        loss=loss.mean if loss else None,
        loss_std=loss.std if loss else None,
        spent={mine.name: mine.spent for mine in part.classes},
        budget={mine.name: mine.budget for mine in part.classes},
        verdict=part.verdict,
        comparable=not part.apart,
        warnings=tuple(caution.to_record() for caution in part.cautions),
        remarks=(*(f"not comparable: {reason}" for reason in part.apart), *part.remarks),
    )
