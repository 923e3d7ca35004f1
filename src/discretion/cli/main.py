"""The command line: its commands, and how errors become messages and exit codes."""

from importlib.metadata import version
from typing import Annotated

import typer
from typer import Option

from discretion.cli import (
    audit,
    budgets,
    doctor,
    experiments,
    flower,
    guards,
    ledger,
    methods,
    output,
    plan,
    report,
    run,
    watch,
)
from discretion.errors import DiscretionError, InputError

app = typer.Typer(
    name="discretion",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="Federated learning where every client keeps its own privacy budget.\n\n"
    "First steps: `discretion demo`, then `discretion init`, `discretion run config.toml`.\n\n"
    "Exit codes: 0 done, 2 bad input, 3 a budget would be overspent, 4 a ledger said "
    "no or a file is damaged, 5 too few clients answered, 6 an alert of `budgets`, 7 not everything could be "
    "verified or not all clients are ready, 1 other.",
)

INTERRUPTED = 130  # the exit code after Ctrl-C


def _version(wanted: bool) -> None:
    if wanted:
        output.out.print(f"discretion {version('discretion')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


for command in (
    *(experiments.demo, run.init, run.run),
    *(methods.methods, methods.data, plan.population, plan.plan, plan.check),
    *(watch.show, watch.watch, report.report, report.compare, watch.export),
    *(report.verify, audit.audit, report.receipt, ledger.ledger, budgets.budgets, run.replan),
    *(guards.guard, guards.guards, guards.key, guards.roster, doctor.doctor, experiments.experiment),
):
    app.command()(command)
app.add_typer(flower.flower, name="flower")


def main() -> None:
    """Run the command line; what goes wrong on purpose becomes one message and an exit code."""
    try:
        app(prog_name="discretion")
    except DiscretionError as problem:
        output.fail(str(problem), problem.exit_code)
    except OSError as problem:
        output.fail(f"{problem.strerror}: {problem.filename}", InputError.exit_code)
    except SystemExit as end:
        if end.code == INTERRUPTED:
            output.say("Stopped. What is done is kept: a run goes on with --resume, all else by itself.")
        raise
