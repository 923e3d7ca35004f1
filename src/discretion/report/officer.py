"""Report sections for data-protection officers: promises, limits, and how to verify them."""

import hashlib
import math
import os
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from discretion.accounting import Certificate
from discretion.audit import statements
from discretion.plan.plan import ADVERSARIES, Adversary
from discretion.report import html, numbers
from discretion.report.run_group import BudgetClass, Group, class_names, comparable
from discretion.runs.read import Run

FEW_CLASSES = 4  # are listed one by one
MOST_REFUSALS = 20  # are listed
MOST_READABLE = 100.0  # epsilon whose exponential is still worth writing down


def sections(groups: Sequence[Group], out: Path) -> dict[str, html.Content]:
    """Return the contents of each section, by its anchor."""
    return {
        "promise": promise(groups),
        "protection": protection(groups),
        "limits": limits(groups),
        "verify": verify(groups, out),
    }


def promise(groups: Sequence[Group]) -> html.Content:
    """Return what is promised to each budget class, spent and left."""
    head = ["Budget class", "Clients", "Budget", "Spent", "Left", "At worst, odds of a guess"]
    parts, aside = [], []
    for part in groups:
        heading = html.Named(part.look, (part.label, html.small(_least_kept(part))))
        if part.verdict in ("none", "broken"):
            aside.append(html.Tagged("div", heading, "aside"))
            continue
        deltas = [run.certificate.delta for run in part.runs]
        delta = numbers.power(max(float(column.max()) for column in deltas))
        rows = [_promised(mine, delta) for mine in part.classes]
        parts.append(html.RowGroup(rows, heading, [None if part.apart else k for k in range(len(rows))]))
    classes = html.ClassFilter(class_names(comparable(groups)))
    shown = html.PageTable(head, parts, "treatment promise", "Promise by budget class")
    return [classes, shown, aside] if parts else aside


def _least_kept(part: Group) -> str:
    """Return the promise of a method, as the run that keeps least of it has it."""
    run = max(
        part.runs,
        key=lambda run: (bool(run.broken), run.certificate.promises_nothing, len(run.certificate.overspent)),
    )
    return statements.unproved(run.broken) if run.broken else statements.protection(run.certificate)


def _promised(mine: BudgetClass, delta: str) -> list[html.Content]:
    used, allowed = numbers.spent_of(mine.spent, mine.budget)
    if math.isinf(mine.budget):
        return [mine.name, f"{mine.clients:,}", "no limit: public data", used, "–", "–"]
    left = max(mine.budget - mine.spent, 0.0)
    sure = 1 / (1 + math.exp(-min(mine.spent, MOST_READABLE)))
    return [
        mine.name,
        f"{mine.clients:,}",
        (f"ε {allowed}", html.small(f"delta {delta}")),
        (used, html.Meter(mine.spent / mine.budget)),
        numbers.budget(left, 3) if left else "nothing",
        "certain" if sure > 0.9999 else f"{math.ceil(1000 * sure) / 10:.1f} %",
    ]


def protection(groups: Sequence[Group]) -> html.Content:
    readers = {name: statements.OBSERVERS[name].capitalize() for name in ADVERSARIES}
    rows = [
        [html.Named(part.look, part.label), *(_protected(part, who) for who in readers)] for part in groups
    ]
    certificates = [run.certificate for part in groups for run in part.runs]
    accountants = dict.fromkeys(c.accountant for c in certificates)
    meaning: list[tuple[str, html.Content]] = [
        ("What is protected", _by_method(groups, lambda c: statements.protected(c.unit, c.adjacency))),
        ("Trust in the server", _by_method(groups, statements.trusted)),
        ("How noise is drawn", _by_method(groups, statements.noise)),
        ("Counted by", (", ".join(accountants), html.small("over every round of the plan"))),
        ("How to read epsilon", _meaning(groups)),
    ]
    words = [statements.against(certificate) for certificate in certificates]
    who = [
        (html.bold(readers[name]), f": {' or '.join(dict.fromkeys(each[name] for each in words))}.")
        for name in readers
    ]
    shown = html.table(
        ["Method", *readers.values()], rows, "matrix", "Epsilon against each observer, by method"
    )
    return shown, html.note(*who), html.FactGrid(meaning)


def _by_method(groups: Sequence[Group], words: Callable[[Certificate], str]) -> html.Content:
    """Return what is true of each method; without names where it is the same for all."""
    lines: dict[str, list[str]] = {}
    for part in groups:
        lines.setdefault(words(part.first.certificate), []).append(part.label)
    if len(lines) == 1:
        return list(lines)
    return html.lines([(html.bold(numbers.listing(names)), f": {told}") for told, names in lines.items()])


def _protected(part: Group, who: Adversary) -> html.Content:
    if part.verdict == "broken":
        return html.Badge("bad", "not certified")
    values = [mine.against[who] for mine in part.classes]
    if all(math.isinf(value) for value in values):
        return html.Badge("plain", "nothing"), html.small("epsilon is infinite")
    worst: html.Content = (html.bold(f"ε {numbers.spent(max(values))}"), " at most")
    if (observer := statements.observer(part.first.certificate, who)) != statements.OBSERVERS[who]:
        worst = (worst, f" against {observer}")
    if len(set(values)) == 1:
        return worst, html.small("the same for every client")
    if len(values) > FEW_CLASSES:
        return worst, html.small(f"the strictest class {numbers.spent(values[0])}")
    apiece = [f"class {mine.name}: {numbers.spent(mine.against[who])}" for mine in part.classes]
    return worst, html.small(html.lines(apiece))


def _meaning(groups: Sequence[Group]) -> html.Content:
    everyone = np.concatenate([run.population.epsilon for part in groups for run in part.runs])
    budgets = everyone[np.isfinite(everyone)]
    if not len(budgets):
        return "Every client’s data are public here."
    ends = dict.fromkeys((float(budgets.min()), float(budgets.max())))
    examples = (f"{_factor(value)} for {numbers.budget(value)}" for value in ends)
    return (
        "The chances of anything that an observer can see, with the client’s data and without them, "
        "differ by a factor of at most e",
        html.Tagged("sup", "ε"),
        f" (for the budgets here: {numbers.listing(examples)}), but for a failure chance delta.",
    )


def _factor(epsilon: float) -> str:
    if epsilon > MOST_READABLE:
        return "beyond any use"
    factor = math.exp(epsilon)
    return numbers.spent(factor, 3) if factor < 1000 else f"about {numbers.power(factor)}"


def limits(groups: Sequence[Group]) -> html.Content:
    runs = [run for part in groups for run in part.runs]
    items = statements.unpromised(runs)
    refusing = [sentence for run in runs for sentence in _refusing(run)]
    if refusing:
        more = " …" if len(refusing) > MOST_REFUSALS else ""
        each = "; ".join(refusing[:MOST_REFUSALS])
        said = f"Their guards said no, and the run went on without them: {each}{more}."
        items.append(("Clients refused.", said))
    return html.Bullets("limits", [(html.bold(lead), f" {body}") for lead, body in items])


def _refusing(run: Run) -> list[str]:
    """Return whose guards refused, since when, and why; where coins are secret only how many.

    A client is asked, and can refuse, only in rounds for which its coin came up.
    """
    if run.secret:
        reasons = run.why_refused(why for _, why in run.refusals.values())
        return [f"{numbers.count(count, 'client')} in {run.name}: {why}" for why, count in reasons]
    return [
        f"{client} in {run.name} from round {round_}: {why}"
        for client, (round_, why) in sorted(run.refusals.items())
    ]


def verify(groups: Sequence[Group], out: Path) -> html.Content:
    runs = [run for part in groups for run in part.runs]
    places = [Path(os.path.relpath(run.folder.resolve(), out.resolve().parent)).as_posix() for run in runs]
    commands = "\n".join(f"discretion verify {shlex.quote(place)}" for place in places)
    digests = "\n".join(  # of the files that never change once a run is made
        f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {place}/{file.name}"
        for run, place in zip(runs, places, strict=True)
        for file in (run.files.config, run.files.population, run.files.plan, run.files.certificate)
    )
    head = ["Run", "Seed", "State", "Ledger", "Certificate"]
    rows: list[list[html.Content]] = [
        [
            run.name,
            f"{run.config.seed}",
            "finished" if run.finished else f"{run.history.done} of {run.plan.rounds} rounds",
            _ledger(run),
            html.Badge("bad", run.broken) if run.broken else "fits plan and population",
        ]
        for run in runs
    ]
    check = html.Tagged("p", ("For ", html.code("sha256sum --check"), ", in the same folder."))
    return [
        html.listing(commands),
        html.table(head, rows, "runs data", "Runs of this report"),
        html.Fold("Digests of the files (SHA-256)", [check, html.listing(digests)]),
    ]


def _ledger(run: Run) -> str:
    if run.ledger is None:
        return "none that can be read"
    open_ = run.ledger.reserved - run.ledger.committed
    waiting = f", {open_} reserved" if open_ else ""
    return f"{run.ledger.committed} rounds released{waiting}"
