"""Output of the command line: tables that fit 80 columns, progress bars, JSON for machines."""

import json
import math
import sys
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from discretion.accounting import Certificate
from discretion.arrays import Floats
from discretion.audit import statements
from discretion.jsonfile import dump
from discretion.methods.papers import RUNS, Comparison
from discretion.plan.advice import LIMITS, Option
from discretion.plan.plan import ADVERSARIES, Plan
from discretion.plan.population import Population
from discretion.plan.summary import Treatment, ends, treatment
from discretion.report import Summary, numbers, summarise, write
from discretion.runs.read import Run
from discretion.tasks.catalogue import Entry
from discretion.timing import OVERHEAD, PARTS, Profile

out = Console(highlight=False, emoji=False)  # :m: in a name stays as it is
err = Console(stderr=True, highlight=False, emoji=False)

UNSEEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}  # control, format (bidirectional too), surrogates, separators
FEW_CLASSES = 4  # get a column each


def say(message: str) -> None:
    """Print a message for people on the error stream."""
    err.print(printable(message), markup=False, soft_wrap=True)


def printable(message: str) -> str:
    """Return the message with every character that moves a cursor or reverses text shown as its code."""
    return "".join(
        sign if sign in "\n\t" or unicodedata.category(sign) not in UNSEEN else ascii(sign)[1:-1]
        for sign in message
    )


def print_json(record: dict[str, Any]) -> None:
    sys.stdout.write(dump(record))


def span(values: Floats) -> str:
    found = ends(values)
    if found is None:
        return "–"
    low, high = found
    if math.isinf(low):
        return "∞"
    return f"{low:.4g}" if math.isclose(low, high, rel_tol=1e-3) else f"{low:.3g}–{high:.3g}"


def certificate_table(plan: Plan, population: Population, certificate: Certificate) -> Table:
    """Return a table with a row for each budget class: its rate, clip, noise multiplier and epsilon."""
    names, member = population.classes()
    mine = treatment(plan)
    table = Table(
        title=f"{plan.method}: {plan.rounds} rounds, {plan.cohort:.4g} {_who_comes(plan)} in each",
        caption=_how_they_come(plan, mine),
    )
    often = "turns" if mine.public else "rate"
    for heading in ("budget", "clients", often, "clip", "noise / clip", "spent", "within"):
        table.add_column(heading, justify="left" if heading == "budget" else "right")
    for k, name in enumerate(names):
        who = member == k
        spent = certificate.spent[who]
        within = bool((spent <= certificate.budget[who]).all())
        table.add_row(
            name,
            f"{int(who.sum())}",
            span(mine.turns[who] if mine.public else mine.rate[:, who]),
            span(mine.clip[:, who]),
            span(mine.multiplier[:, who]),
            numbers.epsilon(float(spent.max())),
            "[green]yes[/]" if within else "[bold red]no[/]",
        )
    return table


def _who_comes(plan: Plan) -> str:
    return f"clients asked, {plan.reading.choose} train" if plan.reading else "clients expected"


def _how_they_come(plan: Plan, mine: Treatment) -> str | None:
    """Return the caption on public turns and batches; None where coins are secret."""
    if not mine.public:
        return None
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
    table = Table(title="epsilon, by who is looking")
    table.add_column("against")
    for name in names if few else ["strictest class", "largest"]:
        table.add_column(name, justify="right")
    table.add_column("within budgets")
    promised = ADVERSARIES.index(certificate.promise)
    for place, who in enumerate(ADVERSARIES):
        worst = [numbers.epsilon(float(values[place][member == k].max())) for k in range(len(names))]
        cells = worst if few else [worst[0], numbers.epsilon(float(values[place].max()))]
        within = bool((values[place] <= certificate.budget).all())
        kept = "[green]yes[/]" if within else "[bold red]no[/]" if place <= promised else "not promised"
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
    return {
        "method": plan.method,
        "plan": certificate.plan,
        "rounds": plan.rounds,
        "cohort": plan.cohort,
        "unit": certificate.unit,
        "adjacency": certificate.adjacency,
        "accountant": certificate.accountant,
        "promise": certificate.promise,
        "accounting": certificate.accounting,
        "reads": certificate.reads,
        "colluding": certificate.colluding,
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
        title=f"where the time of {record['rounds']} rounds went",
        caption=f"{', '.join(OVERHEAD)}: {record['overhead']:.1%} of the rounds' time without evaluation",
    )
    table.add_column("part")
    table.add_column("what", style="dim")
    for heading in ("seconds", "ms a round", "share"):
        table.add_column(heading, justify="right")
    for part, took in [*record["seconds"].items(), ("all", total)]:
        if part == "all":
            table.add_section()
        table.add_row(
            part, PARTS.get(part, ""), f"{took:.2f}", f"{1000 * took / rounds:.2f}", f"{took / total:.1%}"
        )
    err.print(table)


def progress_note(accuracy: float | None, spent: float) -> str:
    """Return accuracy, and the largest share of a budget that any client has spent."""
    cost = "no privacy" if math.isinf(spent) else f"spent {spent:.0%}"
    return f"{'' if accuracy is None else f'{accuracy:.1%}':5}  {cost}"


@contextmanager
def bars(quiet: bool) -> Iterator[Progress]:
    """Show progress on the error stream, so that output can be piped; nothing if `quiet`."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=err, disable=quiet, transient=False) as progress:
        yield progress


def bar(progress: Progress, title: str, total: float) -> TaskID:
    return progress.add_task(title, total=total, note="")


def fail(message: str, as_json: bool) -> None:
    if as_json:
        sys.stderr.write(json.dumps({"error": message}) + "\n")
    else:
        err.print("[bold red]discretion:[/] ", end="")
        say(message)


def data_table(entries: Sequence[Entry]) -> Table:
    table = Table()
    for heading in ("name", "records", "download", "licence", "what"):
        table.add_column(heading, overflow="fold")
    for entry in entries:
        records = "" if entry.records is None else f"{entry.records:,}"
        size = f"{entry.download / 1e6:.0f} MB" if entry.download else ""
        table.add_row(entry.name, records, size, entry.licence, entry.about)
    return table


def show_advice(found: Sequence[Option], chosen: Option | None, rate: float, rounds: int) -> None:
    """Print a row for each rate: noise over signal of the mean update, of one round and of whole runs."""
    counts = sorted({option.rounds for option in found})
    table = Table(title="noise over signal, in one coordinate of the mean update", title_justify="left")
    for heading in ("rate", "updates a round", "one round", *(f"run of {count}" for count in counts)):
        table.add_column(heading, justify="right")
    for each in sorted({option.rate for option in found}):
        runs = {option.rounds: option for option in found if option.rate == each}
        usual = runs.get(rounds)
        style = "bold" if each == rate else None
        table.add_row(
            f"{each:.3g}",
            f"{usual.updates:,.1f}" if usual else "–",
            f"{usual.noise:.3g}" if usual else "–",
            *(f"{runs[count].noise_of_run:.3g}" if count in runs else "–" for count in counts),
            style=style,
        )
    out.print(table)
    if chosen:
        asked = next((o.noise_of_run for o in found if (o.rate, o.rounds) == (rate, rounds)), math.nan)
        out.print(
            f"Every row keeps every budget. At {rounds} rounds, a mean rate of {chosen.rate:.3g} is near the "
            f"least noise there is: {chosen.noise_of_run / asked:.0%} of that at {rate:.3g}, for "
            f"{chosen.rate / rate:.3g} times the updates.",
            soft_wrap=True,
        )
    else:
        out.print("There is no noise in these plans, or nothing else.")
    out.print(LIMITS, soft_wrap=True)


def show_papers(rows: Sequence[Comparison]) -> None:
    """Print a table for each paper: its epsilon, what its noise costs, which noise is enough."""
    for paper in dict.fromkeys(row.paper for row in rows):
        table = Table(title=paper, title_justify="left")
        for heading in ("setting", "promised", "Rényi", "PLD", "", "noise", "needed"):
            table.add_column(heading, justify="left" if heading in ("setting", "") else "right")
        for row in (row for row in rows if row.paper == paper):
            fixed = row.run == "fixed number"  # then Rényi bounds from above and PLD from below
            table.add_row(
                f"{row.source}: {row.setting}\n[dim]{row.run}[/]",
                f"{row.epsilon:.3g}",
                ("≤ " if fixed else "") + f"{row.epsilon_renyi:.3g}",
                ("≥ " if fixed else "") + f"{row.epsilon_pld:.3g}",
                PROMISES[row.verdict],
                f"{row.multiplier:.3g}",
                f"{row.needed_pld:.3g}",
            )
        out.print(table)
    for name, meaning in RUNS.items():
        out.print(f"[dim]{name}:[/] {meaning}")
    out.print(
        "[dim]noise, needed:[/] the paper's noise multiplier, and the least that keeps the promise (PLD)"
    )


PROMISES = {"kept": "[green]kept[/]", "broken": "[bold red]broken[/]", "unproven": "[yellow]unproven[/]"}


def comparison_table(rows: Sequence[Summary]) -> Table:
    """Return the methods, best first: accuracy, and epsilon spent by each budget class."""
    classes = list(dict.fromkeys(name for row in rows for name in row.spent))
    few = len(classes) <= 4
    table = Table(caption=f"{classes[0]}: epsilon spent by clients of that budget" if few else None)
    table.add_column("method", overflow="fold")
    table.add_column("accuracy %", justify="right")
    for name in classes if few else ["spent of budget"]:
        table.add_column(name, justify="right")
    table.add_column("budgets", justify="right")
    for row in rows:
        spent = [numbers.epsilon(row.spent[name]) if name in row.spent else "" for name in classes]
        if not few:
            shares = np.array([row.spent[name] / row.budget[name] for name in row.spent])
            low, high = (f"{share:.0%}" for share in (shares.min(), shares.max()))
            spent = ["∞" if np.isinf(shares).any() else low if low == high else f"{low} to {high}"]
        label = f"{row.label}\n[dim]{'; '.join(row.remarks)}[/]" if row.remarks else row.label
        table.add_row(label, _accuracy(row), *spent, VERDICTS[row.verdict])
    return table


def compare_runs(
    folders: Sequence[Run | Path],
    report: Path | None,
    title: str | None,
    as_json: bool,
    extra: dict[str, Any] | None = None,
) -> None:
    """Show the runs in these folders as one table, or as JSON with `extra`; and write a report on them."""
    rows = summarise(folders)
    if report:
        write(folders, report, title)
    if as_json:
        found = {"report": str(report) if report else None, "methods": [vars(row) for row in rows]}
        print_json(found | (extra or {}))
        return
    out.print(comparison_table(rows))
    if report:
        say(f"Wrote {report}. {how_to_open(report)}")


def how_to_open(path: Path) -> str:
    opener = "open" if sys.platform == "darwin" else "xdg-open"
    return f"Open it with: {opener} {path}  (or in a browser: {path.resolve().as_uri()})"


def _accuracy(row: Summary) -> str:
    if row.accuracy is None:
        return "not yet"
    spread = f" ± {100 * row.accuracy_std:.1f}" if row.accuracy_std is not None else ""
    return f"{100 * row.accuracy:.1f}{spread}"


VERDICTS = {
    "within": "[green]kept[/]",
    "over": "[bold red]broken[/]",
    "none": "[yellow]no privacy[/]",
    "broken": "[bold red]unproven[/]",
}
