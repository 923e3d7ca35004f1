"""What a data-protection officer reads: what is promised to whom, what is not, and how to verify it."""

import hashlib
import math
import os
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from discretion.plan import Adversary
from discretion.report import numbers, wording
from discretion.report.chart import Style
from discretion.report.comparing import class_names, comparable
from discretion.report.groups import BudgetClass, Group
from discretion.report.markup import (
    badge,
    class_filter,
    facts,
    fold,
    grouped_table,
    meter,
    named,
    note,
    section,
    table,
    text,
)
from discretion.report.reading import Run
from discretion.runs import RunFolder

READERS: dict[Adversary, str] = {
    "clients": "Other clients",
    "public": "Whoever sees the models",
    "server": "The server",
}
FEW_CLASSES = 4  # are listed one by one
MOST_REFUSALS = 20  # are listed
MOST_READABLE = 100.0  # epsilon whose exponential is still worth writing down
LEVEL = 3  # of headings


def sections(groups: Sequence[Group], styles: dict[str, Style], out: Path) -> str:
    parts = [promise(groups, styles), protection(groups, styles), limits(groups), verify(groups, out)]
    return "\n\n".join(parts)


def promise(groups: Sequence[Group], styles: dict[str, Style]) -> str:
    """For each budget class, in plain words: what is promised, how much of it is spent, what is left."""
    head = ["Budget class", "Clients", "Budget", "Spent", "Left", "At worst, odds of a guess"]
    parts, classes, aside = [], [], []
    for part in groups:
        sentence = text(wording.promised(part))
        heading = named(styles[part.label], f"{text(part.label)}<small>{sentence}</small>")
        if part.verdict in ("none", "broken"):
            aside.append(heading)
            continue
        deltas = [run.certificate.delta for run in part.runs]
        delta = numbers.power(max(float(column.max()) for column in deltas))
        parts.append((heading, [_promised(mine, delta) for mine in part.classes]))
        classes.append([None if part.apart else k for k in range(len(part.classes))])
    unprotected = "".join(f'<p class="aside">{words}</p>' for words in aside)
    shown = grouped_table(head, parts, "treatment promise", "Promise by budget class", classes)
    return section(
        "promise",
        "What each client is promised",
        "Whoever looks at what is released can hardly tell whether a client’s data were used. How hardly is "
        "the client’s budget epsilon: the smaller, the stronger. Each number is of the client of the class "
        "that uses most of its budget.",
        class_filter(class_names(comparable(groups))) if parts else "",
        shown if parts else "",
        unprotected.replace("<p ", "<div ").replace("</p>", "</div>"),
        note(
            [
                "<b>Odds of a guess</b>: who holds it for even odds that the client’s data were used is, "
                "after seeing everything, at most so sure; but for a chance of delta that the promise fails.",
                "A page for one client, signed: <code>discretion receipt RUN --client NAME</code>.",
            ]
        ),
        level=LEVEL,
    )


def _promised(mine: BudgetClass, delta: str) -> list[str]:
    used, allowed = numbers.spent_of(mine.spent, mine.budget)
    if math.isinf(mine.budget):
        return [text(mine.name), f"{mine.clients:,}", "no limit: public data", used, "–", "–"]
    left = max(mine.budget - mine.spent, 0.0)
    sure = 1 / (1 + math.exp(-min(mine.spent, MOST_READABLE)))
    return [
        text(mine.name),
        f"{mine.clients:,}",
        f"ε {allowed}<small>delta {delta}</small>",
        used + meter(mine.spent / mine.budget),
        numbers.budget(left, 3) if left else "nothing",
        "certain" if sure > 0.9999 else f"{math.ceil(1000 * sure) / 10:.1f} %",
    ]


def protection(groups: Sequence[Group], styles: dict[str, Style]) -> str:
    head = ["Method", *READERS.values()]
    rows = [[_name(part, styles), *(_protected(part, who) for who in READERS)] for part in groups]
    certificates = [run.certificate for part in groups for run in part.runs]
    accountants = dict.fromkeys(c.accountant for c in certificates)
    meaning = [
        ("What is protected", _by_method(groups, _protected_unit)),
        ("What the server is trusted with", _by_method(groups, _trusted)),
        ("Against whom budgets hold", _by_method(groups, _held)),
        ("Counted by", f"{text(', '.join(accountants))}<small>over every round of the plan</small>"),
        ("How to read epsilon", _meaning(groups)),
    ]
    words = {name: dict.fromkeys(c.against[name] for c in certificates) for name in READERS}
    who = "; ".join(f"<b>{READERS[name]}</b>: {text(' or '.join(words[name]))}" for name in READERS)
    return section(
        "protection",
        "Who is protected from whom",
        "The same plan means something different for each observer. Smaller is stronger.",
        table(head, rows, "matrix", "Epsilon against each observer, by method"),
        note([f"{who}."]),
        facts(meaning),
        level=LEVEL,
    )


def _by_method(groups: Sequence[Group], words: Callable[[Group], str]) -> str:
    """What is true of each method; without names where it is the same for all."""
    lines: dict[str, list[str]] = {}
    for part in groups:
        lines.setdefault(words(part), []).append(part.label)
    if len(lines) == 1:
        return text(*lines)
    return "<br>".join(
        f"<b>{text(numbers.listing(names))}</b>: {text(told)}" for told, names in lines.items()
    )


def _protected_unit(part: Group) -> str:
    return wording.promise(part.first.certificate.unit, part.first.certificate.adjacency)


def _trusted(part: Group) -> str:
    certificate = part.first.certificate
    return wording.trusted(certificate.noise_at, certificate.promise)


def _held(part: Group) -> str:
    """The strongest adversary that is promised, and how many clients may work with it."""
    certificate = part.first.certificate
    if certificate.promises_nothing:
        return "nobody"
    told = wording.OBSERVERS[certificate.promise]
    if certificate.promise != "public" and certificate.colluding:
        told += f", with {numbers.count(certificate.colluding, 'colluding client')}"
    return f"over budget; it was to hold against {told}" if part.verdict == "over" else told


def _name(part: Group, styles: dict[str, Style]) -> str:
    return named(styles[part.label], text(part.label))


def _protected(part: Group, who: Adversary) -> str:
    if part.verdict == "broken":
        return badge("bad", "not certified")
    values = [mine.against[who] for mine in part.classes]
    if all(math.isinf(value) for value in values):
        return f"{badge('plain', 'nothing')}<small>epsilon is infinite</small>"
    worst = f"<b>ε {numbers.spent(max(values))}</b> at most"
    if len(set(values)) == 1:
        return f"{worst}<small>the same for every client</small>"
    if len(values) > FEW_CLASSES:
        return f"{worst}<small>the strictest class {numbers.spent(values[0])}</small>"
    apiece = (f"class {text(mine.name)}: {numbers.spent(mine.against[who])}" for mine in part.classes)
    return f"{worst}<small>{'<br>'.join(apiece)}</small>"


def _meaning(groups: Sequence[Group]) -> str:
    everyone = np.concatenate([run.population.epsilon for part in groups for run in part.runs])
    budgets = everyone[np.isfinite(everyone)]
    if not len(budgets):
        return "Every client’s data are public here."
    ends = dict.fromkeys((float(budgets.min()), float(budgets.max())))
    examples = (f"{_factor(value)} for {numbers.budget(value)}" for value in ends)
    return (
        "The chances of anything that an observer can see, with the client’s data and without them, "
        f"differ by a factor of at most e<sup>ε</sup> (for the budgets here: "
        f"{text(numbers.listing(examples))}), but for a failure chance delta."
    )


def _factor(epsilon: float) -> str:
    if epsilon > MOST_READABLE:
        return "beyond any use"
    factor = math.exp(epsilon)
    return numbers.spent(factor, 3) if factor < 1000 else f"about {numbers.power(factor)}"


def unpromised(groups: Sequence[Group]) -> list[tuple[str, str]]:
    """What nothing here protects or proves: in a word or two, and in plain sentences."""
    runs = [run for part in groups for run in part.runs]
    items = [
        (
            "The test records.",
            f"Accuracy and loss are computed on {wording.tested(runs)}. Nothing is promised about those "
            "records.",
        ),
        (
            "Tuning.",
            "Settings such as clip, rate and learning rate were chosen before these runs. If they were "
            "chosen by looking at the clients’ data, that is not counted here.",
        ),
        (
            "Budgets and sizes.",
            "The server knows each client’s budget and number of records. They are taken as public.",
        ),
        (
            "Time.",
            "How long rounds take, and when they are, depends on who takes part. Nothing is promised about "
            "it; keep logs and times to yourself.",
        ),
        (
            "The program.",
            "Epsilon is proved from the plan. That the program does what the plan says is tested, "
            "not proved.",
        ),
        (
            "Floating-point noise.",
            "The proof is about real numbers; the noise is made of floating-point numbers, whose gaps "
            "can in principle be exploited by whoever sees every bit of a model.",
        ),
        (
            "One person in several clients.",
            "The promise is to one client, or to one of its records. Whoever has data at several clients is "
            "protected less: the epsilons of those clients add up for that person, and delta grows.",
        ),
    ]
    if any(not run.treatment.public for run in runs):
        items.insert(
            4,
            (
                "Secret coins.",
                "The epsilons count on nobody but the server learning who takes part in which round. "
                "Whoever watches the clients’ network traffic may learn it.",
            ),
        )
    if any(run.treatment.batch is not None for run in runs):
        items.append(
            (
                "One person in several records.",
                "Where each record is protected, whoever has several records at a client is protected less: "
                "epsilon grows with their number.",
            )
        )
    if any(run.simulated for run in runs):
        items.insert(
            0,
            (
                "This is a simulation.",
                "Coins and noise come from the seed in the settings. Whoever knows the seed can remove the "
                "noise, so the models must be handled as if they had none.",
            ),
        )
    if len(runs) > 1 or any(run.ledger and run.ledger.other_runs for run in runs):
        items.insert(
            1,
            (
                "Several runs together.",
                "Each epsilon is that of one run. Whoever sees the models of several runs on the same data "
                "learns more than any one of them allows. A ledger that runs share counts them together; "
                + _sharing(runs),
            ),
        )
    return items


def limits(groups: Sequence[Group]) -> str:
    items = [(text(lead), text(body)) for lead, body in unpromised(groups)]
    runs = [run for part in groups for run in part.runs]
    refusing = [sentence for run in runs for sentence in _refusing(run)]
    if refusing:
        more = " …" if len(refusing) > MOST_REFUSALS else ""
        each = text("; ".join(refusing[:MOST_REFUSALS]))
        said = f"Their guards said no, and the run went on without them: {each}{more}."
        items.append(("Clients refused.", said))
    shown = "".join(f"<li><b>{lead}</b> {body}</li>" for lead, body in items)
    return section("limits", "What is not promised", "", f'<ul class="limits">{shown}</ul>', level=LEVEL)


def _refusing(run: Run) -> list[str]:
    """Whose guards refused, since when, and why; where coins are secret only how many: a client is asked,
    and so refuses, in rounds for which its coin came up."""
    if run.secret:
        reasons = run.why_refused(why for _, why in run.refusals.values())
        return [f"{numbers.count(count, 'client')} in {run.name}: {why}" for why, count in reasons]
    return [
        f"{client} in {run.name} from round {round_}: {why}"
        for client, (round_, why) in sorted(run.refusals.items())
    ]


def _sharing(runs: Sequence[Run]) -> str:
    shared = sum(1 for run in runs if run.ledger and run.ledger.other_runs)
    if not shared:
        return "here every run has a ledger of its own."
    return f"here {shared} of {numbers.count(len(runs), 'run')} share one with other runs."


def verify(groups: Sequence[Group], out: Path) -> str:
    runs = [run for part in groups for run in part.runs]
    places = [Path(os.path.relpath(run.folder.resolve(), out.resolve().parent)).as_posix() for run in runs]
    commands = "\n".join(f"discretion verify {shlex.quote(place)}" for place in places)
    digests = "\n".join(
        f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {place}/{file.name}"
        for run, place in zip(runs, places, strict=True)
        for file in _files(RunFolder(run.folder))
    )
    head = ["Run", "Seed", "State", "Ledger", "Certificate"]
    rows = [
        [
            text(run.name),
            f"{run.config.seed}",
            "finished" if run.finished else f"{run.history.done} of {run.plan.rounds} rounds",
            _ledger(run),
            badge("bad", text(run.broken)) if run.broken else "fits plan and population",
        ]
        for run in runs
    ]
    bare = any(part.verdict in ("none", "over") for part in groups)
    unkept = " Where budgets are not kept they say so, and end with code 3." if bare else ""
    return section(
        "verify",
        "How to verify",
        "This report repeats what the run folders say. These commands, run in the folder that holds it, "
        "count every client’s epsilon again, from what plan and ledger say, with a second accountant that "
        f"others wrote, and compare plan, certificate, ledger and history with each other.{unkept}",
        f"<pre><code>{text(commands)}</code></pre>",
        table(head, rows, "runs data", "Runs of this report"),
        fold(
            "Digests of the files (SHA-256)",
            "<p>For <code>sha256sum --check</code>, in the same folder.</p>"
            f"<pre><code>{text(digests)}</code></pre>",
        ),
        level=LEVEL,
    )


def _files(folder: RunFolder) -> list[Path]:
    """What does not change any more when a run is made."""
    return [folder.config, folder.population, folder.plan, folder.certificate]


def _ledger(run: Run) -> str:
    if run.ledger is None:
        return "none that can be read"
    open_ = run.ledger.reserved - run.ledger.committed
    waiting = f", {open_} reserved" if open_ else ""
    return f"{run.ledger.committed} rounds released{waiting}"
