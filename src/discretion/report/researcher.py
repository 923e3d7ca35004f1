"""Researcher's tab of the report: what methods decided, schedules, fairness and settings."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import tomli_w

from discretion.report import charts, html, numbers
from discretion.report.charts import varies
from discretion.report.run_group import BudgetClass, Estimate, Group, comparable, differing
from discretion.report.wording import score

MOST_SCHEDULES = 4  # methods whose rounds are drawn


def sections(groups: Sequence[Group], fairness: Mapping[str, Sequence[Estimate]]) -> dict[str, html.Content]:
    """Return the contents of each section, by its anchor; nothing where there is nothing to show."""
    chosen = comparable(groups)
    return {
        "classes": treatment(groups),
        "decisions": decisions(chosen),
        "schedule": schedules(chosen),
        "fairness": fair(chosen, fairness),
        "settings": settings(groups),
    }


def treatment(groups: Sequence[Group]) -> html.PageTable:
    chosen = [mine for part in groups for mine in part.classes]
    coins, drawn = any(mine.rate for mine in chosen), any(mine.rate is None for mine in chosen)
    batches = any(mine.batch for mine in chosen)
    head = ["Budget class", "Clients", "Rate", "Clip", "Noise multiplier", "Expected rounds"]
    if not coins:
        head[2], head[5] = "Batch", "Turns"
    elif drawn or batches:
        head[2], head[5] = "Rate or batch", "Rounds or turns"
    parts = []
    for part in groups:
        rows = [[m.name, f"{m.clients:,}", *_treated(m)] for m in part.classes]
        if len(rows) > 1 and all(row[2:] == rows[0][2:] for row in rows):
            rows = [["every class", f"{len(part.first.population):,}", *rows[0][2:]]]
        whole = len(rows) < len(part.classes) or bool(part.apart)
        name = html.Named(part.look, (part.label, html.small(part.paper) if part.paper else ""))
        parts.append(html.RowGroup(rows, name, [None if whole else k for k in range(len(rows))]))
    return html.PageTable(head, parts, "treatment", "What each class gets, by method")


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


def decisions(groups: Sequence[Group]) -> html.Content:
    """Return figures of what differs between budget classes; the table has the rest."""
    columns = {
        "Rate": {part.label: [_middle(m.rate) for m in part.classes] for part in groups},
        "Clip": {part.label: [_middle(m.clip) for m in part.classes] for part in groups},
        "Noise multiplier": {part.label: [_middle(m.multiplier) for m in part.classes] for part in groups},
        "Rounds of a client": {part.label: [_middle(m.turns) for m in part.classes] for part in groups},
    }
    panels = []
    for number, (title, values) in enumerate(columns.items()):
        known = {label: found for label, found in values.items() if np.isfinite(found).any()}
        if any(varies(np.array(found)) for found in known.values()):
            drawn = [part for part in groups if part.label in known]
            chart = charts.decision(drawn, title, known)
            described = f"{title} by budget class"
            panels.append(html.Figure(f"figure-decision-{number}", chart, described, html.bold(title)))
    if not panels:
        return ""
    key = html.Legend([(part.label, part.look) for part in groups])
    return key, html.FigureGrid(panels)


def _middle(ends: Sequence[float] | None) -> float:
    return math.nan if ends is None else (ends[0] + ends[-1]) / 2


def schedules(groups: Sequence[Group]) -> tuple[str, html.Content]:
    """Return an introduction, and figures of what changes from round to round, by budget class."""
    shown: list[html.Content] = []
    still: list[str] = []
    for part in groups:
        names, member = part.first.classes
        found = charts.changing(part.first.plan, names, member)
        if found and len(shown) < MOST_SCHEDULES:
            panels = [
                html.Figure(
                    f"figure-schedule-{len(shown)}-{number}",
                    chart,
                    f"{title} over rounds by budget class, {part.label}",
                    html.bold(title),
                )
                for number, (title, chart) in enumerate(found.items())
            ]
            heading = html.Tagged("h4", part.label)
            shown.append([heading, charts.class_legend(names), html.FigureGrid(panels)])
        else:
            still.append(part.label)
    same = f"Every round is alike in {numbers.listing(still)}." if still else ""
    return same, shown


def fair(groups: Sequence[Group], fairness: Mapping[str, Sequence[Estimate]]) -> html.PageTable:
    """Return whether strict clients are left out.

    It says how often they come and how much they weigh, against an equal share, and, where that was asked
    for, how well the model serves them.
    """
    measured = {part.label: fairness[part.label] for part in groups if part.label in fairness}
    head = ["Budget class", "Share of clients", "Share of updates", "Of an equal share"]
    if measured:
        head += ["Accuracy on its own records"]
    parts = []
    for part in groups:
        clients = sum(mine.clients for mine in part.classes)
        updates = sum(mine.updates for mine in part.classes) or 1.0
        rows = []
        for k, mine in enumerate(part.classes):
            share, got = mine.clients / clients, mine.updates / updates
            row = [mine.name, numbers.percent(share), numbers.percent(got), f"{got / share:.2f} ×"]
            if measured:
                row.append(score(measured[part.label][k]) if part.label in measured else "–")
            rows.append(row)
        parts.append(html.RowGroup(rows, html.Named(part.look, part.label), list(range(len(rows)))))
    return html.PageTable(head, parts, "treatment", "Participation by budget class")


def settings(groups: Sequence[Group]) -> html.Content:
    chosen = comparable(groups)
    keys = [key for key in differing(groups) if any(key in part.first.shown for part in chosen)]
    body: list[html.Content] = []
    if len(chosen) > 1 and keys:
        head = ["Setting", *(part.label for part in chosen)]
        rows = [[key, *(str(part.first.shown.get(key, "–")) for part in chosen)] for key in keys]
        body.append(html.table(head, rows, "data", "Settings in which the methods differ"))
    for part in groups:
        summary = f"{part.label}: config.toml of {part.first.name}, without places of files"
        body.append(html.Fold(summary, html.listing(tomli_w.dumps(part.first.config.public()).strip())))
    return body
