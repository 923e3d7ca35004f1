"""The command `doctor`: who is ready for a run, who is not and why; nothing is written or charged."""

import tempfile
from pathlib import Path
from typing import Annotated

from rich.markup import escape
from rich.table import Table
from typer import Argument

from discretion.cli import Json, On, Override, output
from discretion.errors import UnverifiedError
from discretion.runs import config
from discretion.runs.doctor import Diagnosis, LocalCheck, examine
from discretion.runs.preflight import Preflight, ask
from discretion.runs.prepare import Task, write_run
from discretion.runs.read import Run

MOST_ROWS = 50  # clients that get a row each, those that are not ready first


def doctor(
    settings: Annotated[Path, Argument(metavar="CONFIG", help="A config.toml.")],
    on: On = None,
    change: Override = None,
    json_: Json = False,
) -> None:
    """Check files, keys and plan, and ask every guard whether it is ready for the run, and why not.

    Compared are labels, features and scaling, model, size, budget, unit, adversary, randomness and local
    training, and how many of its turns each budget allows. Nothing is written, joined or charged. Exit codes:
    0 all are ready, 2 something is to be mended here or guards take the run for another one, 5 fewer than
    clients.least_answers are ready, 7 enough are ready, but not all, or not for all of their turns, or guards
    are in the settings and nobody was asked.

    Examples: `discretion doctor config.toml`, `discretion doctor config.toml --on guards`
    """
    place = [f"clients.where={on}"] if on else []
    with tempfile.TemporaryDirectory(prefix="discretion-") as folder:
        found = examine(config.read(settings, [*(change or []), *place]), Path(folder) / "run", output.say)
        heard = _asked(found)
    record = {
        "here": [vars(each) for each in found.checks],
        "guards": heard.to_record() if heard else None,
    }
    shown = [_here(found.checks), *([table(heard)] if heard else [])]
    output.answer(json_, record, *shown, note=heard.words + "." if heard else _nobody(found.run))
    found.require()
    if heard:
        heard.require_all()
    elif found.run and (named := _named(found.run)):
        raise UnverifiedError(
            f"found {' and '.join(named)} in the settings, but clients.where = here: no guard was asked. "
            "Ask them with --on guards or --on flower, or take these settings out."
        )


def _nobody(run: Run | None) -> str:
    """Return why nobody was asked; empty where there is no run to ask for."""
    if run is None:
        return ""
    noise = "seeded, so this is a simulation" if run.simulated else "cryptographic"
    where = run.config.clients.where
    return f"Nobody was asked: clients run on this machine (clients.where = {where}), and noise is {noise}."


def _named(run: Run) -> list[str]:
    """Return the settings that say where guards are, as those of a run that has none."""
    how = run.config.clients
    found = {"clients.addresses": how.addresses, "clients.home": how.home}
    return [name for name, value in found.items() if value and how.where == "here"]


def _asked(found: Diagnosis) -> Preflight | None:
    """Ask the guards of a run that could be made; None where there are none."""
    run = found.run
    if run is None or run.task is None or not all(each.holds for each in found.checks):
        return None
    if run.config.clients.where == "flower":
        from discretion.flower import project

        write_run(run, found.key)
        return project.preflight(run, output.say)
    return ask(run, run.task) if run.config.clients.where == "guards" else None


def require_ready(run: Run, task: Task) -> None:
    """Ask the guards of a run; show who is not ready, and raise where the run may not begin."""
    if (found := ask(run, task)) is not None:
        tell(found)
        found.require()


def tell(found: Preflight) -> None:
    """Show who is ready and who is not, on the error stream, where somebody is not."""
    if not found.all_ready or found.cut_short:
        output.err.print(table(found))


def _here(checks: tuple[LocalCheck, ...]) -> Table:
    shown = Table(*output.folded("here", "in order", "found"))
    for each in checks:
        shown.add_row(each.what, output.HOLDS[each.holds], escape(output.printable(each.said)))
    return shown


def table(found: Preflight) -> Table:
    """Return who is ready, who is not and why: those that are not first."""
    shown = Table(*output.folded("client", "ready", "why not"), title=found.words)
    rows = sorted(found.clients, key=lambda each: (each.ready, not each.cut_short))
    for each in rows[:MOST_ROWS]:
        why, ready = "\n".join(f"{what}: {said}" for what, said in each.differs), output.HOLDS[each.ready]
        if each.cut_short and each.turns:
            ready += f", for {each.turns[0]:,} of {each.turns[1]:,} turns"
            why = "budget: it does not allow the turns after these"
        shown.add_row(escape(each.client), ready, escape(output.printable(why)))
    if (more := len(rows) - MOST_ROWS) > 0:
        shown.caption = f"and {more:,} more"
    return shown
