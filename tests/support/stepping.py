"""A run in a process of its own that waits after each round until it is told to go on, and can be killed."""

import multiprocessing
from multiprocessing.connection import Connection
from pathlib import Path

from discretion.runs.execute import Progress, execute
from discretion.runs.folder import RunFolder

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(
    ["discretion.runs.folder", "discretion.clients.local_clients", "discretion.tasks.models"]
)
LAST = 10**9


def train(folder: Path, line: Connection) -> None:
    until = line.recv()

    def on_round(now: Progress) -> None:
        nonlocal until
        line.send(now.round)
        while until <= now.round:
            until = line.recv()

    execute(RunFolder(folder), on_round=on_round)


class Stepping:
    """Trains the run in a folder, as far as it is told to."""

    def __init__(self, folder: Path) -> None:
        self._line, other = PROCESSES.Pipe()
        self._process = PROCESSES.Process(target=train, args=(folder, other))
        self._process.start()
        other.close()

    def until(self, round_: int) -> None:
        """Returns when that round is done, and the next has not begun."""
        self._line.send(round_)
        while self._line.recv() < round_:
            pass

    def to_the_end(self) -> None:
        self._line.send(LAST)
        self._process.join()
        assert self._process.exitcode == 0

    def kill(self) -> None:
        self._process.kill()
        self._process.join()

    def __enter__(self) -> "Stepping":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._process.close()
        self._line.close()
