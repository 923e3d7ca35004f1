"""ServerApp that trains over Flower, or only asks guards, for a run folder prepared on this machine."""

import logging
from functools import partial

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from discretion.errors import DiscretionError
from discretion.flower.flower_transport import FlowerTransport
from discretion.runs import preflight, reconcile
from discretion.runs.build import load_data
from discretion.runs.execute import execute
from discretion.runs.prepare import build_task
from discretion.runs.read import Run, read_run

log = logging.getLogger("discretion.flower")

WAITING = 120.0  # seconds for nodes to connect; later nodes join later


def main(grid: Grid, context: Context) -> None:
    run, task = read_run(str(context.run_config["folder"])), str(context.run_config["task"])
    transport = FlowerTransport(grid)
    missing = transport.wait_for(run.population.client, WAITING)
    if missing:
        log.warning("%d clients have no node yet: %s", len(missing), ", ".join(missing[:5]))
    try:
        _TASKS[task](run, transport)
    except DiscretionError as problem:  # Flower would only say that there was an exception
        log.error("%s", problem)


def _execute(run: Run, transport: FlowerTransport) -> None:
    execute(run, transport=transport, tell=partial(preflight.write, run.files))


def _preflight(run: Run, transport: FlowerTransport) -> None:
    task = build_task(run.config, load_data(run.config), run.population, run.files.secret())
    if (found := preflight.ask(run, task, transport)) is not None:
        preflight.write(run.files, found)


def _statements(run: Run, transport: FlowerTransport) -> None:
    reconcile.collect(run, transport)


_TASKS = {"run": _execute, "preflight": _preflight, "statements": _statements}

app = ServerApp()
app.main()(main)
