"""What the operator reads: what happened, who takes part and pays, when budgets end, noise and time."""

import math
from collections.abc import Sequence
from datetime import datetime

import numpy as np

from discretion.advice import noise_to_signal
from discretion.report import charts, numbers, wording
from discretion.report.chart import Style
from discretion.report.charts import Panel
from discretion.report.comparing import class_names, comparable
from discretion.report.curves import varies
from discretion.report.groups import Group
from discretion.report.lasting import LONGEST, Lasting, lasting
from discretion.report.markup import (
    badge,
    class_filter,
    figure,
    grid,
    grouped_table,
    legend,
    named,
    note,
    section,
    table,
    text,
)
from discretion.report.reading import Run, Timed

BUDGET = ("budget", Style("--ink", "", "dot"))
LEVEL = 3  # of headings


def sections(groups: Sequence[Group], styles: dict[str, Style]) -> str:
    chosen = comparable(groups)
    parts = [
        _happened(groups, styles),
        accuracy(groups, styles),
        participation(chosen, styles),
        spending(groups, styles),
        running_out(chosen, styles),
        noise(chosen, styles),
        time(groups, styles),
    ]
    return "\n\n".join(filter(None, parts))


def _happened(groups: Sequence[Group], styles: dict[str, Style]) -> str:
    head = ["Method", "State", "Clients in a round", "Refusals", "Took"]
    rows = []
    for part in groups:
        plan = part.first.plan
        expected = f"{numbers.span(run.plan.cohort for run in part.runs)} "
        how = "asked" if plan.reading else "expected"
        rows.append(
            [
                named(styles[part.label], text(part.label)),
                _state(part),
                f"{expected}{how}<small>{text(part.first.treatment.coming)}</small>",
                _refusals(part),
                _took(part.runs),
            ]
        )
    return section(
        "happened",
        "What happened" if all(part.finished for part in groups) else "What happened, and what is to come",
        "",
        table(head, rows, "matrix", "State of the runs"),
        level=LEVEL,
    )


def _state(part: Group) -> str:
    done = [run for run in part.runs if run.finished]
    if len(done) == len(part.runs):
        return f"{badge('good', 'finished')}<small>{numbers.count(part.first.plan.rounds, 'round')}</small>"
    waiting = [run for run in part.runs if not run.finished]
    left = ", ".join(f"{run.history.done} of {run.plan.rounds} rounds" for run in waiting)
    return f"{badge('warn', f'{len(waiting)} of {len(part.runs)} unfinished')}<small>{left}</small>"


def _refusals(part: Group) -> str:
    counted = sum(int(run.ledger.refusals.sum()) for run in part.runs if run.ledger)
    guards = sum(len(run.refusals) for run in part.runs)
    if not counted and not guards:
        return "none"
    asked = f"<small>{numbers.count(guards, 'guard')} said no</small>" if guards else ""
    return f"{numbers.count(counted, 'round')} refused by clients’ accounts{asked}"


def _took(runs: Sequence[Run]) -> str:
    """From the first round on record to the last, in simulations only: time tells of who took part."""
    seconds = [found for run in runs if (found := _seconds(run)) is not None]
    if not seconds:
        return "–"
    mean = numbers.duration(sum(seconds) / len(seconds))
    return mean + ("<small>mean of runs</small>" if seconds[1:] else "")


def _seconds(run: Run) -> float | None:
    if not run.simulated or run.ledger is None or not (run.ledger.since and run.ledger.until):
        return None
    begin, end = datetime.fromisoformat(run.ledger.since), datetime.fromisoformat(run.ledger.until)
    return (end - begin).total_seconds()


def accuracy(groups: Sequence[Group], styles: dict[str, Style]) -> str:
    heading = "Accuracy over rounds"
    chosen = [part for part in comparable(groups) if len(part.curve.rounds)]
    if not chosen:
        return section("accuracy", heading, "No run has been evaluated yet.", level=LEVEL)
    intro = "The line is the mean over seeds, the band one standard deviation to each side."
    if all(part.curve.runs == 1 for part in chosen):
        intro = "One seed only, so there is no band."
    if len(chosen) < len(groups):
        intro += " Rows of the table that cannot be compared, or have no figures yet, are not drawn."
    ends = (f"{part.label} ends at {wording.score(part.accuracy)}" for part in chosen if part.accuracy)
    key = legend([(part.label, styles[part.label]) for part in chosen])
    described = text(f"Accuracy on the test records over rounds. {'; '.join(ends)}.")
    drawing = figure("figure-accuracy", charts.accuracy(chosen, styles), described, key=key)
    return section("accuracy", heading, intro, drawing, level=LEVEL)


def participation(groups: Sequence[Group], styles: dict[str, Style]) -> str:
    key = legend([(part.label, styles[part.label]) for part in groups], [("all clients", charts.EVERYBODY)])
    drawing = figure(
        "figure-participation",
        charts.participation(groups, styles),
        text(_described_participation(groups)),
        key=key,
    )
    secret = any(not part.first.treatment.public for part in groups)
    return section(
        "participation",
        "Who takes part",
        "How the updates divide over budget classes by the plan; grey: how clients do."
        + (" Who really takes part is secret." if secret else ""),
        drawing,
        level=LEVEL,
    )


def _described_participation(groups: Sequence[Group]) -> str:
    said = []
    for part in groups:
        total = max(sum(mine.updates for mine in part.classes), 1e-300)
        shares = (f"{mine.name} {numbers.percent(mine.updates / total)}" for mine in part.classes)
        said.append(f"{part.label}: {', '.join(shares)}")
    return f"Share of the expected updates by budget class. {'; '.join(said)}."


def spending(groups: Sequence[Group], styles: dict[str, Style]) -> str:
    heading, chosen = "Who spends what", comparable(groups)
    panels = charts.panels(chosen)
    if not panels:
        said = "No method here has a finite epsilon that could be drawn."
        return section("spending", heading, said, level=LEVEL)
    private = list({part.label: part for panel in panels for part, _ in panel.parts}.values())
    as_share = charts.shares_needed(chosen)
    intro = " ".join(filter(None, (wording.use_of_budgets(part) for part in private)))
    if as_share:
        intro += " Drawn as shares, because clients of one class have different budgets."
    if any(mine.spent > charts.MOST_SHOWN * mine.budget for panel in panels for _, mine in panel.parts):
        intro += " Lines that pass twice the budget leave the figure; the table beneath has them whole."
    names = class_names(chosen)
    figures = [_panel(k, panel, styles, as_share, names.index(panel.name)) for k, panel in enumerate(panels)]
    bare = [(part.label, Style(styles[part.label].colour, "", styles[part.label].dash)) for part in private]
    return section(
        "spending",
        heading,
        text(intro),
        class_filter(names),
        legend(bare, [BUDGET]),
        grid(figures),
        level=LEVEL,
    )


def _panel(number: int, panel: Panel, styles: dict[str, Style], as_share: bool, class_: int) -> str:
    ends = []
    for part, mine in panel.parts:
        used, allowed = numbers.spent_of(mine.spent, mine.budget)
        ends.append(f"{part.label} ends at {used} of {allowed}")
    description = f"Epsilon spent over rounds in budget class {panel.name}. {'; '.join(ends)}."
    caption = f"<b>{text(panel.name)}</b> {numbers.count(panel.clients, 'client')}"
    drawing = charts.spending(panel, styles, as_share)
    return figure(f"figure-spending-{number}", drawing, text(description), caption, of=class_)


def running_out(groups: Sequence[Group], styles: dict[str, Style]) -> str:
    private = [part for part in groups if part.verdict in ("within", "over")]
    private = [part for part in private if all(math.isfinite(mine.spent) for mine in part.classes)]
    if not private:
        return ""
    head = ["Budget class", "Half spent", "Nine tenths", "At the end", "Lasts"]
    parts, classes = [], []
    for part in private:
        shown = [
            (k, mine, found)
            for k, (mine, found) in enumerate(zip(part.classes, lasting(part), strict=True))
            if math.isfinite(mine.budget)
        ]
        rows = [
            [
                text(mine.name),
                _after(found.half),
                _after(found.most),
                numbers.percent(float(mine.curve[-1]) / mine.budget),
                _lasts(found, part),
            ]
            for _, mine, found in shown
        ]
        parts.append((named(styles[part.label], text(part.label)), rows))
        classes.append([k for k, _, _ in shown])
    return section(
        "running-out",
        "Who runs out when",
        "After which round how much of the budget is spent, by the client of each class that uses most of "
        "it; and until which round it would last if rounds went on as the plan ends.",
        grouped_table(head, parts, "treatment", "When budgets run out, by class", classes),
        level=LEVEL,
    )


def _after(found: int | None) -> str:
    return "never" if found is None else f"by round {found:,}"


def _lasts(found: Lasting, part: Group) -> str:
    rounds = part.first.plan.rounds
    if not found.known:
        return f"the {rounds:,} rounds of the plan"
    if found.out is None:
        return f"beyond round {LONGEST * rounds:,}"
    return f"until round {found.out:,}" + (", its last" if found.out == rounds else "")


def noise(groups: Sequence[Group], styles: dict[str, Style]) -> str:
    noisy = [
        part for part in groups if 0 < noise_to_signal(part.first.plan, part.first.population)[1] < math.inf
    ]
    if not noisy:
        return ""
    head = ["Method", "In a round", "Over the run"]
    rows = []
    for part in noisy:
        last, whole = noise_to_signal(part.first.plan, part.first.population)
        rows.append([named(styles[part.label], text(part.label)), numbers.plain(last), numbers.plain(whole)])
    chart = charts.noise(noisy, styles)
    drawing = ""
    if any(varies(np.array(series.y)) for series in chart.series):
        key = legend([(p.label, Style(styles[p.label].colour, "", styles[p.label].dash)) for p in noisy])
        drawing = figure("figure-noise", chart, "Noise over signal in each round, by method", key=key)
    return section(
        "noise",
        "Noise against signal",
        "The standard deviation of the noise in one coordinate of the mean update, over the longest that the "
        "mean update can be: every client at its clip, all in one direction. Smaller trains better; over a "
        "run, noise averages out. It is known from the plan alone.",
        drawing,
        table(head, rows, "data", "Noise over signal, by method"),
        level=LEVEL,
    )


def time(groups: Sequence[Group], styles: dict[str, Style]) -> str:
    """Where the time of the rounds went; of simulations only."""
    timed = [
        (part, [run for run in part.runs if run.simulated and run.profile and run.profile.rounds])
        for part in groups
    ]
    timed = [(part, runs) for part, runs in timed if runs]
    if not timed:
        return ""
    head = ["Method", "A round", *TIMED, "Other"]
    rows = []
    for part, runs in timed:
        profiles = [run.profile for run in runs if run.profile]
        count = sum(profile.rounds for profile in profiles)
        total = sum(sum(profile.seconds.values()) for profile in profiles) or 1.0
        shares = [_sum(profiles, names) / total for names in TIMED.values()]
        rows.append(
            [
                named(styles[part.label], text(part.label)),
                f"{1000 * total / count:,.0f} ms",
                *(numbers.percent(share, 0) for share in shares),
                numbers.percent(1 - sum(shares), 0),
            ]
        )
    return section(
        "time",
        "Where time went",
        "Privacy is drawing who takes part, clipping, noise and the new model; on disk are ledger, history "
        "and checkpoints.",
        table(head, rows, "data", "Time of a round, and its shares, by method"),
        note(["Time depends on who took part. It stands here because this is a simulation."]),
        level=LEVEL,
    )


TIMED = {
    "Training": ("train",),
    "Evaluation": ("evaluate",),
    "Privacy": ("select", "clip", "noise", "combine"),
    "On disk": ("ledger", "write"),
}


def _sum(profiles: Sequence[Timed], names: Sequence[str]) -> float:
    return sum(profile.seconds.get(name, 0.0) for profile in profiles for name in names)
