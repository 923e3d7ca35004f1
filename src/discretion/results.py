"""Commands that show what is in run folders: tables, reports, proofs that they are whole, receipts."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from discretion import terminal
from discretion.errors import BudgetError, InputError, LedgerError
from discretion.options import Json
from discretion.runs import RunFolder

if TYPE_CHECKING:
    from discretion.verify import Verification

Runs = Annotated[list[Path], typer.Argument(help="Run folders, or folders of run folders.")]


def compare(
    runs: Runs,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write a page on them here, too.")] = None,
    json_: Json = False,
) -> None:
    """Show several runs in one table: accuracy, and what it cost whom.

    Seeds of one setting are averaged. Runs on other data, for other clients or budgets, or with a promise
    against another adversary are marked and kept apart.

    Examples: `discretion compare runs/demo`, `discretion compare A B C --out comparison.html`
    """
    terminal.compare_runs(_runs_in(runs), out, None, json_)


def report(
    runs: Runs,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The HTML file to write.")] = None,
    class_accuracy: Annotated[
        bool,
        typer.Option(
            "--class-accuracy",
            help="Show accuracy on each budget class's own records: not private, for simulations only.",
        ),
    ] = False,
    json_: Json = False,
) -> None:
    """Write report.html, one file that needs nothing else, from what is in the run folders.

    Example: `discretion report runs/first`
    """
    from discretion.report import write

    path = out or runs[0] / "report.html"
    write(_runs_in(runs), path, class_accuracy=class_accuracy)
    if json_:
        terminal.print_json({"report": str(path)})
    else:
        terminal.say(f"Wrote {path}. {terminal.how_to_open(path)}")


def verify(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    every: Annotated[
        bool, typer.Option("--every", help="Count every client again, however long that takes.")
    ] = False,
    data: Annotated[
        bool, typer.Option("--data", help="Load the data, too, to see that it is what the run was made from.")
    ] = False,
    json_: Json = False,
) -> None:
    """Count again what a run promised and spent, by a second accountant, and compare all of its records.

    Every epsilon is computed anew by google's dp-accounting, from the plan and from the ledger; plan,
    population, certificate, ledger and history have to fit each other. Exits with 3 where a budget is not
    kept, with 4 where records contradict each other. `discretion check` proves a plan before it is run.

    Example: `discretion verify runs/first`
    """
    from discretion.verify import to_record
    from discretion.verify import verify as count_again

    found = count_again(run, every=every, data=data)
    if json_:
        terminal.print_json(to_record(found))
    else:
        _show(found)
    if not found.whole:
        odd = next(each for each in found.records if not each.holds)
        raise LedgerError(f"the records of {run} contradict each other: {odd.what}: {odd.said}")
    if not found.kept:
        odd = next(each for each in found.budgets if not each.holds)
        raise BudgetError(f"{run} does not keep every budget: {odd.what}: {odd.said}")


def _show(found: "Verification") -> None:
    table = Table(title=f"epsilon, counted again: {found.accountant}")
    for heading in ("budget", "clients", "certificate", "plan, again", "ledger, again", "left"):
        table.add_column(heading, justify="left" if heading == "budget" else "right")
    for each in found.classes:
        left = math.inf if math.isinf(each.budget) else max(each.budget - max(each.life, each.recorded), 0.0)
        values = (each.certified, each.planned, each.recorded)
        cells = (*map(terminal.epsilon, values), terminal.rounded_down(left))
        table.add_row(each.name, f"{each.clients}", *cells)
    if found.counted < found.kinds:
        table.caption = f"{found.counted} of {found.kinds} kinds of clients; all of them with --every"
    terminal.out.print(table)
    findings = Table(show_header=False)
    for item in (*found.records, *found.budgets):
        findings.add_row(item.what, "[green]yes[/]" if item.holds else "[bold red]no[/]", escape(item.said))
    terminal.out.print(findings)


def _runs_in(paths: list[Path]) -> list[Path]:
    found: list[Path] = []
    for path in paths:
        inside = sorted(about.parent for about in path.glob("*/run.json"))
        if RunFolder(path).about.exists():
            found.append(path)
        elif inside:
            found += inside
        else:
            raise InputError(f"there is no run in {path}")
    return found
