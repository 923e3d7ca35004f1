"""The report: one HTML file, and the rows of a table, made only from the files of run folders."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from discretion.errors import InputError
from discretion.report import wording
from discretion.report.comparing import group
from discretion.report.fairness import measure
from discretion.report.groups import Group, Verdict
from discretion.report.page import render
from discretion.report.reading import read_runs

__all__ = ["Summary", "summarise", "write"]


@dataclass(frozen=True)
class Summary:
    """What one method reached and what it cost, over its seeds; plain values only.

    `verdict` is "within" (every client within its budget), "over", "none" (no privacy at all) or
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


def write(folders: Sequence[Path], out: Path, title: str | None = None, class_accuracy: bool = False) -> None:
    """Write the report on these run folders to `out`, one HTML file that needs nothing else.

    With `class_accuracy` it shows how well models do on each budget class's own records, which is not
    private and refused where data may be real.
    """
    groups = group(read_runs(folders))
    fairness = measure(groups) if class_accuracy else {}
    text = render(groups, title or wording.title(groups), out, fairness)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text, encoding="utf-8")
    except OSError as problem:
        raise InputError(f"cannot write the report to {out}: {problem.strerror}") from None


def summarise(folders: Sequence[Path]) -> list[Summary]:
    """A row for each method: best accuracy first, then what is unfinished or cannot be compared."""
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
        remarks=(*(f"not comparable: {reason}" for reason in part.apart), *part.remarks),
    )
