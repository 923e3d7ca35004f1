"""Output of the command line: tables that fit 80 columns, progress bars, JSON for machines."""

import json
import math
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column, Table

from discretion.accounting import Certificate
from discretion.arrays import Floats
from discretion.audit import statements
from discretion.audit.cautions import Caution
from discretion.clients.turnout import Turnout
from discretion.jsonfile import dump
from discretion.plan.plan import ADVERSARIES, Plan
from discretion.plan.population import Population
from discretion.plan.summary import Treatment, ends, treatment
from discretion.report import Summary, numbers, summarise, write
from discretion.runs.read import Run
from discretion.timing import OVERHEAD, PARTS, Profile

out = Console(highlight=False, emoji=False)  # :m: in a name stays as it is
err = Console(stderr=True, highlight=False, emoji=False)

UNSEEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}  # control, format (bidirectional too), surrogates, separators
FEW_CLASSES = 4  # get a column each
HOLDS = {True: "[green]yes[/]", False: "[bold red]no[/]", None: "[yellow]unknown[/]"}
VERDICTS = {
    "within": "[green]kept[/]",
    "over": "[bold red]broken[/]",
    "contradicted": "[bold red]contradicted[/]",
    "none": "[yellow]no privacy[/]",
    "broken": "[bold red]unproven[/]",
}


def say(message: str) -> None:
    """Print a message for people on the error stream."""
    err.print(printable(message), markup=False, soft_wrap=True)


def printable(message: str) -> str:
    """Return the message with every character that moves a cursor or reverses text shown as its code."""
    return "".join(
        sign if sign in "\n\t" or unicodedata.category(sign) not in UNSEEN else ascii(sign)[1:-1]
        for sign in message
    )


def warn(found: Iterable[Caution]) -> None:
    """Print warnings on the error stream."""
    for caution in found:
        err.print("[bold yellow]Warning:[/] ", end="")
        say(caution.words)


def print_json(record: dict[str, Any]) -> None:
    sys.stdout.write(dump(record))


def answer(
    as_json: bool,
    record: dict[str, Any],
    *shown: RenderableType,
    note: str = "",
    warnings: Sequence[Caution] | None = None,
) -> None:
    """Print the record for machines, warnings in it; or, for people, what is shown.

    A note and the warnings follow on the error stream.
    """
    if as_json:
        told = {} if warnings is None else {"warnings": [each.to_record() for each in warnings]}
        return print_json(record | told)
    for each in shown:
        out.print(each)
    if note:
        say(note)
    warn(warnings or ())


def right(*headings: str) -> list[Column]:
    """Return columns of figures for a table."""
    return [Column(heading, justify="right") for heading in headings]


def folded(*headings: str) -> list[Column]:
    """Return columns of text, which is never cut off."""
    return [Column(heading, overflow="fold") for heading in headings]


def span(values: Floats) -> str:
    if (found := ends(values)) is None:
        return "–"
    low, high = found
    if math.isinf(low):
        return "∞"
    return f"{low:.4g}" if math.isclose(low, high, rel_tol=1e-3) else f"{low:.3g}–{high:.3g}"


def certificate_text(plan: Plan, population: Population, certificate: Certificate) -> Group:
    """Return what the plan costs each budget class, against whom, and what is promised."""
    tables = [certificate_table(plan, population, certificate), adversaries_table(population, certificate)]
    unit = [] if certificate.promises_nothing else [statements.UNIT[certificate.unit]]
    return Group(*filter(None, tables), *unit, statement(certificate))


def certificate_table(plan: Plan, population: Population, certificate: Certificate) -> Table:
    """Return a table with a row for each budget class: its rate, clip, noise multiplier and epsilon."""
    names, member = population.classes()
    mine = treatment(plan)
    coming = f"clients asked, {plan.reading.choose} train" if plan.reading else "clients expected"
    often = "turns" if mine.public else "rate"
    table = Table(
        "budget",
        *right("clients", often, "clip", "noise / clip", "spent", "within"),
        title=f"{plan.method}: {plan.rounds} rounds, {plan.cohort:.4g} {coming} in each",
        caption=_turns(mine) if mine.public else None,
    )
    for k, name in enumerate(names):
        who = member == k
        rate = span(mine.turns[who] if mine.public else mine.rate[:, who])
        clip, noise = span(mine.clip[:, who]), span(mine.multiplier[:, who])
        spent = numbers.epsilon(float(certificate.spent[who].max()))
        within = bool((certificate.spent[who] <= certificate.budget[who]).all())
        table.add_row(name, f"{int(who.sum())}", rate, clip, noise, spent, HOLDS[within])
    return table


def _turns(mine: Treatment) -> str:
    """Return the caption on public turns and batches."""
    caption = f"turns: in the whole plan; {statements.COINS[mine.coming]}"
    if mine.batch is not None:
        steps = "step" if mine.steps == (1, 1) else "steps"
        count = span(np.array(mine.steps, dtype=np.float64))
        caption += f"\na turn: {count} noisy {steps}, each record in a step with chance {span(mine.batch)}"
    return caption


def adversaries_table(population: Population, certificate: Certificate) -> Table | None:
    """Return epsilon by adversary and budget class; None where it is the same against all."""
    values = np.stack([certificate.epsilon[who] for who in ADVERSARIES])  # (3, N)
    if certificate.promises_nothing or np.allclose(values, certificate.spent, rtol=1e-3):
        return None
    names, member = population.classes()
    few = len(names) <= FEW_CLASSES
    classes = names if few else ["strictest class", "largest"]
    table = Table("against", *right(*classes), "within budgets", title="epsilon, by who is looking")
    promised = ADVERSARIES.index(certificate.promise)
    for place, who in enumerate(ADVERSARIES):
        worst = [numbers.epsilon(float(values[place][member == k].max())) for k in range(len(names))]
        cells = worst if few else [worst[0], numbers.epsilon(float(values[place].max()))]
        within = bool((values[place] <= certificate.budget).all())
        kept = HOLDS[within] if within or place <= promised else "not promised"
        table.add_row(statements.observer(certificate, who), *cells, kept)
    return table


def statement(certificate: Certificate) -> str:
    said = statements.protection(certificate)
    if not certificate.promises_nothing:
        said += f" Counted by {certificate.accountant}."
    if warning := statements.paper_mode(certificate):
        said += f" [bold red]{warning}[/]" if len(certificate.overspent) else f" {warning}"
    return said


def certificate_record(plan: Plan, certificate: Certificate) -> dict[str, Any]:
    over = certificate.overspent
    fields = ("unit", "adjacency", "accountant", "promise", "accounting", "reads", "colluding")
    return {
        "method": plan.method,
        "plan": certificate.plan,
        "rounds": plan.rounds,
        "cohort": plan.cohort,
        **{name: getattr(certificate, name) for name in fields},
        "protection": statements.protection(certificate),
        "noise": statements.noise(certificate),
        "largest_epsilon_against": {who: float(e.max()) for who, e in certificate.epsilon.items()},
        "within_budget": len(over) == 0,
        "overspending": [certificate.clients[i] for i in over],
        "largest_epsilon": float(certificate.spent.max()),
        "largest_share_of_budget": float(np.max(certificate.share)),
    }


def show_profile(profile: Profile) -> None:
    """Print where the time of the rounds went, on the error stream."""
    record = profile.to_record()
    total, rounds = record["total"] or 1.0, record["rounds"] or 1
    table = Table(
        "part",
        Column("what", style="dim"),
        *right("seconds", "ms a round", "share"),
        title=f"where the time of {record['rounds']} rounds went",
        caption=f"{', '.join(OVERHEAD)}: {record['overhead']:.1%} of the rounds' time without evaluation",
    )
    for part, took in [*record["seconds"].items(), ("all", total)]:
        if part == "all":
            table.add_section()
        figures = f"{took:.2f}", f"{1000 * took / rounds:.2f}", f"{took / total:.1%}"
        table.add_row(part, PARTS.get(part, ""), *figures)
    err.print(table)


def progress_note(accuracy: float | None, spent: float, turnout: Turnout | None = None) -> str:
    """Return how many clients were there, the last accuracy, and the largest share of a budget spent."""
    cost = "no privacy" if math.isinf(spent) else f"spent {spent:.0%}"
    answered = f"{turnout.words}  " if turnout else ""
    return f"{answered}{'' if accuracy is None else f'{accuracy:.1%}':5}  {cost}"


def bars(quiet: bool) -> Progress:
    """Return progress bars, each with a note, on the error stream; nothing is shown if `quiet`."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(compact=True),
        console=err,  # so that output can be piped
        disable=quiet,
    )


def fail(message: str, code: int) -> NoReturn:
    """Print an error, as JSON where --json is given, and end with the exit code."""
    if "--json" in sys.argv:
        sys.stderr.write(json.dumps({"error": message}) + "\n")
    else:
        err.print("[bold red]discretion:[/] ", end="")
        say(message)
    sys.exit(code)


def comparison_table(rows: Sequence[Summary]) -> Table:
    """Return the methods, best first: accuracy, and epsilon spent by each budget class."""
    classes = list(dict.fromkeys(name for row in rows for name in row.spent))
    few = len(classes) <= FEW_CLASSES
    table = Table(
        *folded("method"),
        *right("accuracy %", *(classes if few else ["spent of budget"]), "budgets"),
        caption=f"{classes[0]}: epsilon spent by clients of that budget" if few else None,
    )
    for row in rows:
        spent = [numbers.epsilon(row.spent[name]) if name in row.spent else "" for name in classes]
        if not few:
            shares = np.array([row.spent[name] / row.budget[name] for name in row.spent])
            low, high = (f"{share:.0%}" for share in (shares.min(), shares.max()))
            spent = ["∞" if np.isinf(shares).any() else low if low == high else f"{low} to {high}"]
        label = f"{row.label}\n[dim]{'; '.join(row.remarks)}[/]" if row.remarks else row.label
        accuracy = "not yet" if row.accuracy is None else f"{100 * row.accuracy:.1f}"
        accuracy += "" if row.accuracy_std is None else f" ± {100 * row.accuracy_std:.1f}"
        table.add_row(label, accuracy, *spent, VERDICTS[row.verdict])
    return table


def compare_runs(
    folders: Sequence[Run | Path], page: Path | None, title: str | None, as_json: bool, extra: dict[str, Any]
) -> None:
    """Show the runs in these folders as one table, or as JSON with `extra`; and write a report on them."""
    rows = summarise(folders)
    if page:
        write(folders, page, title)
    record = {"report": str(page) if page else None, "methods": [vars(row) for row in rows], **extra}
    several = len(rows) > 1
    found = [Caution(**each | {"of": row.label if several else ""}) for row in rows for each in row.warnings]
    answer(as_json, record, comparison_table(rows), note=wrote(page) if page else "", warnings=found)


def wrote(page: Path, *others: str) -> str:
    """Return the sentences on a page that was written, and how it is opened."""
    opener = "open" if sys.platform == "darwin" else "xdg-open"
    files, address = " and ".join([str(page), *others]), page.resolve().as_uri()
    return f"Wrote {files}. Open it with: {opener} {page}  (or in a browser: {address})"
