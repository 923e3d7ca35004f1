"""The command `budgets`: every client's lifetime budget over all runs, alerts, and a version for others."""

import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from rich.markup import escape
from rich.table import Table
from typer import Argument, Option

from discretion import jsonfile
from discretion.cli import Json, output
from discretion.cli.ledger import ledger_of
from discretion.errors import BudgetAlert, InputError, LedgerError, nearest
from discretion.files import write_safely
from discretion.guard import policy as policies
from discretion.guard.own_ledger import ledger_path
from discretion.ledger.lifetime import Lifetime, read_lifetime
from discretion.report import budget_tables as tables
from discretion.report import budgets_page, numbers, officer, page, public_budgets
from discretion.report.budget_tables import Account, Source
from discretion.runs.folder import RunFolder
from discretion.runs.read import read_run

MOST_CLIENTS = 20  # that get a row each; of more, as many are listed as have spent the largest shares
MOST_RUNS = 10
REMARK = (
    "[dim]promised: what open runs may still spend; room: for another run like the last. Runs are counted "
    "each alone: costs add up to less than their sum.[/]"
)


def budgets(
    ledgers: Annotated[
        list[Path],
        Argument(metavar="LEDGER", help="Files ledger.sqlite, run folders, or a guard's GUARD.toml."),
    ],
    client: Annotated[str | None, Option(help="Show this client only, run by run.")] = None,
    out: Annotated[Path | None, Option("--out", "-o", help="Write a page on them here, too.")] = None,
    public: Annotated[
        bool, Option("--public", help="For others: no names, and no small numbers of clients.")
    ] = False,
    least: Annotated[
        int, Option(min=3, help="With --public: the smallest number of clients that is shown.")
    ] = public_budgets.LEAST,
    alert: Annotated[
        float | None, Option(help="Exit with 6 if a client has spent this share: 0.9 is 90 %.")
    ] = None,
    alert_file: Annotated[
        Path | None, Option(metavar="FILE", help="With --alert: write who has to this file, as JSON.")
    ] = None,
    alert_command: Annotated[
        str, Option(metavar="CMD", help="With --alert: if anybody has, run this, with that JSON as input.")
    ] = "",
    json_: Json = False,
) -> None:
    """Show every client's lifetime budget over all runs: spent, promised to open runs, left, and by run.

    It says who has no room for another run like the last, as the ledger itself would decide. Accounts of
    different ledgers stand side by side and are not added up. Nothing is written to a ledger, and it may be
    in use.

    Examples: `discretion budgets ledger.sqlite --out budgets.html`, `discretion budgets /etc/discretion/
    GUARD.toml` (a hospital's own budget, by operator), `discretion budgets ledger.sqlite --public -o
    public.html`, `discretion budgets ledger.sqlite --alert 0.9 --alert-command "mail -s budgets us@here"`
    """
    if alert is not None and not 0 < alert <= 1:
        raise InputError(f"found --alert {alert:g}, expected a share of a budget above 0 and at most 1")
    if alert is None and (alert_file or alert_command):
        raise InputError("say which share is an alert: --alert 0.9")
    if public and (client is not None or alert is not None):
        raise InputError("--public names nobody: leave out --client and --alert, or --public")
    sources = _read(ledgers)
    if public:
        return _public([source.lifetime for source in sources], least, out, json_)
    threshold = tables.NEAR if alert is None else alert
    everybody = [each for source in sources for each in tables.accounts(source)]
    asked = [each for each in everybody if client in (None, each.client)]
    reached = [] if alert is None else tables.alerts(asked, alert)
    record = tables.to_record(sources, threshold) | {"alert": alert, "alerts": _records(reached)}
    if client is not None:
        shown = _of_client(sources, everybody, client)
        record = _only(record, client)
    else:
        shown = [table for source in sources for table in _of_ledger(source, threshold)]
    if out is not None:
        page.write(budgets_page.render(sources, threshold), out, "page")
    note = output.wrote(out) if out else ""
    output.answer(json_, record, *shown, *([REMARK] if shown else []), note=note)
    if alert is not None:
        _raise_alerts(reached, alert, alert_file, alert_command)


def _read(paths: Sequence[Path]) -> list[Source]:
    """Read each ledger once, under the name that it was given."""
    found: dict[Path, Source] = {}
    for path in paths:
        file, operators, about = path, {}, dict[str, str]()
        if path.suffix == ".toml":
            policy = policies.read(path)
            file = ledger_path(policy)
            operators = {key: name for name, key in policy.operators.items()}
        elif path.is_dir():
            file = ledger_of(path)
            about = officer.about([read_run(path)]) if RunFolder(path).about.exists() else about
        if file.resolve() not in found:
            found[file.resolve()] = Source(str(path), read_lifetime(file), operators, about)
    return list(found.values())


def _of_ledger(source: Source, threshold: float) -> list[Table | str]:
    """Return tables of one ledger: classes and clients, operators of a guard's, and runs."""
    found, life = tables.urgent(tables.accounts(source)), source.lifetime
    heading = f"[bold]{escape(source.name)}[/], rule {life.rule}"
    shown: list[Table | str] = [heading, escape(tables.again(source))]
    if len(found) > MOST_CLIENTS:
        shown.append(_classes(source, threshold))
    shown.append(_clients(found))
    if life.operators:
        table = Table(*output.folded("operator"), *output.right("epsilon of all its runs"))
        for key, spent in life.operators.items():
            table.add_row(escape(source.operator(key)), numbers.epsilon(spent))
        shown.append(table)
    return [*shown, _runs(source)] if life.runs else shown


def _classes(source: Source, threshold: float) -> Table:
    table = Table(
        "budget",
        *output.right("clients", "spent", "promised", "left", f"at {tables.share(threshold)}", "no room"),
        caption="spent, promised: the most of any client; left: the least",
    )
    for row in tables.classes(source, threshold):
        figures = numbers.epsilon(row.spent), numbers.epsilon(row.promised), numbers.rounded_down(row.left)
        table.add_row(row.name, f"{row.clients}", *figures, f"{row.near}", f"{row.no_room}")
    return table


def _clients(found: Sequence[Account]) -> Table:
    more = len(found) - MOST_CLIENTS
    table = Table(
        *output.folded("client"),
        *output.right("budget", "spent", "share", "promised", "left", "room"),
        caption=f"the largest shares; {more} more with --out or --json" if more > 0 else None,
    )
    for each in found[:MOST_CLIENTS]:
        table.add_row(escape(each.client), *_figures(each), each.room_words)
    return table


def _figures(each: Account) -> tuple[str, ...]:
    used = numbers.epsilon(each.spent), tables.share(each.share), numbers.epsilon(each.promised)
    return f"{each.budget:.5g}", *used, numbers.rounded_down(each.left)


def _runs(source: Source) -> Table:
    operators = bool(source.lifetime.operators)
    table = Table(
        *output.folded("run", *(["operator"] if operators else [])),
        *output.right("rounds", "clients", "refusals", "epsilon, at most"),
        title="runs, the last one first",
    )
    for row in tables.runs(source)[:MOST_RUNS]:
        state = f"{row.reserved} of {row.rounds}, open" if row.open else f"{row.reserved}"
        spent = numbers.epsilon(row.spent) + (f" of {numbers.epsilon(row.planned)}" if row.open else "")
        names = [row.run, row.operator] if operators else [row.run]
        table.add_row(*map(escape, names), state, f"{row.clients}", f"{row.refusals}", spent)
    return table


def _of_client(sources: Sequence[Source], everybody: Sequence[Account], client: str) -> list[Table | str]:
    """Return the account of one client in each ledger, run by run."""
    mine = [each for each in everybody if each.client == client]
    if not mine:
        near = nearest(client, [each.client for each in everybody])
        raise LedgerError(f"there is no client {client!r} in these ledgers.{near}")
    shown: list[Table | str] = []
    for source in (source for source in sources if client in source.place):
        shown += [f"[bold]{escape(source.name)}[/]", _clients([e for e in mine if e.ledger == source.name])]
        table = Table(*output.folded("run"), *output.right("epsilon, alone", "of the whole plan"))
        for run, spent, planned in tables.by_run(source, client):
            rest = "closed" if planned is None else numbers.epsilon(planned)
            table.add_row(escape(run), numbers.epsilon(spent), rest)
        shown.append(table)
    return shown


def _only(record: dict[str, Any], client: str) -> dict[str, Any]:
    """Return the record without other clients."""
    kept = ("ledger", "rule", "unit", "adjacency", "last_run")
    ledgers = [
        {name: part[name] for name in kept}
        | {"clients": [each for each in part["clients"] if each["client"] == client]}
        for part in record["ledgers"]
    ]
    return record | {"ledgers": [part for part in ledgers if part["clients"]]}


def _public(lifetimes: Sequence[Lifetime], least: int, out: Path | None, as_json: bool) -> None:
    lifetime = public_budgets.only_one(lifetimes)
    found = public_budgets.cells(lifetime, least)
    table = Table("budget", *output.right("share spent", "clients"))
    for cell in found:
        table.add_row(public_budgets.budget_name(cell), public_budgets.share_name(cell), f"{cell.clients}")
    if not found:
        table.caption = f"fewer than {least} clients have a budget: nothing is shown"
    if out is not None:
        page.write(budgets_page.render_public(lifetime, least), out, "page")
    note = output.wrote(out) if out else ""
    output.answer(as_json, public_budgets.to_record(lifetime, least), table, note=note)


def _records(found: Sequence[Account]) -> list[dict[str, Any]]:
    return [asdict(each) for each in found]


def _raise_alerts(reached: Sequence[Account], alert: float, file: Path | None, command: str) -> None:
    """Write the alerts, run the command if there are any, and raise them."""
    record = jsonfile.dump({"alert": alert, "alerts": _records(reached)})
    if file is not None:
        write_safely(file, record.encode())
    if not reached:
        return
    failed = _tell(command, record) if command else ""
    first = reached[0]
    count = numbers.count(len({each.client for each in reached}), "client")
    raise BudgetAlert(
        f"{count} spent {tables.share(alert)} of the budget or more; first is {first.client} with "
        f"{tables.share(first.share)} in {first.ledger}. Nothing is wrong: this is the alert that was asked "
        f"for{failed}"
    )


def _tell(command: str, record: str) -> str:
    """Run a command, without a shell, with the record as its input; return what went wrong with it."""
    try:
        code = subprocess.run(shlex.split(command), input=record.encode(), check=False).returncode
    except (OSError, ValueError) as problem:
        return f". Its command {command!r} cannot be run: {problem}"
    return f". Its command {command!r} ended with code {code}" if code else ""
