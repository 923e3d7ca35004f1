"""A SuperLink, five nodes and five guards on loopback; what passes each guard's door is kept, or lost."""

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
import tomllib
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from discretion.accounting.accountant import TIGHT
from discretion.clients import transport
from discretion.clients.messages import AnyOrder, Train, decode_answer, decode_order, digest, verified
from discretion.errors import MessageError
from discretion.flower import cluster
from discretion.flower.project import environment
from discretion.ledger.ledger import Ledger
from discretion.plan.steps import Steps
from discretion.runs.folder import RunFolder
from discretion.runs.read import read_run
from support.on_record import epsilon_on_record

MOST = 2**31
WAITING = 1200.0  # seconds, for whatever is waited for; so long that only what hangs is late
MOST_TRIES = 30  # to resume a run; while a SuperLink starts, some come to nothing
SETTINGS = """
seed = 5
[population]
clients = 5
budgets = "groups:8,16"
[data]
name = "digits"
records = 60
[model]
name = "mlp"
[plan]
method = "spend_as_you_go"
rounds = 3
rate = 0.6
clip = 0.5
[train]
threads = 1
evaluate_every = 1000
[clients]
key = "net/operator.key"
home = "net/flower"
timeout = 600
"""
# room for many runs, each with other settings
POLICY: dict[str, Any] = {
    "epsilon": 1e6,
    "against": "clients",
    "trust_server": True,
    "socket": "own.sock",
    "ceilings": {"rounds": 1000},
}


NOTHING = Steps.none(1)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(ready: Callable[[], Any], what: str, every: float = 0.05) -> None:
    deadline = time.monotonic() + WAITING
    while not ready():
        assert time.monotonic() < deadline, f"waited {WAITING:g} seconds for {what}"
        time.sleep(every)


class Door:
    """Between a node's relay and its guard."""

    def __init__(self, outer: Path, inner: Path) -> None:
        self._inner = inner
        self.passed = 0  # orders for updates that came
        self.released: dict[tuple[str, int], set[str]] = defaultdict(set)  # by run and round: digests
        self.refused: dict[tuple[str, int], str] = {}
        self.before: Callable[[AnyOrder], None] = lambda order: None
        self.lose, self._rng = 0.0, np.random.default_rng(secrets.randbits(64))
        self._socket = socket.socket(socket.AF_UNIX)
        outer.parent.mkdir(mode=0o700, exist_ok=True)
        self._socket.bind(str(outer))
        self._socket.listen(16)
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._socket.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                threading.Thread(target=self._pass, args=(connection,), daemon=True).start()

    def _pass(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError, MessageError):
            content = transport.receive(connection, MOST, WAITING)
            order = understood(content)
            if order is not None:
                self.before(order)
            with socket.socket(socket.AF_UNIX) as guard:
                guard.connect(str(self._inner))
                transport.send(guard, content, WAITING)
                self.passed += isinstance(order, Train)
                answer = transport.receive(guard, MOST, WAITING)
            if isinstance(order, Train):
                said, body = decode_answer(answer)
                if said.kind == "done":
                    self.released[order.run, order.round].add(digest(body))
                else:
                    self.refused[order.run, order.round] = said.reason
                if self._rng.random() < self.lose:
                    return
            transport.send(connection, answer, WAITING)


def understood(content: bytes) -> AnyOrder | None:
    try:
        return decode_order(verified(content)[1])[0]
    except MessageError:
        return None


class Network:
    """In a folder of its own, which is where commands are run."""

    def __init__(self, folder: Path, settings: str = SETTINGS) -> None:
        self.folder, self.net = folder, folder / "net"
        self.environment = environment(str(self.net / "flower"))
        self.names = tuple(f"c{i}" for i in range(5))
        self._numbers = iter(range(1, 1000))
        (folder / "config.toml").write_text(settings)
        self.port = free_port()
        self.do("flower", "init", "config.toml", "--out", "net", "--port", str(self.port))
        self.doors = {
            name: Door(self.net / name / "guard" / "guard.sock", self.net / name / "own.sock")
            for name in self.names
        }
        self._seed: int | None = 5
        self._write_policies()

    def up(self) -> None:
        self.do("flower", "up", "net")

    def close(self) -> None:
        self.do("flower", "down", "net")
        for door in self.doors.values():
            door.close()

    def do(self, *words: str) -> None:
        self.begin(*words).require()

    def begin(self, *words: str) -> "Command":
        return Command.discretion(self.folder, *words, environment=self.environment)

    def run(self, name: str, *changes: str) -> "Command":
        """Begin a run on Flower, with these settings changed."""
        self._used = True
        more = [word for change in changes for word in ("-c", change)]
        return self.begin("run", "config.toml", "--on", "flower", "--out", name, "--no-report", *more)

    def complete(self, name: str, *changes: str) -> None:
        """A whole run on Flower; where Flower gives up, as it does on a busy machine, it is resumed."""
        running = self.run(name, *changes)
        for _ in range(MOST_TRIES):
            running.wait()
            if self.finished(name):
                return
            running = self.resume(name)
        running.require()

    def finished(self, name: str) -> bool:
        return (self.folder / name / "model.safetensors").exists()

    def resume(self, name: str) -> "Command":
        return self.begin("run", name, "--resume", "--no-report")

    def _write_policies(self) -> None:
        self._guarding, self._used = f"guard-{next(self._numbers)}", False
        for name in self.names:
            path = self.net / name / "GUARD.toml"
            record = tomllib.loads(path.read_text()) | POLICY
            record |= {"folder": self._guarding, "test_seed": self._seed}
            path.write_text(tomli_w.dumps({key: value for key, value in record.items() if value is not None}))

    def renew(self, seed: int | None) -> None:
        """Guards with nothing on record and this test seed: those that are there, or else new ones."""
        for door in self.doors.values():
            door.before, door.lose = lambda order: None, 0.0
        if not self._used and seed == self._seed:
            return
        self._seed = seed
        self._write_policies()
        (self.net / "operator.key.heads").unlink(missing_ok=True)  # new guards are not restored ones
        for name in self.names:
            self.kill(f"guard-{name}", "discretion guard")
        for name in self.names:
            until(self.ledger_path(name).exists, f"the ledger of {name}")
            self.reach(name)

    def reach(self, name: str) -> None:
        """Wait until the guard listens."""

        def listens() -> bool:
            with socket.socket(socket.AF_UNIX) as probe:
                return probe.connect_ex(str(self.net / name / "own.sock")) == 0

        until(listens, f"the guard of {name}")

    def kill(self, name: str, program: str) -> bool:
        """kill -9 of a program of what was started under this name; whether there was one."""
        found = [pid for pid in cluster.marked(self.net, name) if program in words_of(pid)]
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return bool(found)

    def ledger_path(self, name: str) -> Path:
        return self.net / name / self._guarding / "ledger.sqlite"

    def ledger(self, name: str) -> Ledger:
        return Ledger.existing(self.ledger_path(name))

    def heard(self, name: str) -> list[dict[str, Any]]:
        lines = (self.folder / name / "answers.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def check_ledgers(self, *names: str) -> int:
        """All releases of these runs, which are all that guards have on record, were made once and count.

        How many there were.
        """
        made, spent = 0, [NOTHING] * len(self.names)
        for folder in (RunFolder(self.folder / name) for name in names):
            found = read_run(folder)
            run, plan = found.about.id, found.plan
            for i, client in enumerate(self.names):
                released = self.doors[client].released
                rounds = {round_: found for (of, round_), found in released.items() if of == run}
                assert all(len(found) == 1 for found in rounds.values()), f"two draws of noise: {rounds}"
                made += len(rounds)
                with self.ledger(client) as ledger:
                    assert len(ledger.states(run)) >= max(rounds, default=0)
                spent[i] = spent[i].then(plan.steps(max(rounds, default=0)).of(np.array([i])))
        for client, steps in zip(self.names, spent, strict=True):
            with self.ledger(client) as ledger:
                least = TIGHT.epsilon(steps, ledger.population.delta)[0]
                assert epsilon_on_record(ledger)[0] >= least * (1 - 1e-9)
        return made


class Command:
    """A program that is ended with all that it started, whatever happens."""

    def __init__(self, words: list[str], folder: Path, environment: dict[str, str] | None) -> None:
        self._words, self._log = words, folder / "said.log"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                words, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True
            )

    @classmethod
    def discretion(cls, folder: Path, *words: str, environment: dict[str, str] | None = None) -> "Command":
        return cls([sys.executable, "-m", "discretion", *words], folder, environment)

    def said(self) -> str:
        return self._log.read_text(errors="replace")

    def ended(self) -> bool:
        return self._process.poll() is not None

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(WAITING)

    def wait(self) -> None:
        try:
            until(self.ended, f"the end of {' '.join(self._words)}")
        finally:
            self.kill()

    def require(self) -> None:
        self.wait()
        code = self._process.returncode
        assert code == 0, f"{' '.join(self._words)} ended with {code}: {self.said()[-3000:]}"


def words_of(pid: int) -> str:
    """What a process was started with, unless it is a supervisor or over."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
    return "" if "supervise.py" in words else words
