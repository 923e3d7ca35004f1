"""Processes that train clients, one client at a time each: for models that only torch can train.

They are forked, so they see the data without a copy; models and updates pass through memory that is shared.
"""

import gc
import mmap
import os
import pickle
import signal
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait

import numpy as np
import torch
from numpy.typing import NDArray

from discretion.engine.memory import keep_freed_memory
from discretion.errors import DiscretionError
from discretion.population import Ints
from discretion.server import Vector

Batches = tuple[Ints, NDArray[np.bool_]]  # (steps, batch) a client's records, and which of them are real
Train = Callable[[Vector, Ints, NDArray[np.bool_], float], Vector]
AHEAD = 2  # clients that a process has to do: it need not wait while the updates of others are summed


@dataclass(frozen=True)
class _Process:
    number: int
    pipe: Connection


class Workers:
    """Processes that live as long as this object, and no longer than the process that made it."""

    def __init__(self, train: Train, size: int, count: int, slots: int) -> None:
        """For models of `size` parameters; the updates of at most `slots` clients wait to be taken."""
        self._slots = max(slots, count * AHEAD)
        self._shared = _floats(1 + self._slots, size)  # the model, then updates
        self._processes: list[_Process] = []
        self._end = weakref.finalize(self, _end, os.getpid(), self._processes)
        for _ in range(count):
            self._processes.append(_fork(train, self._shared))

    @property
    def alive(self) -> bool:
        return self._end.alive

    def close(self) -> None:
        self._end()

    def updates(
        self, model: Vector, clients: Iterator[Batches], count: int, rate: float, together: int
    ) -> Iterator[Vector]:
        """(together, d) the updates of `count` clients in their order; the last part may be smaller.

        Guarantees:
            A row does not depend on the number of processes, nor do the parts.
            What goes wrong in a process is raised here; a process that ends is an error, not a wait.
            Who stops listening ends the processes.
        """
        self._shared[0] = model
        given, done = 0, set[int]()
        waiting = dict.fromkeys((process.pipe for process in self._processes), 0)
        try:
            for first in range(0, count, together):
                part = range(first, min(first + together, count))
                while not done.issuperset(part):
                    for pipe in sorted(waiting, key=lambda p: waiting[p]):
                        while given < min(count, first + self._slots) and waiting[pipe] < AHEAD:
                            self._send(pipe, (given, 1 + given % self._slots, *next(clients), rate))
                            given, waiting[pipe] = given + 1, waiting[pipe] + 1
                    for ready in wait([pipe for pipe, number in waiting.items() if number]):
                        assert isinstance(ready, Connection)
                        done.add(self._receive(ready))
                        waiting[ready] -= 1
                yield self._shared[1 + np.array(part) % self._slots]  # a copy
        except BaseException:
            self.close()
            raise

    def _send(self, pipe: Connection, job: tuple[int, int, Ints, NDArray[np.bool_], float]) -> None:
        try:
            pipe.send(job)
        except OSError:
            raise DiscretionError(self._why(pipe)) from None

    def _receive(self, pipe: Connection) -> int:
        """The number of the client that is done."""
        try:
            answer = pipe.recv()
        except (EOFError, OSError):
            raise DiscretionError(self._why(pipe)) from None
        if isinstance(answer, BaseException):
            raise answer
        return int(answer)

    def _why(self, pipe: Connection) -> str:
        (process,) = (process for process in self._processes if process.pipe is pipe)
        self._processes.remove(process)
        pipe.close()
        _, status = os.waitpid(process.number, 0)
        code = os.waitstatus_to_exitcode(status)
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        return (
            f"a process that trains clients {how}; if memory ran out, use fewer: --workers 1. "
            "What is done is kept: go on with --resume"
        )


def _floats(rows: int, columns: int) -> Vector:
    """(rows, columns) zeros that stay shared with processes that are forked from now on."""
    memory = mmap.mmap(-1, max(1, rows * columns * 4))
    return np.frombuffer(memory, np.float32, rows * columns).reshape(rows, columns)


def _fork(train: Train, shared: Vector) -> _Process:
    mine, theirs = Pipe()
    with warnings.catch_warnings():  # there are threads of torch's, which a process with one has no use for
        warnings.simplefilter("ignore", DeprecationWarning)
        number = os.fork()
    if number == 0:
        code = 1
        try:
            _close_others(theirs.fileno())
            _serve(train, shared, theirs)
            code = 0
        finally:
            os._exit(code)
    theirs.close()
    return _Process(number, mine)


def _close_others(own: int) -> None:
    """Locks of files, and the ends of pipes by which others see this process end, are not its own."""
    gc.freeze()  # what the parent had open is not closed again, under a number that is in use anew
    for name in os.listdir("/dev/fd"):
        if int(name) > 2 and int(name) != own:
            with suppress(OSError):  # that of the listing itself is gone
                os.close(int(name))


def _serve(train: Train, shared: Vector, pipe: Connection) -> None:
    """Do what is asked until nobody is there to ask."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever pressed Ctrl-C is told by the parent
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)
    keep_freed_memory()
    while True:
        try:
            client, slot, records, real, rate = pipe.recv()
        except (EOFError, OSError):
            return
        answer: int | BaseException = client
        try:
            shared[slot] = train(shared[0], records, real, rate)
        except BaseException as problem:
            answer = _portable(problem)
        try:
            pipe.send(answer)
        except OSError:
            return


def _portable(problem: BaseException) -> BaseException:
    """The same problem, or one with the same text if it cannot be sent."""
    problem.add_note(f"in a process that trains clients:\n{traceback.format_exc()}")
    try:
        pickle.loads(pickle.dumps(problem))
        return problem
    except Exception:
        return RuntimeError(str(problem))


def _end(parent: int, processes: list[_Process]) -> None:
    if os.getpid() != parent:
        return
    for process in processes:
        os.kill(process.number, signal.SIGKILL)
    for process in processes:
        process.pipe.close()
        os.waitpid(process.number, 0)
    processes.clear()
