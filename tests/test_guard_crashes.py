"""kill -9 of guards, at chosen points and at random: no ledger counts too little, no noise comes twice."""

import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from discretion.accounting import certify
from discretion.clients.transport import Sockets
from discretion.messages import decode_answer
from discretion.orders import Order
from guard_process import Process
from guarding import (
    PEOPLE,
    cryptographic,
    ledger_of,
    own_pools,
    plan_of,
    policy_of,
    remote,
    sockets,
    spent_of,
    trained,
)

PLAN = cryptographic(plan_of(own_pools(40)))
DIE = "import os, signal\nfrom discretion.guard import keeper\n"
DIE += "def die(*_): os.kill(os.getpid(), signal.SIGKILL)\n"
# where the guard dies, and whether the release was on disk by then
POINTS = {
    "before it is reserved": ("keeper.Ledger.reserve = die", "never"),
    "between reserve and begin": ("keeper.Releases.begin = die", "reserved"),
    "during training": ("keeper.LocalClients.updates = die", "begun"),
    "between training and keeping": ("keeper.Releases.keep = die", "begun"),
    "between keeping and commit": ("keeper.Ledger.commit = die", "kept"),
    "between commit and answer": (
        "kept = keeper.Guard._keep\ndef keep(*a):\n    kept(*a)\n    die()\nkeeper.Guard._keep = keep",
        "kept",
    ),
}


def order(round_: int) -> Order:
    return Order(round_, 5, np.zeros(650, np.float32), np.arange(1), np.zeros(1, np.int64))


def released_of(answers: list[bytes]) -> list[bytes]:
    """The different releases among these answers."""
    decoded = [decode_answer(answer) for answer in answers]
    return sorted({body for answer, body in decoded if answer.kind == "done" and body})


@pytest.mark.parametrize("point", POINTS)
def test_killed_at_a_point(point: str, tmp_path: Path) -> None:
    path = policy_of(tmp_path, 0, test_seed=None)
    script, state = POINTS[point]
    clients = remote(sockets(tmp_path), PLAN)
    guard = Process(path).ready()
    (first,) = clients.updates(order(1))
    one = spent_of(tmp_path, 0)
    guard.kill()
    guard = Process(path, DIE + script).ready()
    assert list(clients.updates(order(2))) == [] and guard.wait() == -signal.SIGKILL
    two = float(certify(cryptographic(plan_of(own_pools(2))), PEOPLE).spent[0])
    assert spent_of(tmp_path, 0) == pytest.approx(one if state == "never" else two)
    guard = Process(path).ready()
    try:
        again = [part.change for _ in range(3) for part in clients.updates(order(2))]
        assert len(again) == (0 if state == "begun" else 3)
        assert all(np.array_equal(each, again[0]) for each in again)
        assert spent_of(tmp_path, 0) == pytest.approx(two)
        if state == "begun":
            assert "not done again" in clients.heard[-1].refused["c0"]
        (third,) = clients.updates(order(3))
        assert not np.array_equal(third.change, first.change)
        with ledger_of(tmp_path, 0) as ledger:
            assert ledger.states("r") == [(1, "committed"), (2, "committed"), (3, "committed")]
    finally:
        guard.end()


class Recording(Sockets):
    """Asks for each release until it came twice or was refused, and keeps every answer by its order."""

    def __init__(self, folder: Path) -> None:
        super().__init__({"c0": folder / "c0" / "guard" / "guard.sock"})
        self.answers: dict[bytes, list[bytes]] = {}

    def exchange(self, orders, timeout):  # type: ignore[no-untyped-def]
        for number, each in enumerate(orders):
            found = self.answers.setdefault(each[1], [])
            while each[0] == "c0" and len(found) < 2:
                found += [answer for _, answer in super().exchange([each], 30.0)]
                time.sleep(0.01)
            if found:
                yield number, found[-1]


def test_killed_at_random_moments(tmp_path: Path) -> None:
    path = policy_of(tmp_path, 0, test_seed=None)
    rng = np.random.default_rng(int.from_bytes(os.urandom(4)))
    plan = cryptographic(plan_of(own_pools(12)))
    clients = remote(Recording(tmp_path), plan, "warm")
    guard = Process(path).ready()
    begun = time.monotonic()
    assert len(list(clients.updates(order(1)))) == 1
    one = time.monotonic() - begun  # seconds that a release takes, from a guard that has just started
    over, killed = threading.Event(), 0

    def keep_killing() -> None:
        nonlocal guard, killed
        while not over.wait(rng.uniform(0.0, 2.0 * one)):
            guard.kill()
            killed += 1
            guard = Process(path).ready()

    killer = threading.Thread(target=keep_killing)
    killer.start()
    transport = Recording(tmp_path)
    try:
        end = trained(plan, remote(transport, plan), tmp_path / "server", seed=None)
    finally:
        over.set()
        killer.join()
        guard.end()
    assert end.round == 12 and killed >= 3
    releases = [released_of(answers) for answers in transport.answers.values()]
    assert max(len(each) for each in releases) == 1  # never twice with different noise
    made = sum(len(each) for each in releases)
    with ledger_of(tmp_path, 0) as ledger:
        assert 12 == len(ledger.states("r")) >= made > 0
        at_least = certify(cryptographic(plan_of(own_pools(made + 1))), PEOPLE).spent[0]
        assert ledger.spent()[0] >= at_least * (1 - 1e-9)
