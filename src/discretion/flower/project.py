"""The Flower project of a run: the relay's code for nodes, the ServerApp, and submitting it."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from discretion.errors import InputError

LOOKING = 0.5  # seconds between checks of a run's progress
LAST = 5  # lines of Flower's log in an error


def write(path: Path) -> None:
    """Write the project to a folder of its own."""
    package = path / "discretion_run"
    package.mkdir(parents=True, exist_ok=True)
    here = Path(__file__).parent
    shutil.copyfile(here / "project.toml", path / "pyproject.toml")
    shutil.copyfile(here / "client_app.py", package / "client.py")
    (package / "__init__.py").touch()
    server = "from discretion.flower import server_app\n\napp = server_app.app\n"
    (package / "server.py").write_text(server)  # Flower looks for an assignment


def environment(home: str = "") -> dict[str, str]:
    """Return the environment of Flower's tools: no telemetry, FLWR_HOME, this Python first in PATH."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "PATH": path}
    return os.environ | quiet | ({"FLWR_HOME": home} if home else {})


def tool(name: str) -> str:
    """Return the path of a Flower command beside this Python."""
    path = Path(sys.executable).with_name(name)
    if not path.exists():
        raise InputError(f"{name} is not installed: pip install 'discretion[flower]'")
    return str(path)


def quoted(path: Path) -> str:
    """Return a path as Flower's settings take it, in single quotes or double ones, which hold no escapes."""
    marks = [mark for mark, no in (("'", "'"), ('"', '"\\')) if not set(no) & set(str(path))]
    if not marks:
        raise InputError(f"Flower takes no path with both kinds of quotes: {path}. Use a folder without them")
    return f"{marks[0]}{path}{marks[0]}"


def submit(folder: Path, connection: str, home: str, look: Callable[[], None]) -> None:
    """Run the remaining rounds of a prepared run on a SuperLink, named in Flower's config.toml, and wait.

    Flower's output is kept in flwr.log beside the project; `look` is called regularly, and at the end.
    """
    write(folder / "flower")
    log = folder / "flower" / "flwr.log"
    settings = f"folder={quoted(folder.absolute())}"
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
        todo = f"Flower did not finish the run in {folder}; continue it with --resume"
        raise InputError(f"{todo}. {log} ends with:\n{said}")
