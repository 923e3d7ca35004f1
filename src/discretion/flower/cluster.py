"""SuperLink, SuperNodes and guards on this machine, for trying out: written, started, and ended again."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import tomli_w

from discretion.errors import InputError
from discretion.flower.keys import write_certificates, write_node_key
from discretion.flower.project import environment, tool

STARTING = 180.0  # seconds
ENDING = 20.0
MARK = "DISCRETION_STARTED"  # in the environment of all that is started here
SUPERVISE = str(Path(__file__).with_name("supervise.py"))  # by its path, it needs no more than Python has


def write(folder: Path, clients: tuple[str, ...], port: int) -> None:
    """Certificates, a key for each client's node, and Flower's own configuration."""
    write_certificates(folder / "certificates")
    (folder / "nodes").mkdir(mode=0o700)
    for name in clients:
        write_node_key(folder / "nodes" / name)
    home = folder / "flower"
    home.mkdir()
    link = {
        "address": f"127.0.0.1:{port}",
        "root-certificates": str(folder.absolute() / "certificates/ca.crt"),
    }
    (home / "config.toml").write_text(
        tomli_w.dumps({"superlink": {"default": "here", "here": link}}), encoding="utf-8"
    )
    (folder / "local.json").write_text(json.dumps({"port": port, "clients": list(clients)}))


def up(folder: Path, say: Callable[[str], None]) -> None:
    """Start everything; what was started is on record at once, so that `down` finds it whatever happens."""
    try:
        about = json.loads((folder / "local.json").read_text(encoding="utf-8"))
    except OSError:
        raise InputError(
            f"there is nothing to start in {folder}: make it with discretion flower init"
        ) from None
    if _recorded(folder):
        raise InputError(f"{folder} is up already, or was not ended: discretion flower down {folder}")
    here, port, clients = folder.absolute(), int(about["port"]), list(about["clients"])
    keys = here / "certificates"
    files = {"ca-certfile": "ca.crt", "certfile": "server.pem", "keyfile": "server.key"}
    tls = [f"--ssl-{name}={keys / file}" for name, file in files.items()]
    more = ["--enable-supernode-auth", "--disable-runtime-dependency-installation"]
    database = f"--database={here / 'flower' / 'superlink.db'}"
    _start(folder, "superlink", [tool("flower-superlink"), *tls, *more, database, f"--port={port}"])
    for name in clients:
        policy = str(here / name / "GUARD.toml")
        _start(folder, f"guard-{name}", [sys.executable, "-m", "discretion", "guard", policy])
    _wait(lambda: _listens(port), "the SuperLink", folder)
    _register(folder, clients)
    for number, name in enumerate(clients):
        door = here / name / "guard" / "guard.sock"
        _wait(door.exists, f"the guard of {name}", folder)
        node = [tool("flower-supernode"), f"--root-certificates={keys / 'ca.crt'}"]
        node += [f"--auth-supernode-private-key={here / 'nodes' / name}", f"--superlink=127.0.0.1:{port}"]
        node += [f"--port={port + 1 + number}", f'--node-config=guard="{door}"']
        _start(folder, f"node-{name}", node)
    say(f"Started a SuperLink on 127.0.0.1:{port}, {len(clients)} guards and {len(clients)} nodes.")


def down(folder: Path, say: Callable[[str], None]) -> None:
    """End exactly what `up` started: processes that are still the same ones, with what they started.

    A SuperLink that was killed leaves others behind in sessions of their own: those have our mark.
    """
    ours = [entry["pid"] for entry in _recorded(folder) if _since(entry["pid"]) == entry["since"]]
    for how in (signal.SIGTERM, signal.SIGKILL):  # a leader that has ended may leave others of its group
        for pid in ours:
            with suppress(ProcessLookupError):
                os.killpg(pid, how)
        for pid in marked(folder):
            with suppress(ProcessLookupError):
                os.kill(pid, how)
        deadline = time.monotonic() + ENDING
        while (marked(folder) or not all(map(_is_over, ours))) and time.monotonic() < deadline:
            time.sleep(0.1)
    (folder / "processes.jsonl").unlink(missing_ok=True)
    say(f"Ended {len(ours)} processes.")


def marked(folder: Path, name: str = "") -> list[int]:
    """Processes that were started from here, under this name or any, by us or by those that we started."""
    mark, found = f"{MARK}={folder.absolute()}#{name}".encode(), []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            words = path.read_bytes().split(b"\0")
            if mark in words if name else any(word.startswith(mark) for word in words):
                found.append(int(path.parent.name))
    return found


def _register(folder: Path, clients: list[str]) -> None:
    """Have the SuperLink take the nodes' keys, each under its client's name."""
    nodes, asked = folder.absolute() / "nodes", {}
    for name in clients:
        if not (nodes / f"{name}.registered").exists():
            words = [
                tool("flwr"),
                "supernode",
                "register",
                str(nodes / f"{name}.pub"),
                "here",
                "--name",
                name,
            ]
            asked[name] = subprocess.Popen(
                words, env=_environment(folder), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
    said = {name: process.communicate()[0] for name, process in asked.items()}
    for name, process in asked.items():
        if process.returncode != 0:
            raise InputError(f"the SuperLink does not take the node of {name}: {said[name]}")
        (nodes / f"{name}.registered").touch()


def _environment(folder: Path) -> dict[str, str]:
    return environment(str(folder.absolute() / "flower"))


def _start(folder: Path, name: str, words: list[str]) -> None:
    """Start a program, and again whenever it ends."""
    (folder / "logs").mkdir(exist_ok=True)
    with (folder / "logs" / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, SUPERVISE, *words],
            env=_environment(folder) | {MARK: f"{folder.absolute()}#{name}"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that it can be ended with all that it started
        )
    with (folder / "processes.jsonl").open("a", encoding="utf-8") as record:
        record.write(json.dumps({"name": name, "pid": process.pid, "since": _since(process.pid)}) + "\n")


def _recorded(folder: Path) -> list[dict[str, int]]:
    path = folder / "processes.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _since(pid: int) -> int:
    """When the process started, in ticks: a number that was given to another process has another one."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return -1


def _is_over(pid: int) -> bool:
    """Whether it has ended, and waits for nobody but its parent to notice."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (OSError, IndexError):
        return True


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _wait(ready: Callable[[], bool], what: str, folder: Path) -> None:
    deadline = time.monotonic() + STARTING
    while not ready():
        if time.monotonic() > deadline:
            raise InputError(
                f"{what} did not start: see {folder / 'logs'}, then discretion flower down {folder}"
            )
        time.sleep(0.1)
