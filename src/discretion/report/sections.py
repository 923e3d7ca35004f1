"""The first half of the report: what was trained, which method did best, and what it cost whom."""

import math
import re
from collections.abc import Sequence

from discretion.report import numbers, wording
from discretion.report.chart import Style
from discretion.report.comparing import class_names, comparable, differing
from discretion.report.groups import BudgetClass, Group
from discretion.report.markup import badge, facts, meter, named, note, section, text

FEW_CLASSES = 4  # have a column each; more would not fit a page
VERDICTS = {
    "within": badge("good", "within budget"),
    "over": badge("bad", "over budget"),
    "none": badge("warn", "no privacy"),
    "broken": badge("bad", "not certified"),
}


def heading(groups: Sequence[Group], title: str) -> str:
    runs = [run for part in groups for run in part.runs]
    simulated = any(run.simulated for run in runs)
    marks = [badge("plain", "simulation")] if simulated else []
    unfinished = [run for run in runs if not run.finished]
    if unfinished:
        marks.append(badge("warn", f"{len(unfinished)} of {numbers.count(len(runs), 'run')} unfinished"))
    if any(part.verdict in ("over", "broken") for part in groups):
        marks.append(badge("bad", "a promise does not hold: see the table"))
    # a name with a hyphen stays on one line
    lead = re.sub(r"\S+-\S+", r'<span class="whole">\g<0></span>', text(wording.result(groups)))
    return (
        '<section id="result" class="hero">\n'
        f'<p class="marks">{" ".join(marks)}</p>\n<h1>{text(title)}</h1>\n'
        f'<p class="lead">{lead}</p>\n{_setting(groups)}\n</section>'
    )


def _setting(groups: Sequence[Group]) -> str:
    """What was trained; of the runs that are compared."""
    chosen = comparable(groups)
    runs = [run for part in chosen for run in part.runs]
    first = chosen[0].first
    config, classes = first.config, class_names(chosen)
    sources = dict.fromkeys(run.about.source for run in runs)
    deltas = sorted(
        {float(d) for run in runs for d in (run.certificate.delta.min(), run.certificate.delta.max())}
    )
    shown = [numbers.power(delta) for delta in dict.fromkeys((deltas[0], deltas[-1]))]
    groups_of = "".join(
        f"<li><b>{text(name)}</b> {numbers.count(mine.clients, 'client')}</li>"
        for name, mine in zip(classes, chosen[0].classes, strict=True)
    )
    cohort = numbers.span(run.plan.cohort for run in runs)
    asked = "asked or expected" if any(run.plan.reading for run in runs) else "expected"
    versions = dict.fromkeys(run.about.version for run in runs)
    seeds = sorted({run.config.seed for run in runs})
    methods = numbers.count(len({part.method for part in chosen}), "method")
    shape = f"{methods}, {'seeds' if seeds[1:] else 'seed'} {_seeds(seeds)}"
    return facts(
        [
            ("Data", f"{text(first.about.data)}<small>from {text('; '.join(sources))}</small>"),
            ("Divided", f"{text(config.data.partition)}<small>{_sizes(chosen)} for each client</small>"),
            ("Model", text(first.model)),
            ("Rounds", f"{first.plan.rounds:,}<small>{cohort} clients {asked} in each</small>"),
            ("Clients", f"{len(first.population):,}<small>delta {' to '.join(shown)}</small>"),
            ("Budgets", f'<ul class="classes">{groups_of}</ul>'),
            ("Runs", f"{len(runs)}<small>{shape}</small>"),
            ("Made", f"{text(wording.when(chosen))}<small>Discretion {text(', '.join(versions))}</small>"),
        ]
    )


def _seeds(seeds: Sequence[int]) -> str:
    consecutive = len(seeds) > 2 and seeds[-1] - seeds[0] == len(seeds) - 1
    return f"{seeds[0]} to {seeds[-1]}" if consecutive else numbers.listing(map(str, seeds))


def _sizes(groups: Sequence[Group]) -> str:
    sizes = [run.population.size for part in groups for run in part.runs]
    low, high = min(int(size.min()) for size in sizes), max(int(size.max()) for size in sizes)
    return numbers.count(high, "record") if low == high else f"{low:,} to {high:,} records"


def methods(groups: Sequence[Group], styles: dict[str, Style]) -> str:
    chosen = comparable(groups)
    names = class_names(chosen)
    apart = len(names) <= FEW_CLASSES  # each class has a column of its own
    tall = 'scope="col" rowspan="2"' if apart else 'scope="col"'
    apiece = "".join(f'<th scope="col">{text(name)}</th>' for name in names)
    top = (
        f"<tr><th {tall}>Method</th><th {tall}>Accuracy</th><th {tall}>Loss</th>"
        f'<th scope="colgroup" colspan="{len(names)}"{" class=over" if apart else ""}>'
        f"Epsilon spent of budget</th><th {tall}>Promise</th></tr>"
    ) + (f"\n<tr>{apiece}</tr>" if apart else "")
    rows = "\n".join(_method_row(part, names, styles[part.label]) for part in groups)
    body = (
        '<div class="wide" tabindex="0" role="region" aria-label="Methods by accuracy">'
        '<table class="methods"><caption class="unseen">Methods by accuracy</caption>'
        f"<thead>{top}</thead>\n<tbody>{rows}</tbody></table></div>"
    )
    keys = differing(groups)
    notes = [
        wording.averaging(groups),
        f"Accuracy and loss on {wording.tested([part.first for part in groups])}.",
        "Spent is rounded up; in each class it is that of the client that uses most of its budget.",
        "Apart from the method, all settings are the same."
        if not keys
        else f"The methods also differ in {text(numbers.listing(keys))}.",
    ]
    if len(chosen) == 1:
        notes.pop()
    return section("methods", "Methods compared" if len(groups) > 1 else "The method", "", body, note(notes))


def _method_row(part: Group, names: Sequence[str], look: Style) -> str:
    remarks = "".join(
        f'<small class="remark">{text(remark)}</small>' for remark in (*part.apart, *part.remarks)
    )
    idea = f'<small class="idea">{text(part.idea)}</small>' if part.idea else ""
    accuracy = wording.score(part.accuracy, 2) if part.accuracy else "not evaluated"
    if part.accuracy and not part.finished:
        far = f"{part.curve.rounds[-1]} of {part.first.plan.rounds} rounds"
        accuracy += f'<small class="remark">{far}</small>'
    mark = badge("warn", "not comparable") if part.apart else ""
    return (
        f'<tr{" class=apart" if part.apart else ""}><th scope="row">'
        f"{named(look, f'{text(part.label)} {mark}{idea}{remarks}')}</th>"
        f'<td class="strong" data-label="Accuracy">{accuracy}</td>'
        f'<td data-label="Loss">{_loss(part)}</td>{_spent_cells(part, names)}'
        f'<td data-label="Promise">{VERDICTS[part.verdict]}</td></tr>'
    )


def _loss(part: Group) -> str:
    if part.loss is None:
        return "–"
    if not math.isfinite(part.loss.mean):
        return "diverged"
    return f"{part.loss.mean:.3f}" + (f" ± {part.loss.std:.3f}" if part.loss.std is not None else "")


def _spent_cells(part: Group, names: Sequence[str]) -> str:
    wide = f'<td class="all" colspan="{len(names)}" data-label="Epsilon spent">'
    if part.verdict == "none":
        return f"{wide}∞<small>no client is protected</small></td>"
    if part.verdict == "broken":
        return f"{wide}not known<small>the certificate does not fit the run</small></td>"
    if part.apart or len(names) > FEW_CLASSES:
        lines = (f"<span>{text(m.name)}</span><span>{_spent(m)}</span>{_meter(m)}" for m in part.classes)
        return f'{wide}<div class="several">{"".join(lines)}</div></td>'
    return "".join(
        f'<td class="spent" data-label="{text(name)}">{_spent(mine)}{_meter(mine)}</td>'
        for name, mine in zip(names, part.classes, strict=True)
    )


def _spent(mine: BudgetClass) -> str:
    used, allowed = numbers.spent_of(mine.spent, mine.budget)
    return f"{used} <i>of {allowed}</i>"


def _meter(mine: BudgetClass) -> str:
    if not (math.isfinite(mine.spent) and math.isfinite(mine.budget)):
        return "<span></span>"
    return meter(mine.spent / mine.budget)
