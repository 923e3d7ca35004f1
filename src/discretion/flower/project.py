"""What Flower is given to run: the relay's text for nodes, the name of the server's app, and a run folder."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from discretion.errors import InputError

LOOKING = 0.5  # seconds between looks at how far a run is
LAST = 5  # lines of Flower's log that an error shows

PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "discretion-run"
version = "1.0.0"
description = "A run of Discretion"
license = "Apache-2.0"
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "discretion"

[tool.flwr.app.components]
serverapp = "discretion_run.server:app"
clientapp = "discretion_run.client:app"

[tool.flwr.app.config]
folder = ""
"""


def write(path: Path) -> None:
    """The project, in a folder of its own."""
    package = path / "discretion_run"
    package.mkdir(parents=True, exist_ok=True)
    (path / "pyproject.toml").write_text(PROJECT, encoding="utf-8")
    (package / "__init__.py").write_text("", encoding="utf-8")
    relay = Path(__file__).with_name("relay.py").read_text(encoding="utf-8")
    (package / "client.py").write_text(relay, encoding="utf-8")
    server = "from discretion.flower import server\n\napp = server.app\n"  # Flower looks for an assignment
    (package / "server.py").write_text(server, encoding="utf-8")


def environment(home: str = "") -> dict[str, str]:
    """Of Flower's tools: no telemetry, their folder, and the tools beside this Python first."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "PATH": path}
    return os.environ | quiet | ({"FLWR_HOME": home} if home else {})


def tool(name: str) -> str:
    path = Path(sys.executable).with_name(name)
    if not path.exists():
        raise InputError(f"{name} is not installed here: pip install 'discretion[flower]'")
    return str(path)


def submit(folder: Path, connection: str, home: str, look: Callable[[], None]) -> None:
    """Run what is left of a prepared run on a SuperLink, by its name in Flower's config.toml, and wait.

    What Flower says is kept beside what it was given; `look` is called now and then, and at the end.
    """
    write(folder / "flower")
    log = folder / "flower" / "flwr.log"
    settings = f'folder="{folder.absolute()}"'
    words = [tool("flwr"), "run", str(folder / "flower"), connection, "--stream", "--run-config", settings]
    with log.open("ab") as file:
        running = subprocess.Popen(words, env=environment(home), stdout=file, stderr=subprocess.STDOUT)
        try:
            while running.poll() is None:
                look()
                time.sleep(LOOKING)
        finally:
            running.terminate()
            running.wait()
    look()
    if running.returncode != 0 or not (folder / "model.safetensors").exists():
        said = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-LAST:])
        todo = f"Flower did not finish the run in {folder}; go on with --resume when it can"
        raise InputError(f"{todo}. {log} ends with:\n{said}")
