"""Live page: parts of HTML and charts that are replaced one by one as a run goes on."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np
from markupsafe import Markup, escape

from discretion.accounting.certificate import share_of
from discretion.audit.verdicts import contradicted
from discretion.methods import METHODS
from discretion.report import numbers, officer
from discretion.report.chart import Chart, Series, Style, linear, rounds
from discretion.report.charts import BUDGET, class_styles
from discretion.report.page import asset, macro, render
from discretion.report.page import parts as page_parts
from discretion.report.run_group import VERDICTS, title, worst_verdict
from discretion.report.wording import at_most, turnout_mark
from discretion.runs import preflight
from discretion.runs.read import Run
from discretion.watch.follow import Seen, Status
from discretion.watch.state import Class, classes, lead, missing, nobody_trained, pace, warnings

NAVIGATION = {
    "now": "Now",
    "accuracy": "Accuracy",
    "budgets": "Budgets",
    "refusals": "Refusals",
    "about": "About",
}
STATUS: dict[Status, tuple[str, str]] = {
    "waiting": ("plain", "waiting"),
    "ready": ("plain", "not begun"),
    "running": ("good", "running"),
    "stopped": ("warn", "stopped"),
    "finished": ("good", "finished"),
}
MOST_ROWS = 30  # of evaluations, the last ones
MOST_REFUSALS = 20  # that are named, the first ones
CHARTS = ("chart-accuracy", "chart-spending")
HEIGHT = 280
MOST_POINTS = 400  # of a line
LINE = Style("--method-2", "circle", "solid")
EMPTY = Chart((), rounds(1, 1), linear("", 0.0, 1.0, 4, percent=True), HEIGHT)


@dataclass(frozen=True)
class PageView:
    """Page content by HTML element id."""

    title: str = ""
    status: str = ""
    parts: Mapping[str, Markup] = field(default_factory=dict)
    charts: Mapping[str, Markup] = field(default_factory=dict)

    def since(self, before: "PageView") -> dict[str, Any]:
        """Return what a page that shows the view `before` has to change; nothing where both are alike."""
        found: dict[str, Any] = {}
        for kind in ("parts", "charts"):
            mine, old = getattr(self, kind), getattr(before, kind)
            changed = {name: content for name, content in mine.items() if old.get(name) != content}
            found |= {kind: changed} if changed else {}
        if (self.title, self.status) != (before.title, before.status):
            found |= {"title": self.title, "status": self.status}
        return found


def view_of(seen: Seen) -> PageView:
    run, told = seen.run, escape(lead(seen))
    if run is None:
        verb = "Cannot read" if seen.problem else "Waiting for"
        waiting = {
            "marks": macro("badge", *STATUS[seen.status]),
            "heading": escape(f"{verb} {seen.folder}"),
            "lead": told,
            "said": escape(f"{verb} the run."),
        }
        return PageView(f"waiting · {seen.folder.name}", seen.status, waiting)
    rows, method = classes(seen), title(run.plan.method)
    drawn, cautions = _drawn(rows), warnings(seen)
    bad = any(caution.trained for caution in cautions)
    parts = page_parts(
        "live_parts.html",
        seen=seen,
        run=run,
        about=officer.about([run]),
        rows=rows,
        lines=[*((row.name, look) for row, look in drawn), ("planned, and the budget", BUDGET)],
        method=method,
        idea=METHODS[run.plan.method].idea if run.plan.method in METHODS else "",
        status=("warn", seen.status) if bad else STATUS[seen.status],
        cautions=cautions,
        answered=_answered_mark(seen, run),
        verdict=VERDICTS[worst_verdict([run])],
        evaluated=_evaluations(seen),
        sentences=[*([f"{doubted}."] if (doubted := contradicted(run)) else []), *missing(seen, rows)],
        refused=any(row.refusing or row.refusals or row.declined for row in rows),
        declined=_declined(seen, run),
        at_most=at_most,
        pace=pace,
    )
    spent = "Share of its budget that each budget class has spent, over rounds, as in the table above."
    charts = {
        "chart-accuracy": (_accuracy_chart(seen, run.plan.rounds), f"Accuracy over rounds. {lead(seen)}"),
        "chart-spending": (_spending_chart(seen, run, drawn), spent),
    }
    return PageView(
        f"{100 * seen.done / run.plan.rounds:.0f} % · {method} · {seen.folder.name}",
        seen.status,
        parts | {"lead": told, "said": escape(_said(seen, run))},
        {name: macro("drawing", name, *chart) for name, chart in charts.items()},
    )


def _answered_mark(seen: Seen, run: Run) -> tuple[str, str] | None:
    """Return kind and words of a mark on who was ready or there; None where nobody was asked elsewhere."""
    if preflight.stopped(run):
        return "bad", "clients were not ready"
    turnout = seen.answers.turnout
    return turnout_mark(turnout, nobody_trained(seen)) if turnout else None


def page(view: PageView) -> str:
    """Return the whole page, as it is now; its script asks for what changes later."""
    empty = {name: macro("drawing", name, EMPTY, "Nothing yet") for name in CHARTS}
    return render(
        "live.html",
        view.title,
        NAVIGATION,
        live=asset(__package__, "live.js"),
        style=asset(__package__, "live.css"),
        status=view.status,
        parts=view.parts,
        charts={**empty, **view.charts},
    )


def _evaluations(seen: Seen) -> list[list[str]]:
    """Return rows on the last evaluations, the latest first."""
    found = list(zip(seen.rounds, seen.accuracy, seen.loss, strict=True))[-MOST_ROWS:]
    return [
        [f"{at:,}", f"{100 * hits:.2f}", f"{loss:.4f}" if math.isfinite(loss) else "diverged"]
        for at, hits, loss in reversed(found)
    ]


def _drawn(rows: Sequence[Class]) -> list[tuple[Class, Style]]:
    """Return the classes with a finite budget and a finite epsilon, each with its style."""
    looks = class_styles([row.name for row in rows]) if rows else []
    pairs = zip(rows, looks, strict=True)
    return [(row, look) for row, look in pairs if row.finite]


def _declined(seen: Seen, run: Run) -> list[list[str]]:
    """Return the reasons for which guards refused; and whose and since when, unless coins are secret."""
    refused = seen.answers.refused
    if run.secret:
        reasons = run.why_refused(why for _, why in refused.values())[:MOST_REFUSALS]
        return [[why, f"{count:,}"] for why, count in reasons]
    return [[name, f"{at:,}", why] for name, (at, why) in islice(refused.items(), MOST_REFUSALS)]


def _said(seen: Seen, run: Run) -> str:
    """Return a sentence for screen readers, which changes with the status and every tenth of the rounds."""
    rounds = run.plan.rounds
    tenth = 10 * seen.done // rounds
    known = [hits for at, hits in zip(seen.rounds, seen.accuracy, strict=True) if 10 * at <= tenth * rounds]
    reached = f", accuracy {numbers.percent(known[-1])}" if known and tenth else ""
    return f"{STATUS[seen.status][1]}: {10 * tenth} % of {rounds:,} rounds{reached}."


def _accuracy_chart(seen: Seen, last: int) -> Chart:
    """Return accuracy over rounds; the axis has all rounds of the plan, so that progress is seen."""
    step = max(1, -(-len(seen.rounds) // MOST_POINTS))
    kept = range((len(seen.rounds) - 1) % step, len(seen.rounds), step)  # the latest one among them
    x, y = [seen.rounds[k] for k in kept], [seen.accuracy[k] for k in kept]
    shown = [numbers.percent(value, 2) for value in y]
    low, high = (min(y), max(y)) if y else (0.0, 1.0)
    room = 0.06 * max(high - low, 0.02)
    axis = linear("Accuracy", max(0.0, low - room), min(1.0, high + room), 5, percent=True)
    return Chart((Series("accuracy", x, y, LINE, shown=shown),), rounds(last, 10), axis, HEIGHT)


def _spending_chart(seen: Seen, run: Run, drawn: Sequence[tuple[Class, Style]]) -> Chart:
    """Return shares of the budgets: what is spent, and, dotted, what the rest of the plan will spend.

    Lines go through the points of the certificate; what is written at the present round is never too small.
    """
    curve = run.certificate.spending
    names = list(run.classes[0])
    lines = []
    for row, look in drawn:
        k = names.index(row.name)
        share = share_of(curve.epsilon[k], curve.budget[k])
        points = list(zip(curve.rounds, share.tolist(), strict=True))
        now = (seen.counted, float(np.interp(seen.counted, curve.rounds, share)))
        past = [point for point in points if point[0] < seen.counted] + [now]
        ahead = [now] + [point for point in points if point[0] > seen.counted]
        if len(ahead) > 1:
            lines.append(
                _line(f"{row.name}, planned", ahead, replace(look.bare, dash="dot"), row, seen.counted)
            )
        lines.append(_line(row.name, past, look.bare, row, seen.counted))
    highest = max([1.0, *(value for line in lines for value in line.y)])
    axis = linear("Share of the budget", 0.0, 1.06 * highest, 5, percent=True)
    return Chart(tuple(lines), rounds(run.plan.rounds, 10), axis, HEIGHT, levels=((1.0, "--ink"),))


def _line(name: str, points: Sequence[tuple[int, float]], look: Style, row: Class, now: int) -> Series:
    x, y = [at for at, _ in points], [value for _, value in points]
    shown = [at_most(row.share if at == now else value) for at, value in points]
    return Series(name, x, y, look, shown=shown, group=row.name)
