"""The Flower project of a run: the relay's code for nodes, the ServerApp, and submitting it."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from discretion.errors import InputError
from discretion.runs.folder import RunFolder
from discretion.watch.follow import is_locked

LOOKING = 0.5  # seconds between checks of a run's progress
ENDING = 120.0  # seconds for the process of an earlier submission
LAST = 5  # lines of Flower's log in an error


def name_of(folder: Path) -> str:
    """Return the name under which a run folder is submitted: the same each time, and that of no other one."""
    return f"discretion-run-{hashlib.sha256(str(folder.absolute()).encode()).hexdigest()[:16]}"


def write(folder: Path) -> None:
    """Write the project of a run folder into it."""
    path = folder / "flower"
    package = path / "discretion_run"
    package.mkdir(parents=True, exist_ok=True)
    here = Path(__file__).parent
    project = (here / "project.toml").read_text(encoding="utf-8")
    (path / "pyproject.toml").write_text(project.replace("NAME", name_of(folder)), encoding="utf-8")
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


def submit(
    folder: Path, connection: str, home: str, look: Callable[[], None], say: Callable[[str], None]
) -> None:
    """Run the remaining rounds of a prepared run on a SuperLink, named in Flower's config.toml, and wait.

    A SuperLink that was killed starts again what it had been given: earlier submissions of the run are ended
    first. Flower's output is kept in flwr.log beside the project; `look` is called regularly, and at the end.
    """
    write(folder)
    end_earlier(folder, connection, home, say)
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


def end_earlier(folder: Path, connection: str, home: str, say: Callable[[str], None]) -> None:
    """End submissions of a run that its SuperLink has not finished; wait until none has the run folder."""

    def flwr(*words: str) -> str:
        done = subprocess.run([tool("flwr"), *words], env=environment(home), capture_output=True, text=True)
        if done.returncode != 0:
            raise InputError(
                f"Flower did not start the run in {folder}: flwr {words[0]} on the SuperLink {connection!r} "
                f"fails. Start the SuperLink, or wait until it is back; then continue with --resume.\n"
                f"{done.stdout}{done.stderr}"
            )
        return done.stdout

    for number, state in _unfinished(flwr("ls", connection, "--format", "json"), name_of(folder)):
        say(f"The SuperLink still has an earlier submission of this run, {number} ({state}); ending it.")
        flwr("stop", number, connection)
    deadline, said = time.monotonic() + ENDING, False
    while is_locked(RunFolder(folder).lock):
        if not said:
            say(f"Waiting for the process that still runs {folder} to end.")
        said = True
        if time.monotonic() > deadline:
            raise InputError(f"{folder} is still being run by another process: wait for it, or stop it")
        time.sleep(LOOKING)


def _unfinished(listed: str, name: str) -> list[tuple[str, str]]:
    """Return number and state of what `flwr ls` lists under a name and is not finished."""
    try:
        return [
            (run["run-id"], run["status"])
            for run in json.loads(listed)["runs"]
            if run["fab-name"] == name and not run["status"].startswith("finished")
        ]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InputError(f"flwr ls: expected the JSON of Flower 1.41, found {listed[:500]}") from None
