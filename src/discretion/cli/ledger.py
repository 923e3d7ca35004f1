"""The command `ledger`: what clients have spent over all runs, and changes of their budgets."""

import math
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from rich.markup import escape
from rich.table import Table
from typer import Argument, Option

from discretion.cli import Json, output
from discretion.errors import InputError, LedgerError, nearest
from discretion.ledger.ledger import Ledger
from discretion.plan.population import Population
from discretion.report import numbers
from discretion.runs.folder import RunFolder
from discretion.runs.read import read_run
from discretion.runs.reconcile import collect, compared, require_reconciled

MOST_CLIENTS = 20  # that get a row each
LOWERED = (
    "[yellow]Budgets of {} were lowered below what was spent before. What is spent stays spent; no further "
    "round is charged to them.[/]"
)
REMARK = "[dim]Costs add up to less than their sum: a run may fit that costs more than is left.[/]"


def ledger(
    path: Annotated[Path, Argument(metavar="LEDGER", help="A ledger.sqlite, or a run folder.")],
    client: Annotated[str | None, Option(help="Show the account of this client.")] = None,
    change: Annotated[
        float | None, Option(help="Top up the client's epsilon (+0.5), or withdraw some (-0.5).")
    ] = None,
    note: Annotated[str, Option(help="Why; kept with the change.")] = "",
    reconcile: Annotated[
        bool,
        Option("--reconcile", help="Ask guards, by a run folder, what each has charged itself for the run."),
    ] = False,
    json_: Json = False,
) -> None:
    """Show what clients have spent of their budgets, over all runs that share a ledger.

    With --reconcile: the run in the server's ledger and in the guards', by signed statements, which are kept
    in RUN/statements.json; no ledger is changed. Exit codes: 0 all stated and none charged more than the
    server knows, 4 one did or signed nothing valid, 7 not all stated anything.

    Examples: `discretion ledger ledger.sqlite`, `discretion ledger ledger.sqlite --client c7 --change -0.5
    --note "asked by mail"` (a change stays on record; what is spent stays spent), `discretion ledger RUN
    --reconcile`
    """
    if reconcile:
        if client is not None or change is not None or note:
            raise InputError("--reconcile changes nothing: leave out --client, --change and --note")
        return _reconcile(path, json_)
    if client is None and (change is not None or note):
        raise InputError("say whose budget is changed: --client NAME --change +0.5")
    if note and change is None:
        raise InputError("a note goes with a change: --change +0.5")
    with Ledger.existing(ledger_of(path) if path.is_dir() else path) as opened:
        if client is not None and change is not None:
            opened.change_budget(client, change, note)
        record = _record(opened, client)
        remarks = [LOWERED.format(numbers.count(low, "client"))] if (low := len(record["lowered"])) else []
        output.answer(json_, record, *_tables(record, opened.population), *remarks, REMARK)


def _reconcile(folder: Path, as_json: bool) -> None:
    run = read_run(folder)
    if run.config.clients.where == "flower":
        from discretion.flower import project

        project.statements(run, output.say)
    else:
        collect(run)
    rows = compared(run)
    table = Table(
        *output.folded("client"),
        *output.right("server", "guard", "operator", "life"),
        *output.folded("why they differ"),
        title="epsilon of this run, by the server's ledger and by the guard's",
        caption="operator: what the guard granted in all runs of this operator; "
        "life: in all runs, where its policy tells it",
    )
    for row in rows:
        figures = (row.server, row.guard, row.by_operator, row.life)
        cells = ("–" if value is None else numbers.epsilon(value) for value in figures)
        table.add_row(escape(row.client), *cells, escape(output.printable(row.why)))
    note = f"Statements are in {run.files.statements}; no ledger was changed."
    output.answer(as_json, {"run": run.about.id, "clients": [vars(row) for row in rows]}, table, note=note)
    require_reconciled(rows)


def ledger_of(folder: Path) -> Path:
    """Return the ledger in a folder, or the shared one that the run in it uses."""
    if not RunFolder(folder).about.exists():
        return folder / "ledger.sqlite"
    run = read_run(folder)
    return run.files.ledger(run.config)


def _record(ledger: Ledger, client: str | None) -> dict[str, Any]:
    """Return all that is on record, or what concerns one client."""
    names = ledger.population.client
    if client is not None and client not in names:
        raise LedgerError(f"there is no client {client!r} in this ledger.{nearest(client, names)}")
    budgets, spent = ledger.budget.tolist(), ledger.spent().tolist()
    left = [math.inf if math.isinf(b) else max(b - s, 0.0) for b, s in zip(budgets, spent, strict=True)]
    deltas, runs = ledger.population.delta.tolist(), ledger.takes_part_in.tolist()
    rows = zip(names, deltas, budgets, spent, left, runs, strict=True)
    fields = ("client", "delta", "budget", "spent", "left", "runs")
    clients = [dict(zip(fields, row, strict=True)) for row in rows if client in (None, row[0])]
    changes = [change._asdict() for change in ledger.changes if client in (None, change.client)]
    withdrawn = {change["client"] for change in changes if change["by"] < 0}
    lowered = [
        row["client"] for row in clients if row["spent"] > row["budget"] and row["client"] in withdrawn
    ]
    record: dict[str, Any] = {
        "rule": ledger.rule,
        "clients": clients,
        "changes": changes,
        "lowered": lowered,  # below what was spent before
    }
    return record if client else record | {"runs": [run._asdict() for run in ledger.runs]}


def _tables(record: dict[str, Any], population: Population) -> list[Table]:
    """Return a row for each client or, of many, for each class of the budgets they came with; and changes."""
    rows = record["clients"]
    many = len(rows) > MOST_CLIENTS
    table = Table(title=f"epsilon by the rule {record['rule']}")
    for heading in ("budget" if many else "client", "clients" if many else "budget", "spent", "left", "runs"):
        table.add_column(heading, justify="right" if table.columns else "left", overflow="fold")
    if many:
        names, member = population.classes()
        for k, name in enumerate(names):
            mine = [rows[i] for i in np.flatnonzero(member == k)]
            least, most = min(row["runs"] for row in mine), max(row["runs"] for row in mine)
            spent, left = max(row["spent"] for row in mine), min(row["left"] for row in mine)
            runs = f"{most}" if least == most else f"{least} to {most}"
            table.add_row(name, f"{len(mine)}", numbers.epsilon(spent), numbers.rounded_down(left), runs)
        table.caption = "spent: the most of any client; left: the least"
    else:
        for row in rows:
            spent, left = numbers.epsilon(row["spent"]), numbers.rounded_down(row["left"])
            table.add_row(escape(row["client"]), f"{row['budget']:.5g}", spent, left, f"{row['runs']}")
    changes = Table(*output.folded("client", "by", "when", "note"), title="changes of budgets")
    for change in record["changes"][-MOST_CLIENTS:]:
        client, note = escape(change["client"]), escape(change["note"])
        changes.add_row(client, f"{change['by']:+g}", change["made"], note)
    return [table, changes] if changes.rows else [table]
