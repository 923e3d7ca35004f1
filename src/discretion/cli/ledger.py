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

MOST_CLIENTS = 20  # that get a row each
REMARK = "[dim]Costs add up to less than their sum: a run may fit that costs more than is left.[/]"


def ledger(
    path: Annotated[Path, Argument(metavar="LEDGER", help="A ledger.sqlite, or a run folder.")],
    client: Annotated[str | None, Option(help="Show the account of this client.")] = None,
    change: Annotated[
        float | None, Option(help="Top up the client's epsilon (+0.5), or withdraw some (-0.5).")
    ] = None,
    note: Annotated[str, Option(help="Why; kept with the change.")] = "",
    json_: Json = False,
) -> None:
    """Show what clients have spent of their budgets, over all runs that share a ledger.

    Examples: `discretion ledger ledger.sqlite`, `discretion ledger ledger.sqlite --client c7 --change -0.5
    --note "asked by mail"` (a change stays on record; what is spent stays spent)
    """
    if client is None and (change is not None or note):
        raise InputError("say whose budget is changed: --client NAME --change +0.5")
    if note and change is None:
        raise InputError("a note goes with a change: --change +0.5")
    with Ledger.existing(_ledger_of(path) if path.is_dir() else path) as opened:
        if client is not None and change is not None:
            opened.change_budget(client, change, note)
        record = _record(opened, client)
        output.answer(json_, record, *_tables(record, opened.population), REMARK)


def _ledger_of(folder: Path) -> Path:
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
    record: dict[str, Any] = {"rule": ledger.rule, "clients": clients, "changes": changes}
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
