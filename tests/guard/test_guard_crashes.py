"""kill -9 of guards, at chosen points and at random: no ledger counts too little, no noise comes twice."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from discretion.training.orders import Order
from support.guard_process import Process
from support.guarding import (
    charged,
    cryptographic,
    ledger_of,
    own_pools,
    plan_of,
    policy_of,
    remote,
    sockets,
)

PLAN = cryptographic(plan_of(own_pools(40)))
# it dies if it is told to by a file, and then once
DIE = """import os, signal
from pathlib import Path
from discretion.guard import guard
from discretion.ledger.guard_ledger import GuardLedger

def die():
    if Path({armed!r}).exists():
        Path({armed!r}).unlink()
        os.kill(os.getpid(), signal.SIGKILL)

def before(owner, name):
    real = getattr(owner, name)
    def dying(*words):
        die()
        return real(*words)
    setattr(owner, name, dying)

def after(owner, name):
    real = getattr(owner, name)
    def dying(*words):
        found = real(*words)
        die()
        return found
    setattr(owner, name, dying)
"""
# where the guard dies, what is on disk by then, and how often that is tried
POINTS = {
    "before it is reserved": ("before(GuardLedger, 'reserve')", "nothing", 3),
    "between reserve and begin": ("before(GuardLedger, 'begin')", "nothing", 3),
    "during training": ("before(guard.LocalClients, 'updates')", "begun", 20),
    "between reserve and commit": ("before(GuardLedger, 'keep')", "begun", 20),
    "between keeping and commit": ("after(GuardLedger, 'keep')", "begun", 3),
    "between commit and reply": ("after(guard.Guard, '_release')", "kept", 20),
}


def order(round_: int) -> Order:
    return Order(round_, 5, np.zeros(650, np.float32), np.arange(1), np.zeros(1, np.int64))


def spent_after(rounds: int) -> float:
    return charged(PLAN, 0, rounds)


@pytest.mark.parametrize("point", POINTS)
def test_killed_at_a_point(point: str, tmp_path: Path) -> None:
    path, armed = policy_of(tmp_path, 0, test_seed=None), tmp_path / "armed"
    where, on_disk, times = POINTS[point]
    script = DIE.format(armed=str(armed)) + where
    clients = remote(sockets(tmp_path), PLAN)
    guard = Process(path, script).ready()
    try:
        (first,) = clients.updates(order(1))
        made = [first.change.tobytes()]
        for round_ in range(2, times + 2):
            armed.touch()
            assert list(clients.updates(order(round_))) == [] and guard.wait() == -signal.SIGKILL
            with ledger_of(tmp_path, 0) as ledger:
                assert len(ledger.states("r")) == round_ - (on_disk == "nothing")
            guard = Process(path, script).ready()
            again = [part.change.tobytes() for _ in range(2) for part in clients.updates(order(round_))]
            assert len(again) == (0 if on_disk == "begun" else 2) and len(set(again)) <= 1
            if on_disk == "begun":
                assert "not made again" in clients.heard[-1].refused["c0"]
            made += again[:1]
        (last,) = clients.updates(order(times + 2))
        made.append(last.change.tobytes())
        assert len(set(made)) == len(made)
        with ledger_of(tmp_path, 0) as ledger:
            assert ledger.states("r") == [(each, "committed") for each in range(1, times + 3)]
            assert ledger.spent()[0] == pytest.approx(spent_after(times + 2))
    finally:
        guard.end()


def test_killed_at_random_moments(tmp_path: Path) -> None:
    """In each of 20 rounds once, while the order is asked for again until it was answered twice."""
    times = 20
    path = policy_of(tmp_path, 0, test_seed=None)
    rng = np.random.default_rng(int.from_bytes(os.urandom(4)))
    clients = remote(sockets(tmp_path), PLAN)
    guard = Process(path).ready()

    def ask(round_: int) -> list[bytes]:
        """All that came, until a release or a refusal came twice."""
        found: list[bytes] = []
        refused, deadline = 0, time.monotonic() + 60
        while len(found) < 2 and refused < 2:
            assert time.monotonic() < deadline, f"round {round_}: no answer within 60 seconds"
            found += [part.change.tobytes() for part in clients.updates(order(round_))]
            refused += "c0" in clients.heard[-1].refused
        return found

    try:
        begun = time.monotonic()
        assert len(ask(1)) == 2
        one = time.monotonic() - begun  # seconds that a release takes, from a guard that has just started
        made = 0
        for round_ in range(2, times + 2):
            with ThreadPoolExecutor(1) as pool:
                asked = pool.submit(ask, round_)
                time.sleep(rng.uniform(0.0, one))
                guard.kill()
                guard = Process(path).ready()
                releases = asked.result()
            assert len(set(releases)) <= 1  # never twice with different noise
            made += len(set(releases))
            with ledger_of(tmp_path, 0) as ledger:
                assert len(ledger.states("r")) == round_
        with ledger_of(tmp_path, 0) as ledger:
            assert made <= times and ledger.spent()[0] == pytest.approx(spent_after(times + 1))
    finally:
        guard.end()
