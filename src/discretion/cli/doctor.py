"""The command `doctor`: who is ready for a run, who is not and why; nothing is written or charged."""

import tempfile
from pathlib import Path
from typing import Annotated

from rich.markup import escape
from rich.table import Table
from typer import Argument

from discretion.cli import Json, Override, output
from discretion.runs import config
from discretion.runs.doctor import Diagnosis, LocalCheck, examine
from discretion.runs.preflight import Preflight, ask
from discretion.runs.prepare import Task, write_run
from discretion.runs.read import Run

MOST_ROWS = 50  # clients that get a row each, those that are not ready first
NOBODY = "Clients are on this machine, in this process or a simulation: there is nobody to ask."


def doctor(
    settings: Annotated[Path, Argument(metavar="CONFIG", help="A config.toml.")],
    change: Override = None,
    json_: Json = False,
) -> None:
    """Check files, keys and plan, and ask every guard whether it is ready for the run, and why not.

    Compared are labels, features and scaling, model, size, budget, unit, adversary, randomness and local
    training. Nothing is written, joined or charged. Exit codes: 0 all are ready, 2 something is to be mended
    here or guards take the run for another one, 5 fewer than clients.least_answers are ready, 7 enough are
    ready, but not all.

    Example: `discretion doctor config.toml`
    """
    with tempfile.TemporaryDirectory(prefix="discretion-") as place:
        found = examine(config.read(settings, change or []), Path(place) / "run")
        heard = _asked(found)
    record = {
        "here": [vars(each) for each in found.checks],
        "guards": heard.to_record() if heard else None,
    }
    shown = [_here(found.checks), *([table(heard)] if heard else [])]
    output.answer(json_, record, *shown, note=heard.words + "." if heard else NOBODY if found.run else "")
    found.require()
    if heard:
        heard.require_all()


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
    if not found.all_ready:
        output.err.print(table(found))


def _here(checks: tuple[LocalCheck, ...]) -> Table:
    shown = Table(*output.folded("here", "in order", "found"))
    for each in checks:
        shown.add_row(each.what, output.HOLDS[each.holds], escape(output.printable(each.said)))
    return shown


def table(found: Preflight) -> Table:
    """Return who is ready, who is not and why: those that are not first."""
    shown = Table(*output.folded("client", "ready", "why not"), title=found.words)
    rows = sorted(found.clients, key=lambda each: each.ready)
    for each in rows[:MOST_ROWS]:
        why = "\n".join(f"{what}: {said}" for what, said in each.differs)
        shown.add_row(escape(each.client), output.HOLDS[each.ready], escape(output.printable(why)))
    if (more := len(rows) - MOST_ROWS) > 0:
        shown.caption = f"and {more:,} more"
    return shown
