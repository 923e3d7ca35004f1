"""The ServerApp: the one training loop over Flower, for a run folder that was prepared on this machine."""

import logging
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from discretion.flower.transport import FlowerTransport
from discretion.population import Population
from discretion.runs import RunFolder, execute

log = logging.getLogger("discretion.flower")

WAITING = 120.0  # seconds for nodes to come; who comes later joins later


def main(grid: Grid, context: Context) -> None:
    folder = RunFolder(Path(str(context.run_config["folder"])))
    transport = FlowerTransport(grid)
    missing = transport.wait_for(Population.from_csv(folder.population).client, WAITING)
    if missing:
        log.warning("%d clients have no node yet: %s", len(missing), ", ".join(missing[:5]))
    execute(folder, transport=transport)


app = ServerApp()
app.main()(main)
