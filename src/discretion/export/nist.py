"""Answers to what NIST SP 800-226 has evaluators of differential privacy ask, for one run, as Markdown.

The questions are in our own words. They go through the guidelines' pyramid from its top, the parameters, to
its base, the collection of data. Answers are made from plan, certificate, ledger and history.
"""

import math
from collections.abc import Iterator
from pathlib import Path

from discretion.audit import statements
from discretion.audit.attack import read_audit
from discretion.audit.verdicts import contradicted, decided
from discretion.export.by_class import ClassSpending, largest, spending
from discretion.files import write_safely
from discretion.plan.plan import ADVERSARIES
from discretion.report import numbers, officer
from discretion.report.run_group import title
from discretion.runs.read import Run, read_run

NOT_STATED = "not stated"
AT_CLIENTS = (
    "The clients keep their records; a guard before each of them decides what leaves it. How they collect, "
    "store and delete records is theirs to answer."
)
AT_OPERATOR = (
    "One operator holds the records of all clients. How they are collected and kept is its to answer."
)


def write(folder: Path, out: str) -> Path:
    """Write the answers for a run to `out`, or to NAME-nist.md; return the file."""
    run = read_run(folder)
    path = Path(out or f"{run.name}-nist.md")
    write_safely(path, to_markdown(run).encode())
    return path


def to_markdown(run: Run) -> str:
    """Return questions and answers for a run; no client is named."""
    title = f"# Differential privacy of {_plain(run.name)}, by the questions of NIST SP 800-226\n"
    parts = [f"\n## {question}\n\n{answer.strip()}\n" for question, answer in answers(run)]
    return title + "".join(parts)


def answers(run: Run) -> Iterator[tuple[str, str]]:
    """Yield each question and its answer."""
    certificate, limits = run.certificate, dict(statements.unpromised([run]))
    yield "What decides", f"{'; '.join(decided([run]))}."
    yield "Who does it, and what for", _about(run)
    yield "How large are epsilon and delta", _parameters(run)
    yield "Which definition of differential privacy", _definition(run)
    yield (
        "What is the unit of privacy",
        f"{statements.protected(certificate.unit, certificate.adjacency)}. "
        f"{limits['One person in several clients.']} {limits.get('One person in several records.', '')}",
    )
    yield "How do costs add up, and over what time", _composition(run)
    yield "Which algorithm, and is it correct", _algorithm(run, limits["The program."])
    yield "What is the result good for, and for whom", _utility(run)
    yield "Who has to be trusted, and against whom does it hold", _threats(run)
    yield "Which side channels and faults of implementation remain", statements.side_channels(run)
    yield (
        "Who has access to data, coins and keys",
        f"{statements.trusted(certificate)} Access to the machines, to keys and to the ledger’s file is not "
        "part of this record.",
    )
    yield "What was exposed when data were collected", _collection(run, limits)
    yield "What is not promised", "".join(f"- **{lead}** {body}\n" for lead, body in limits.items())
    yield "How can this be verified", _verification(run)


def _about(run: Run) -> str:
    about = run.config.about.model_dump()
    return "".join(f"- {name.capitalize()}: {_plain(value) or NOT_STATED}\n" for name, value in about.items())


def _parameters(run: Run) -> str:
    rows = [
        f"| {each.name} | {each.clients:,} | {numbers.budget(each.budget)} | {numbers.spent(each.spent, 5)} "
        f"| {numbers.power(each.delta)} | {_odds(each)} |\n"
        for each in spending(run)
    ]
    names = ("budget class", "clients", "epsilon allowed", "epsilon spent", "delta", "odds of a guess")
    head = f"| {' | '.join(names)} |\n|{'---|' * len(names)}\n"
    if run.broken:
        return statements.unproved(run.broken)
    if run.certificate.promises_nothing:
        return statements.protection(run.certificate)
    most = numbers.spent(largest(run), 5)
    doubted = f"{said}. Do not rely on these numbers. " if (said := contradicted(run)) else ""
    return (
        f"{doubted}Each client has a budget of its own. The largest epsilon spent is {most}.\n\n"
        f"{head}{''.join(rows)}\n"
        "In each class, of the client that uses most of its budget; spent is rounded up. Odds of a guess: "
        f"{statements.odds([run.certificate])}"
    )


def _odds(mine: ClassSpending) -> str:
    return officer.odds(mine.spent).replace(numbers.SPACE, " ") if math.isfinite(mine.budget) else "–"


def _definition(run: Run) -> str:
    adjacency = run.certificate.adjacency.replace("_", "/")
    differ = f"between data sets that differ by one unit ({adjacency})"
    return f"Approximate, (epsilon, delta), {differ}. Each client has an epsilon and a delta of its own."


def _composition(run: Run) -> str:
    rounds = f"{run.plan.rounds:,} rounds are planned and {run.history.done:,} done"
    counted = (
        f"{rounds}. Counted by {run.certificate.accountant} over every round of the plan, for each client."
    )
    if run.ledger is None:
        return f"{counted} No ledger can be read."
    adaptive = f" {statements.ADAPTIVE}" if run.config.rule == "adaptive" else ""
    return f"{counted} {statements.lasting(run)}{adaptive}"


def _algorithm(run: Run, program: str) -> str:
    how = f"{title(run.plan.method)}: updates are clipped, summed, and released with Gaussian noise"
    checked = "One accountant counts each epsilon; `discretion verify` counts it again by another."
    found = read_audit(run)
    attacks = f"It was attacked in {found.games:,} games." if found else "It was not attacked on purpose."
    attacks += f" {doubted}." if (doubted := contradicted(run)) else ""
    reading = statements.reading(run.certificate)
    read = f" Here {reading}." if reading else ""
    return f"{how}. {statements.taking_part(run.treatment.coming)}{read} {checked} {attacks} {program}"


def _utility(run: Run) -> str:
    history = run.history
    reached = "It was not evaluated."
    if len(history.rounds):
        last = numbers.percent(float(history.accuracy[-1])).replace(numbers.SPACE, " ")
        reached = f"Accuracy {last} after round {int(history.rounds[-1])}, on {statements.tested([run])}."
    names, member = run.classes
    turns = run.treatment.turns
    parts = [turns[member == k].sum() / max(turns.sum(), 1e-9) for k in range(len(names))]
    shares = [f"{name} {part:.0%}" for name, part in zip(names, parts, strict=True)]
    return (
        f"{reached} Clients with stricter budgets may count for less, which can favour the others. Share of "
        f"all updates that is expected of each budget class: {', '.join(shares)}."
    )


def _threats(run: Run) -> str:
    certificate, against = run.certificate, statements.against(run.certificate)
    rows = [
        f"- {statements.OBSERVERS[who].capitalize()}: epsilon is "
        f"{_most(float(certificate.epsilon[who].max()))}. That is {against[who]}.\n"
        for who in ADVERSARIES
    ]
    return f"{statements.protection(certificate)}\n\n{''.join(rows)}"


def _most(epsilon: float) -> str:
    return "infinite" if math.isinf(epsilon) else f"at most {numbers.spent(epsilon, 5)}"


def _collection(run: Run, limits: dict[str, str]) -> str:
    together = run.config.clients.where in statements.TOGETHER
    return f"{AT_OPERATOR if together else AT_CLIENTS} {limits['Budgets and sizes.']}"


def _verification(run: Run) -> str:
    return (
        "`discretion verify` on the run folder, or on its report alone, counts epsilon again and ends in a "
        f"verdict. Plan (SHA-256): `{run.certificate.plan}`. Population: `{run.certificate.population}`."
    )


def _plain(text: str) -> str:
    """Return text in one line, without what Markdown or HTML would take for a mark."""
    words = " ".join(text.split())
    return "".join(f"\\{sign}" if sign in r"\`*_{}[]<>#|!" else sign for sign in words)
