"""What a researcher reads: what the method decided, how runs differ, who gains and loses, all settings."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import tomli_w

from discretion.report import charts, numbers
from discretion.report.chart import Style
from discretion.report.comparing import comparable, differing
from discretion.report.curves import over_time, varies
from discretion.report.fairness import Fairness
from discretion.report.groups import BudgetClass, Group
from discretion.report.markup import (
    figure,
    fold,
    grid,
    grouped_table,
    legend,
    named,
    note,
    section,
    table,
    text,
)

LEVEL = 3  # of headings
MOST_SCHEDULES = 4  # methods whose rounds are drawn


def sections(groups: Sequence[Group], styles: dict[str, Style], fairness: Mapping[str, Fairness]) -> str:
    chosen = comparable(groups)
    parts = [
        treatment(groups, styles),
        decisions(chosen, styles),
        schedules(chosen),
        fair(chosen, styles, fairness),
        settings(groups),
    ]
    return "\n\n".join(filter(None, parts))


def treatment(groups: Sequence[Group], styles: dict[str, Style]) -> str:
    chosen = [mine for part in groups for mine in part.classes]
    coins, drawn = any(mine.rate for mine in chosen), any(mine.rate is None for mine in chosen)
    batches = any(mine.batch for mine in chosen)
    head = ["Budget class", "Clients", "Rate", "Clip", "Noise multiplier", "Expected rounds"]
    if not coins:
        head[2], head[5] = "Batch", "Turns"
    elif drawn or batches:
        head[2], head[5] = "Rate or batch", "Rounds or turns"
    parts, classes = [], []
    for part in groups:
        rows = [[text(m.name), f"{m.clients:,}", *_treated(m)] for m in part.classes]
        if len(rows) > 1 and all(row[2:] == rows[0][2:] for row in rows):
            rows = [["every class", f"{len(part.first.population):,}", *rows[0][2:]]]
        whole = len(rows) < len(part.classes) or bool(part.apart)
        classes.append([None if whole else k for k in range(len(rows))])
        paper = f"<small>{text(part.paper)}</small>" if part.paper else ""
        parts.append((named(styles[part.label], f"{text(part.label)}{paper}"), rows))
    intro = {
        "<b>Rate</b>: chance of taking part in a round, a secret coin.": coins,
        "<b>Batch</b>: chance of a record, a secret coin, to be in a step of its client’s turn.": batches,
        "<b>Clip</b>: bound on the norm of an update.": coins,
        "<b>Clip</b>: bound on the norm of one record’s gradient.": batches and not coins,
        "Where there are batches, it bounds one record’s gradient.": batches and coins,
        "<b>Noise multiplier</b>: noise relative to the clip; larger protects more.": True,
        "<b>Expected rounds</b>: how often a client takes part on average.": coins,
        "<b>Turns</b>: how often a client was drawn in advance, for all to see.": drawn,
    }
    return section(
        "classes",
        "What the method decided",
        " ".join(words for words, shown in intro.items() if shown),
        grouped_table(head, parts, "treatment", "What each class gets, by method", classes),
        level=LEVEL,
    )


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


def decisions(groups: Sequence[Group], styles: dict[str, Style]) -> str:
    """What differs between budget classes, drawn; the table has the rest."""
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
            chart = charts.decision(drawn, styles, title, known)
            described = text(f"{title} by budget class")
            panels.append(figure(f"figure-decision-{number}", chart, described, f"<b>{text(title)}</b>"))
    if not panels:
        return ""
    key = legend([(part.label, styles[part.label]) for part in groups])
    intro = "The middle between the least and the most in each class. What is the same for all is not drawn."
    return section("decisions", "By budget class", intro, key, grid(panels), level=LEVEL)


def _middle(ends: Sequence[float] | None) -> float:
    return math.nan if ends is None else (ends[0] + ends[-1]) / 2


def schedules(groups: Sequence[Group]) -> str:
    """What changes from round to round, by budget class, of the methods in which anything does."""
    shown: list[str] = []
    still: list[str] = []
    for part in groups:
        names, member = part.first.classes
        time, looks = over_time(part.first.plan, member), charts.class_styles(names)
        columns = {"Clip": time.clip, "Noise multiplier": time.multiplier}
        if not part.first.treatment.public:
            columns = {"Chance of taking part": time.rate} | columns
        panels: list[str] = []
        for title, values in columns.items():
            if varies(values):
                name = f"figure-schedule-{len(shown)}-{len(panels)}"
                chart = charts.by_round(time, values, names, looks, title)
                described = text(f"{title} over rounds by budget class, {part.label}")
                panels.append(figure(name, chart, described, f"<b>{text(title)}</b>"))
        if panels and len(shown) < MOST_SCHEDULES:
            bare = [Style(look.colour, "", look.dash) for look in looks]
            key = legend(list(zip(names, bare, strict=True)))
            shown.append(f"<h4>{text(part.label)}</h4>{key}{grid(panels)}")
        else:
            still.append(part.label)
    same = f"Every round is alike in {text(numbers.listing(still))}." if still else ""
    return section("schedule", "Over rounds", same, *shown, level=LEVEL)


def fair(groups: Sequence[Group], styles: dict[str, Style], fairness: Mapping[str, Fairness]) -> str:
    """Whether strict clients are left out: how often they come and how much they weigh, against an equal
    share; and, where that was asked for, how well the model serves them."""
    measured = {part.label: fairness[part.label] for part in groups if part.label in fairness}
    head = ["Budget class", "Share of clients", "Share of updates", "Of an equal share"]
    if measured:
        head += ["Accuracy on its own records"]
    parts, classes = [], []
    for part in groups:
        clients = sum(mine.clients for mine in part.classes)
        updates = sum(mine.updates for mine in part.classes) or 1.0
        rows = []
        for k, mine in enumerate(part.classes):
            share, got = mine.clients / clients, mine.updates / updates
            row = [text(mine.name), numbers.percent(share), numbers.percent(got), f"{got / share:.2f} ×"]
            if measured:
                row.append(measured[part.label].shown(k) if part.label in measured else "–")
            rows.append(row)
        parts.append((named(styles[part.label], text(part.label)), rows))
        classes.append(list(range(len(rows))))
    warning = (
        "<b>Not private</b>: accuracy on their own records is computed from the clients’ data, in a "
        "simulation. It is covered by no budget, and must not be released where data are real."
        if measured
        else "How accurate the model is for each class would have to be computed from its clients’ own data, "
        "which no budget covers. In a simulation it can be asked for: <code>discretion report RUN "
        "--class-accuracy</code>."
    )
    return section(
        "fairness",
        "Strict against loose clients",
        "Participation follows from the plan, and is public. 1 × is what a class would have if every client "
        "came equally often.",
        grouped_table(head, parts, "treatment", "Participation by budget class", classes),
        note([warning]),
        level=LEVEL,
    )


def settings(groups: Sequence[Group]) -> str:
    chosen = comparable(groups)
    keys = [key for key in differing(groups) if any(key in part.first.shown for part in chosen)]
    body = ""
    if len(chosen) > 1 and keys:
        head = ["Setting", *(text(part.label) for part in chosen)]
        rows = [[text(key), *(text(part.first.shown.get(key, "–")) for part in chosen)] for key in keys]
        body = table(head, rows, "data", "Settings in which the methods differ")
    configurations = "".join(
        fold(
            f"{text(part.label)}: config.toml of {text(part.first.name)}, without places of files",
            f"<pre><code>{text(tomli_w.dumps(part.first.config.public()).strip())}</code></pre>",
        )
        for part in groups
    )
    intro = "Compare with other runs: <code>discretion compare RUN OTHER … --out comparison.html</code>."
    return section("settings", "Settings", intro, body, configurations, level=LEVEL)
