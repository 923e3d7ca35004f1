"""The live page: made of parts that are replaced, one by one, as what they say changes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from discretion.methods import METHODS
from discretion.report import numbers, statements, svg, wording
from discretion.report.charts import class_styles
from discretion.report.groups import title
from discretion.report.markup import badge, facts, fold, legend, meter, note, section, table, text
from discretion.report.page import shell
from discretion.report.reading import Run
from discretion.report.sections import VERDICTS
from discretion.watch import charts
from discretion.watch.following import Seen, Status
from discretion.watch.summary import Class, classes
from discretion.watch.wording import lead, missing, pace

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
AHEAD = ("planned, and the budget", charts.Style("--ink", "", "dot"))
FOOTER = "This page reads the run’s folder and changes nothing in it. It is served on this machine only."


@dataclass(frozen=True)
class View:
    """What stands on the page, by the elements that it stands in."""

    title: str = ""
    status: str = ""
    parts: Mapping[str, str] = field(default_factory=dict)  # HTML
    charts: Mapping[str, str] = field(default_factory=dict)  # as `svg.draw` makes them

    def since(self, before: "View") -> dict[str, Any]:
        """What a page that shows the view `before` has to change; nothing where both are alike."""
        found: dict[str, Any] = {}
        for kind in ("parts", "charts"):
            mine, old = getattr(self, kind), getattr(before, kind)
            changed = {name: content for name, content in mine.items() if old.get(name) != content}
            found |= {kind: changed} if changed else {}
        if (self.title, self.status) != (before.title, before.status):
            found |= {"title": self.title, "status": self.status}
        return found


def view_of(seen: Seen) -> View:
    run = seen.run
    if run is None:
        verb = "Cannot read" if seen.problem else "Waiting for"
        parts = {
            "marks": badge(*STATUS[seen.status]),
            "heading": f"{verb} {text(seen.folder)}",
            "lead": text(lead(seen)),
            "said": f"{verb} the run.",
        }
        return View(f"waiting · {seen.folder.name}", seen.status, parts)
    rows = classes(seen)
    method = title(run.plan.method)
    parts = {
        "marks": _marks(run, seen),
        "heading": f"{text(method)} on {text(run.about.data)}",
        "lead": text(lead(seen)),
        "progress": _progress(seen, run.plan.rounds),
        "numbers": _numbers(seen, run, rows),
        "evaluations": _evaluations(seen),
        "tested": _tested(run),
        "classes": _classes(run, rows),
        "key": legend((), [*((row.name, look) for row, look in _drawn(rows)), AHEAD]),
        "counted": _counted(seen, run, rows),
        "missing": _missing(seen, run, rows),
        "facts": _facts(run, seen),
        "said": _said(seen, run),
    }
    share = f"{100 * seen.done / run.plan.rounds:.0f} %"
    drawn = {
        "chart-accuracy": svg.draw(
            charts.accuracy(seen, run.plan.rounds),
            "chart-accuracy",
            text(f"Accuracy over rounds. {lead(seen)}"),
        ),
        "chart-spending": svg.draw(
            charts.spending(seen, run, _drawn(rows)),
            "chart-spending",
            "Share of its budget that each budget class has spent, over rounds, as in the table above.",
        ),
    }
    return View(f"{share} · {method} · {seen.folder.name}", seen.status, parts, drawn)


def page(view: View) -> str:
    """The whole page, as it is now; its script asks for what changes later."""

    def part(name: str, tag: str = "div", more: str = "") -> str:
        return f'<{tag} id="{name}"{more}>{view.parts.get(name, "")}</{tag}>'

    def chart(name: str, key: str = "") -> str:
        content = view.charts.get(name) or svg.draw(charts.EMPTY, name, "Nothing yet")
        return f'<figure class="panel">{key}{content}</figure>'

    top = (
        '<section id="now" class="hero">\n'
        + part("marks", "p", ' class="marks"')
        + part("heading", "h1")
        + part("lead", "p", ' class="lead"')
        + part("progress")
        + part("numbers")
        + "</section>"
    )
    body = [
        '<p id="lost" role="alert" hidden>The connection to discretion watch is lost. It is tried again.</p>',
        part("said", "p", ' class="unseen" role="status"'),
        top,
        section(
            "accuracy",
            "Accuracy over rounds",
            part("tested", "span"),
            chart("chart-accuracy"),
            fold("The last evaluations as a table", part("evaluations")),
        ),
        section(
            "budgets",
            "What is left of the budgets",
            part("counted", "span"),
            part("classes"),
            chart("chart-spending", part("key")),
        ),
        section("refusals", "Refusals and drop-outs", "", part("missing")),
        section("about", "About this run", "", part("facts")),
    ]
    live = f'<div id="live" data-status="{view.status}">{"".join(body)}</div>'
    return shell(view.title, NAVIGATION, live, FOOTER, live=_asset("live.js"), style=_asset("live.css"))


def _marks(run: Run, seen: Seen) -> str:
    certificate = run.certificate
    verdict = "broken" if run.broken else "none" if certificate.promises_nothing else "within"
    if verdict == "within" and len(certificate.overspent):
        verdict = "over"
    marks = [badge(*STATUS[seen.status]), VERDICTS[verdict]]
    if seen.problem:
        marks.append(badge("bad", "not all of it can be read"))
    if run.simulated:
        marks.append(badge("plain", "simulation"))
    return " ".join(marks)


def _progress(seen: Seen, rounds: int) -> str:
    return (
        f'<div class="progress" role="progressbar" aria-label="Rounds done" aria-valuemin="0" '
        f'aria-valuemax="{rounds}" aria-valuenow="{seen.done}">'
        f'<span style="width:{100 * seen.done / rounds:.2f}%"></span></div>'
    )


def _numbers(seen: Seen, run: Run, rows: Sequence[Class]) -> str:
    far = f"of {run.plan.rounds:,}, {100 * seen.done / run.plan.rounds:.0f}{numbers.SPACE}%"
    pairs = [("Rounds done", f"{seen.done:,}<small>{far}</small>")]
    if seen.accuracy:
        best = max(range(len(seen.rounds)), key=lambda k: seen.accuracy[k])
        loss = f"loss {seen.loss[-1]:.3f}" if math.isfinite(seen.loss[-1]) else "training diverged"
        high = f"best {numbers.percent(seen.accuracy[best])} at round {seen.rounds[best]:,}"
        pairs.append(("Accuracy", f"{numbers.percent(seen.accuracy[-1])}<small>{high}, {loss}</small>"))
    else:
        pairs.append(("Accuracy", "–<small>not evaluated yet</small>"))
    pairs.append(("Time left", _left(seen)))
    finite = [row for row in rows if math.isfinite(row.budget) and math.isfinite(row.spent)]
    if finite:
        worst = max(finite, key=lambda row: row.share)
        used = f"{wording.at_most(worst.share)} used"
        pairs.append(("Most used budget", f"{used}<small>in class {text(worst.name)}</small>"))
    return facts(pairs)


def _left(seen: Seen) -> str:
    if seen.status == "finished":
        return "none<small>all rounds are done</small>"
    if seen.status != "running":
        return "–<small>nothing is being trained</small>"
    if seen.run and seen.run.secret:
        return "–<small>not told: time tells who took part</small>"
    if seen.pace is None or seen.left is None:
        return "–<small>known after two rounds</small>"
    return f"{numbers.duration(seen.left)}<small>{pace(seen.pace)}</small>"


def _evaluations(seen: Seen) -> str:
    if not seen.rounds:
        return note(["No round has been evaluated yet."])
    found = list(zip(seen.rounds, seen.accuracy, seen.loss, strict=True))[-MOST_ROWS:]
    rows = [
        [f"{at:,}", f"{100 * hits:.2f}", f"{loss:.4f}" if math.isfinite(loss) else "diverged"]
        for at, hits, loss in reversed(found)
    ]
    return table(["Round", "Accuracy, %", "Loss"], rows, "data", "The last evaluations, the latest first")


def _tested(run: Run) -> str:
    every = run.config.train.evaluate_every
    often = "round" if every == 1 else f"{every} rounds"
    return f"Measured after every {often}, on {wording.tested([run])}."


def _drawn(rows: Sequence[Class]) -> list[tuple[Class, charts.Style]]:
    """Classes that have a budget and spend a finite epsilon, each with its look."""
    looks = class_styles([row.name for row in rows]) if rows else []
    pairs = zip(rows, looks, strict=True)
    return [(r, look) for r, look in pairs if math.isfinite(r.budget) and math.isfinite(r.spent)]


def _classes(run: Run, rows: Sequence[Class]) -> str:
    if not rows:
        return note([f"Nothing is proved of this run: {text(run.broken)}."])
    body = []
    for row in rows:
        spent, budget = numbers.spent_of(row.spent, row.budget)
        bar = meter(row.share) if math.isfinite(row.budget) and math.isfinite(row.spent) else ""
        left = "no limit" if math.isinf(row.budget) else f"{math.floor(row.left * 1e4) / 1e4:.4f}"
        body.append([text(row.name), f"{row.clients:,}", f"{spent}{bar}", left, budget])
    head = ["Budget class", "Clients", "Epsilon spent", "Left", "Budget"]
    return table(head, body, "budget", "What each budget class has spent, and has left")


def _counted(seen: Seen, run: Run, rows: Sequence[Class]) -> str:
    if run.certificate.promises_nothing:
        return text(statements.protection(run.certificate))
    said = (
        "Of the client that uses most of its budget in each class. Spent is rounded up, left is rounded down."
    )
    if seen.status == "stopped" and seen.counted > seen.done:
        said += f" Round {seen.counted:,} counts, though it was interrupted before its release."
    if seen.record and seen.record.other_runs:
        runs = numbers.count(seen.record.other_runs, "other run")
        said += f" What {runs} spent from the same budgets is not counted here: see discretion ledger."
    return text(said)


def _missing(seen: Seen, run: Run, rows: Sequence[Class]) -> str:
    said = missing(seen, rows)
    here = run.config.clients.where == "here"
    if not said:
        none = "No client’s budget refused a round"
        rest = (
            ", and clients that are simulated cannot fail to answer."
            if here
            else ", no guard refused an order."
        )
        return note([text(none + rest)])
    parts = [f'<p class="intro">{text(" ".join(said))}</p>']
    if any(row.refusing or row.refusals or row.declined for row in rows):
        body = [
            [
                text(row.name),
                f"{row.clients:,}",
                f"{row.refusing:,}",
                f"{row.refusals:,}",
                *([] if row.declined is None else [f"{row.declined:,}"]),
            ]
            for row in rows
        ]
        head = ["Budget class", "Clients", "Refusing now", "Refusals so far"]
        head += [] if run.secret else ["Refused by guards"]
        parts.append(table(head, body, "refusals", "Refusals by budget class"))
    if seen.answers.last and not run.secret:
        at, asked, answered = seen.answers.last
        parts.append(note([f"In round {at:,}, {answered:,} of {asked:,} orders were answered."]))
    if seen.answers.refused:
        parts.append(_declined(seen, run))
    return "".join(parts)


def _declined(seen: Seen, run: Run) -> str:
    """Guards that refused, by reason; and whose, and since when, unless coins are secret."""
    refused = seen.answers.refused
    if run.secret:
        reasons = run.why_refused(why for _, why in refused.values())[:MOST_REFUSALS]
        body = [[text(why), f"{count:,}"] for why, count in reasons]
        return table(["Why", "Clients"], body, "data", "Why guards refused")
    some = list(refused.items())[:MOST_REFUSALS]
    body = [[text(name), f"{at:,}", text(why)] for name, (at, why) in some]
    return table(["Client", "Since round", "Why"], body, "data", "Guards that refused")


def _facts(run: Run, seen: Seen) -> str:
    certificate, plan = run.certificate, run.plan
    idea = METHODS[plan.method].idea if plan.method in METHODS else ""
    nobody = certificate.promises_nothing
    return facts(
        [
            ("Method", f"{text(title(plan.method))}<small>{text(idea)}</small>"),
            ("Model", f"{text(run.model)}<small>{text(run.about.data)}</small>"),
            ("Clients", f"{len(run.population):,}<small>{numbers.plain(plan.cohort)} in a round</small>"),
            ("Protected", "Nobody" if nobody else text(wording.promise(plan.unit, plan.adjacency))),
            ("In words", f"<small>{text(statements.protection(certificate))}</small>"),
            (
                "Counted by",
                f"{text(certificate.accountant)}<small>plan {text(certificate.plan[:12])}…</small>",
            ),
            ("Run", f"{text(run.about.id)}<small>made {text(_moment(run))}</small>"),
            ("Folder", f"<small><code>{text(seen.folder)}</code></small>"),
        ]
    )


def _moment(run: Run) -> str:
    return run.about.created.replace("T", " ").replace("+00:00", " UTC")


def _said(seen: Seen, run: Run) -> str:
    """For screen readers: changes with the status, and with every tenth of the rounds."""
    rounds = run.plan.rounds
    tenth = 10 * seen.done // rounds
    known = [hits for at, hits in zip(seen.rounds, seen.accuracy, strict=True) if 10 * at <= tenth * rounds]
    reached = f", accuracy {numbers.percent(known[-1])}" if known and tenth else ""
    return text(f"{STATUS[seen.status][1]}: {10 * tenth} % of {rounds:,} rounds{reached}.")


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
