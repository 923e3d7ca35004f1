"""Content of the researcher's tab: what methods decided, schedules, fairness and settings."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import tomli_w

from discretion.report import charts, numbers
from discretion.report.chart import Chart
from discretion.report.charts import varies
from discretion.report.run_group import BudgetClass, ClassRows, Estimate, Group, comparable, differing
from discretion.report.wording import score
from discretion.runs.read import Run

DECISIONS = {"Rate": "rate", "Clip": "clip", "Noise multiplier": "multiplier", "Rounds of a client": "turns"}
MOST_SCHEDULES = 4  # methods whose rounds are drawn


def treatment(groups: Sequence[Group]) -> Sequence[ClassRows]:
    """Return what each class gets; one row for all classes where they get the same."""
    found = []
    for part in groups:
        rows = [[m.name, f"{m.clients:,}", *_treated(m)] for m in part.classes]
        if len(rows) > 1 and all(row[2:] == rows[0][2:] for row in rows):
            rows = [["every class", f"{len(part.first.population):,}", *rows[0][2:]]]
        whole = len(rows) < len(part.classes) or bool(part.apart)
        found.append((part, part.paper, [(None if whole else k, row) for k, row in enumerate(rows)]))
    return found


def _treated(mine: BudgetClass) -> list[str]:
    often = mine.rate or mine.batch
    if mine.clip is None or mine.multiplier is None:
        return ["–", "–", "–", "never drawn"]
    return [
        ("batch " if mine.batch and not mine.rate else "") + numbers.span(often) if often else "drawn",
        "none" if math.isinf(mine.clip[0]) else numbers.span(mine.clip),
        "no noise" if mine.multiplier == (0.0, 0.0) else numbers.span(mine.multiplier),
        numbers.span(mine.turns) + ("" if mine.rate else " turns"),
    ]


def decisions(groups: Sequence[Group]) -> list[tuple[int, str, Chart]]:
    """Return a number, title and chart of what differs between budget classes; the table has the rest."""
    found = []
    for number, (title, name) in enumerate(DECISIONS.items()):
        values = {part.label: [_middle(getattr(mine, name)) for mine in part.classes] for part in groups}
        known = {label: column for label, column in values.items() if np.isfinite(column).any()}
        if any(varies(np.array(column)) for column in known.values()):
            parts = [part for part in groups if part.label in known]
            found.append((number, title, charts.decision(parts, title, known)))
    return found


def _middle(ends: Sequence[float] | None) -> float:
    return math.nan if ends is None else (ends[0] + ends[-1]) / 2


def schedules(
    groups: Sequence[Group],
) -> tuple[list[tuple[Group, Sequence[str], dict[str, Chart]]], list[str]]:
    """Return methods with the names of classes and charts of what changes over rounds; then all others."""
    shown: list[tuple[Group, Sequence[str], dict[str, Chart]]] = []
    still = []
    for part in groups:
        names, member = part.first.classes
        found = charts.changing(part.first.plan, names, member)
        if found and len(shown) < MOST_SCHEDULES:
            shown.append((part, names, found))
        else:
            still.append(part.label)
    return shown, still


def fair(groups: Sequence[Group], measured: Mapping[str, Sequence[Estimate]]) -> Sequence[ClassRows]:
    """Return whether strict clients are left out.

    It says how often they come and how much they weigh, against an equal share, and, where that was asked
    for, how well the model serves them.
    """
    found = []
    for part in groups:
        clients = sum(mine.clients for mine in part.classes)
        updates = sum(mine.updates for mine in part.classes) or 1.0
        rows: list[tuple[int | None, list[str]]] = []
        for k, mine in enumerate(part.classes):
            share, got = mine.clients / clients, mine.updates / updates
            row = [mine.name, numbers.percent(share), numbers.percent(got), f"{got / share:.2f} ×"]
            if measured:
                row.append(score(measured[part.label][k]) if part.label in measured else "–")
            rows.append((k, row))
        found.append((part, "", rows))
    return found


def settings(groups: Sequence[Group]) -> list[list[str]]:
    """Return the settings in which comparable methods differ, each with its value by method."""
    chosen = comparable(groups)
    keys = [key for key in differing(groups) if any(key in part.first.shown for part in chosen)]
    return [[key, *(str(part.first.shown.get(key, "–")) for part in chosen)] for key in keys]


def config(run: Run) -> str:
    return tomli_w.dumps(run.config.public()).strip()
