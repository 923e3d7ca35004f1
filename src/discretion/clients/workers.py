"""Worker processes, each training one client at a time: for models that only torch supports.

Workers are forked, so they see the data without a copy; models and updates pass through shared memory.
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
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, Pipe, wait

import numpy as np
import torch
from numpy.typing import NDArray

from discretion.arrays import Ints
from discretion.clients.devices import keep_freed_memory
from discretion.errors import DiscretionError
from discretion.training.server_update import Vector

Batches = tuple[Ints, NDArray[np.bool_]]  # (steps, batch) a client's records, and which are real
Train = Callable[[Vector, Ints, NDArray[np.bool_], float], Vector]
AHEAD = 2  # clients queued at a worker, so that it does not idle while updates of others are summed


class Workers:
    """Worker processes that end with this object, or with the process that made it."""

    def __init__(self, train: Train, size: int, count: int, slots: int) -> None:
        """Fork `count` workers for models of `size` parameters, with room for `slots` waiting updates."""
        self._slots = max(slots, count * AHEAD)
        memory = mmap.mmap(-1, max(1, 4 * (1 + self._slots) * size))  # shared with forked processes
        shared = np.frombuffer(memory, np.float32, (1 + self._slots) * size)
        self._shared: Vector = shared.reshape(1 + self._slots, size)  # the model, then updates
        self._processes: dict[Connection, int] = {}  # process ids by pipe
        self._end = weakref.finalize(self, _end, os.getpid(), self._processes)
        for _ in range(count):
            pipe, number = _fork(train, self._shared)
            self._processes[pipe] = number

    @property
    def alive(self) -> bool:
        return self._end.alive

    def updates(
        self, model: Vector, clients: Iterator[Batches], count: int, rate: float, together: int
    ) -> Iterator[Vector]:
        """Yield (together, d) updates of `count` clients in their order; the last part may be smaller.

        Guarantees:
            Neither rows nor parts depend on the number of workers.
            An exception in a worker is raised here; a worker that dies raises an error, without waiting.
            Closing this generator early ends the workers.
        """
        self._shared[0] = model
        given, done = 0, set[int]()
        waiting = dict.fromkeys(self._processes, 0)
        try:
            for first in range(0, count, together):
                part = range(first, min(first + together, count))
                while not done.issuperset(part):
                    for pipe in sorted(waiting, key=lambda p: waiting[p]):
                        while given < min(count, first + self._slots) and waiting[pipe] < AHEAD:
                            job = (given, 1 + given % self._slots, *next(clients), rate)
                            with self._failing_if_ended(pipe):
                                pipe.send(job)
                            given, waiting[pipe] = given + 1, waiting[pipe] + 1
                    for ready in wait([pipe for pipe, number in waiting.items() if number]):
                        assert isinstance(ready, Connection)
                        with self._failing_if_ended(ready):
                            answer = ready.recv()
                        if isinstance(answer, BaseException):
                            raise answer
                        done.add(answer)
                        waiting[ready] -= 1
                yield self._shared[1 + np.array(part) % self._slots]  # a copy
        except BaseException:
            self._end()
            raise

    @contextmanager
    def _failing_if_ended(self, pipe: Connection) -> Iterator[None]:
        try:
            yield
        except (EOFError, OSError):
            number = self._processes.pop(pipe)
            pipe.close()
            _, status = os.waitpid(number, 0)
            code = os.waitstatus_to_exitcode(status)
            how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
            raise DiscretionError(
                f"a worker process {how}; if memory ran out, use fewer (train.workers = 1). Finished "
                "rounds are kept: resume the run"
            ) from None


def _fork(train: Train, shared: Vector) -> tuple[Connection, int]:
    mine, theirs = Pipe()
    with warnings.catch_warnings():  # torch has threads, which a worker of one thread does not need
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
    return mine, number


def _close_others(own: int) -> None:
    """Close inherited files: their locks and pipes belong to the parent, which must see them closed."""
    gc.freeze()  # else the parent's objects, when collected, would close file numbers that are reused
    for name in os.listdir("/dev/fd"):
        if int(name) > 2 and int(name) != own:
            with suppress(OSError):  # the directory listing's own is closed already
                os.close(int(name))


def _serve(train: Train, shared: Vector, pipe: Connection) -> None:
    """Train clients as asked until the parent closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)
    keep_freed_memory()
    with suppress(EOFError, OSError):  # the parent has ended
        while True:
            answer, slot, *job = pipe.recv()
            try:
                shared[slot] = train(shared[0], *job)
            except BaseException as problem:
                answer = _portable(problem)
            pipe.send(answer)


def _portable(problem: BaseException) -> BaseException:
    """Return the exception, or one with the same text if it cannot be pickled."""
    problem.add_note(f"in a worker process:\n{traceback.format_exc()}")
    try:
        pickle.loads(pickle.dumps(problem))
        return problem
    except Exception:
        return RuntimeError(str(problem))


def _end(parent: int, processes: dict[Connection, int]) -> None:
    if os.getpid() != parent:
        return
    for number in processes.values():
        os.kill(number, signal.SIGKILL)
    for pipe, number in processes.items():
        pipe.close()
        os.waitpid(number, 0)
    processes.clear()
