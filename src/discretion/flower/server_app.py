"""ServerApp that runs the training loop over Flower, for a run folder prepared on this machine."""

import logging

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from discretion.errors import DiscretionError
from discretion.flower.flower_transport import FlowerTransport
from discretion.runs.execute import execute
from discretion.runs.read import read_run

log = logging.getLogger("discretion.flower")

WAITING = 120.0  # seconds for nodes to connect; later nodes join later


def main(grid: Grid, context: Context) -> None:
    run = read_run(str(context.run_config["folder"]))
    transport = FlowerTransport(grid)
    missing = transport.wait_for(run.population.client, WAITING)
    if missing:
        log.warning("%d clients have no node yet: %s", len(missing), ", ".join(missing[:5]))
    try:
        execute(run, transport=transport)
    except DiscretionError as problem:  # Flower would only say that there was an exception
        log.error("%s", problem)


app = ServerApp()
app.main()(main)
