"""Clients trained by several processes: the same rows, and whatever happens to a process is seen."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from discretion.clients.local_clients import LocalClients
from discretion.clients.training import LocalTraining
from discretion.errors import DiscretionError
from discretion.training.orders import Order, Updates
from support.local_clients import DATASET, PARTITION, SIZES, Net, processes

LOCAL = LocalTraining(epochs=2, batch_size=5, momentum=0.5, weight_decay=0.01)
EVERYBODY = list(range(len(SIZES))) * 3


class Unwell(Net):
    """Something is wrong with it, where it trains: `trouble` says what."""

    trouble = ""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled() and self.trouble == "error":
            raise ValueError("a pixel is out of tune")
        if torch.is_grad_enabled() and self.trouble == "odd error":
            raise Odd(7, "cannot be sent")
        if torch.is_grad_enabled() and self.trouble == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(inputs)


class Odd(Exception):
    def __init__(self, number: int, text: str) -> None:
        super().__init__(text)


def clients(workers: int, model: nn.Module | None = None) -> LocalClients:
    torch.manual_seed(0)
    made = LocalClients(DATASET, PARTITION, model or Net(), LOCAL, workers=workers)
    assert made._stack is None
    return made


def parts(made: LocalClients, who: list[int], together: int = 4) -> list[Updates]:
    made._together = together
    turn = np.array([who[:i].count(client) for i, client in enumerate(who)])
    return list(made.updates(Order(2, 9, made.initial(), np.array(who, dtype=np.int64), turn)))


def gone(number: int, seconds: float = 20.0) -> bool:
    """Whether the process ends, or is but a zombie, within this time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            state = Path(f"/proc/{number}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


def test_rows_and_parts_are_the_same_whatever_the_number_of_workers() -> None:
    alone = parts(clients(1), EVERYBODY)
    before = torch.get_num_threads()
    for workers in (2, 3):
        made = clients(workers)
        for _ in range(2):  # the processes stay for the next round
            found = parts(made, EVERYBODY)
            assert [part.clients.tolist() for part in found] == [part.clients.tolist() for part in alone]
            for one, other in zip(alone, found, strict=True):
                np.testing.assert_array_equal(one.change, other.change)
        assert len(processes(made)) == workers
    assert torch.get_num_threads() == before
    assert max(len(part.clients) for part in alone) == 4
    assert all(row.any() for part in alone for row in part.change)


def test_a_row_does_not_depend_on_who_else_is_asked() -> None:
    made = clients(2)
    everybody = parts(made, [0, 1, 2, 3, 4])
    many = {int(c): row for part in everybody for c, row in zip(part.clients, part.change, strict=True)}
    for who in ([3], [4, 1]):
        for part in parts(made, who, together=1):
            np.testing.assert_array_equal(part.change[0], many[int(part.clients[0])])


def test_a_new_model_reaches_every_process() -> None:
    made, other = clients(2), clients(1)
    who = np.array([0, 2, 3, 4])
    for shift in (0.0, 0.5):
        orders = [Order(1, 9, c.initial() + np.float32(shift), who, 0 * who) for c in (made, other)]
        found, expected = (
            np.concatenate([part.change for part in c.updates(order)])
            for c, order in zip((made, other), orders, strict=True)
        )
        np.testing.assert_array_equal(found, expected)


def test_one_worker_is_this_process() -> None:
    made = clients(1)
    parts(made, EVERYBODY)
    assert made._workers is None
    nobody = clients(2)
    assert parts(nobody, []) == [] and nobody._workers is None


@pytest.mark.parametrize("workers", [1, 2])
def test_what_goes_wrong_in_a_process_is_raised_here(workers: int) -> None:
    model = Unwell()
    made = clients(workers, model)
    Unwell.trouble = "error"
    try:
        with pytest.raises(ValueError) as problem:
            parts(made, EVERYBODY)
        assert str(problem.value) == "a pixel is out of tune"
    finally:
        Unwell.trouble = ""
    assert len(parts(made, EVERYBODY)) == 4  # new processes, forked from what is now well


def test_an_error_that_cannot_be_sent_keeps_its_text() -> None:
    made = clients(2, Unwell())
    Unwell.trouble = "odd error"
    try:
        with pytest.raises(RuntimeError, match="^cannot be sent$"):
            parts(made, EVERYBODY)
    finally:
        Unwell.trouble = ""


def test_a_process_that_is_killed_is_an_error_and_no_wait() -> None:
    made = clients(2, Unwell())
    Unwell.trouble = "killed"
    try:
        with pytest.raises(DiscretionError, match="SIGKILL.*train.workers = 1"):
            parts(made, EVERYBODY)
    finally:
        Unwell.trouble = ""
    assert made._workers is not None and not made._workers.alive

    parts(made, EVERYBODY)
    numbers = processes(made)
    os.kill(numbers[0], signal.SIGKILL)  # between two rounds
    with pytest.raises(DiscretionError, match="SIGKILL"):
        for _ in range(3):
            parts(made, EVERYBODY)
    assert all(gone(number) for number in numbers)


def test_who_stops_listening_ends_the_processes_and_can_ask_again() -> None:
    made = clients(2)
    made._together = 2
    who = np.array(EVERYBODY)
    updates = made.updates(Order(2, 9, made.initial(), who, np.repeat([0, 1, 2], 5)))
    next(updates)
    numbers = processes(made)
    updates.close()  # type: ignore[attr-defined]
    assert all(gone(number) for number in numbers)
    assert len(parts(made, EVERYBODY)) == 4


def test_processes_go_with_the_clients() -> None:
    made = clients(2)
    parts(made, EVERYBODY)
    numbers = processes(made)
    assert not any(gone(number, 0.05) for number in numbers)
    del made
    assert all(gone(number) for number in numbers)


SCRIPT = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # else ignored where tests run in the background
import numpy as np
from discretion.training.orders import Order
from discretion.clients.local_clients import LocalClients
from support.local_clients import DATASET, PARTITION, Net, processes
made = LocalClients(DATASET, PARTITION, Net(), workers=2)
who = np.array([0, 1, 2, 3, 4] * 5000)
if sys.argv[1] == "busy":
    made._together = 1
    updates = made.updates(Order(1, 9, made.initial(), who, np.repeat(np.arange(5000), 5)))
    next(updates)
    print(*processes(made), flush=True)
    for _ in updates:
        pass
else:
    list(made.updates(Order(1, 9, made.initial(), who[:5], who[:5] * 0)))
    print(*processes(made), flush=True)
    if sys.argv[1] == "idle":
        time.sleep(60)
"""


@pytest.mark.parametrize(
    ("how", "signal_"),
    [("busy", signal.SIGKILL), ("busy", signal.SIGINT), ("idle", signal.SIGKILL), ("done", None)],
)
def test_no_process_outlives_its_parent(how: str, signal_: signal.Signals | None) -> None:
    command = [sys.executable, "-c", SCRIPT, how]
    here = os.pathsep.join(sys.path)
    environment = {**os.environ, "PYTHONPATH": here, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as parent:
        assert parent.stdout is not None and parent.stderr is not None
        numbers = [int(word) for word in parent.stdout.readline().split()]
        assert len(numbers) == 2, parent.stderr.read()
        if signal_ is not None:
            parent.send_signal(signal_)
        said = parent.stderr.read()
        parent.wait(timeout=20)
    assert all(gone(number) for number in numbers)
    assert ("KeyboardInterrupt" in said) == (signal_ == signal.SIGINT)
    assert said.count("Traceback") <= 1  # one of the parent's, none of the processes'


def test_a_process_does_not_hold_the_locks_of_its_parent(tmp_path: Path) -> None:
    """Else a run could not be resumed while a process of the killed one still trains."""
    with (tmp_path / "lock").open("w") as lock:
        made = clients(2)
        parts(made, EVERYBODY)
        for number in processes(made):
            open_files = [os.readlink(path) for path in Path(f"/proc/{number}/fd").iterdir()]
            assert lock.name not in open_files and sum("socket" in name for name in open_files) <= 1
