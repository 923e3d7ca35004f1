"""The Flower project of a run: the relay's code for nodes, the ServerApp, and submitting it."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from discretion.errors import InputError
from discretion.runs import preflight as preflights
from discretion.runs.folder import RunFolder
from discretion.runs.preflight import Preflight
from discretion.runs.read import Run, read_run
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
        raise InputError(
            f"{name} is not installed beside {sys.executable}. In the repository, in an environment of its "
            "own: pip install -c constraints-flower.txt -e '.[flower]'"
        )
    return str(path)


def quoted(path: Path) -> str:
    """Return a path as Flower's settings take it, in single quotes or double ones, which hold no escapes."""
    marks = [mark for mark, no in (("'", "'"), ('"', '"\\')) if not set(no) & set(str(path))]
    if not marks:
        raise InputError(f"Flower takes no path with both kinds of quotes: {path}. Use a folder without them")
    return f"{marks[0]}{path}{marks[0]}"


def submit(run: Run, look: Callable[[], None], say: Callable[[str], None]) -> None:
    """Run the remaining rounds of a prepared run on a SuperLink, named in Flower's config.toml, and wait.

    A SuperLink that was killed starts again what it had been given: earlier submissions of the run are ended
    first. `look` is called regularly, and at the end.
    """
    folder, files = run.folder, run.files
    files.preflight.unlink(missing_ok=True)
    ended = _submitted(run, "run", look, say)
    if not ended or not files.model.exists():
        if (found := preflights.read(files)) is not None:
            found.require()
        read_run(folder).require_answers()
        raise _unfinished_at(run, f"Flower did not finish the run in {folder}; continue it with --resume")


def preflight(run: Run, say: Callable[[str], None]) -> Preflight:
    """Ask guards by Flower whether they are ready for a run whose folder is written."""
    _submitted(run, "preflight", lambda: None, say)
    if (found := preflights.read(run.files)) is None:
        raise _unfinished_at(run, "Flower did not ask the guards")
    return found


def statements(run: Run, say: Callable[[str], None]) -> None:
    """Ask guards by Flower for statements on a run; they are in its folder then."""
    before = run.files.statements.stat().st_mtime_ns if run.files.statements.exists() else 0
    _submitted(run, "statements", lambda: None, say)
    if not run.files.statements.exists() or run.files.statements.stat().st_mtime_ns == before:
        raise _unfinished_at(run, "Flower did not ask the guards")


def _submitted(run: Run, task: str, look: Callable[[], None], say: Callable[[str], None]) -> bool:
    """Submit a task of the server's process, wait, and return whether Flower says that it ended well.

    Flower's output is kept in flwr.log beside the project.
    """
    folder, connection, home = run.folder, run.config.clients.connection, run.config.clients.home
    write(folder)
    end_earlier(folder, connection, home, say)
    settings = f"folder={quoted(folder.absolute())} task='{task}'"
    words = [tool("flwr"), "run", str(folder / "flower"), connection, "--stream", "--run-config", settings]
    with _log(run).open("ab") as file:
        running = subprocess.Popen(words, env=environment(home), stdout=file, stderr=subprocess.STDOUT)
        try:
            while running.poll() is None:
                look()
                time.sleep(LOOKING)
        finally:
            running.terminate()
            running.wait()
    look()
    return running.returncode == 0


def _log(run: Run) -> Path:
    return run.folder / "flower" / "flwr.log"


def _unfinished_at(run: Run, todo: str) -> InputError:
    said = "\n".join(_log(run).read_text(encoding="utf-8", errors="replace").splitlines()[-LAST:])
    return InputError(f"{todo}. {_log(run)} ends with:\n{said}")


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

    listed = flwr("ls", connection, "--format", "json")
    _require_superlink(listed, connection, home)
    for number, state in _unfinished(listed, name_of(folder)):
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


def _require_superlink(listed: str, connection: str, home: str) -> None:
    """Raise where `flwr ls` says that it was told nothing: it ends with code 0 then, too."""
    try:
        record = json.loads(listed)
        said = str(record["error-message"]) if record["success"] is False else ""
    except (ValueError, KeyError, TypeError):
        return
    if "unavailable" in said:
        found = re.search(r"\(([^\s()]+:\d+)\)", said)
        where = f"at {found[1]}" if found else f"by the connection {connection!r}"
        made = Path(home).parent if home and (Path(home).parent / "local.json").exists() else None
        how = f" (discretion flower up {made})" if made else ""
        raise InputError(
            f"no SuperLink {where}: start it{how}, or wait until it is back. Then give the command "
            "again; go on with a run whose folder is made by --resume"
        )
    if said:
        raise InputError(f"flwr ls by the connection {connection!r} fails: {' '.join(said.split())}")


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
