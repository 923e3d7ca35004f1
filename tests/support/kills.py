"""Runs on Flower during which something is killed, again and again, and started again."""

import secrets
import time
from collections.abc import Sequence

import numpy as np

from support.network import MOST_TRIES, Network, until

# what is killed: under which name it was started, and the program
VICTIMS = {
    "guard": ("guard-{client}", "discretion guard"),
    "node": ("node-{client}", "flower-supernode"),
    "superlink": ("superlink", "flower-superlink"),
    "server app": ("superlink", "flwr-serverapp"),
}
FATAL = ("superlink", "server app")
SETTINGS = (
    "train.randomness=cryptographic",
    "plan.method=concert",
    "plan.rate=1.0",
    "plan.rounds=6",
    "clients.timeout=20",
)
PACE = 8.0  # seconds within which something is killed after an order came to a guard: about a round


def killed_run(network: Network, name: str, victims: Sequence[str]) -> int:
    """Do a whole run, resumed as often as it must be, in which these are killed in turn.

    How many were, before the run was over.
    """
    rng = np.random.default_rng(secrets.randbits(64))

    def orders() -> int:
        return sum(door.passed for door in network.doors.values())

    killed, passed, tries = 0, orders(), 0
    running = network.run(name, *SETTINGS, f"seed={secrets.randbits(32)}")
    try:
        while not network.finished(name):
            if running.ended():
                tries += 1
                assert tries < MOST_TRIES, f"{name} does not go on: {running.said()[-3000:]}"
                running = network.resume(name)
            if killed == len(victims):
                until(running.ended, f"the run {name} to end")
                continue
            until(lambda: orders() > passed or running.ended(), f"an order of {name}")  # noqa: B023
            time.sleep(0.0 if running.ended() else rng.uniform(0.0, PACE))
            words, program = VICTIMS[victims[killed]]
            if not running.ended() and network.kill(words.format(client=rng.choice(network.names)), program):
                if victims[killed] in FATAL:  # Flower would notice after a while, and end the run
                    running.kill()
                killed, passed, tries = killed + 1, orders(), 0
        until(running.ended, f"the run {name} to end")
    finally:
        running.kill()
    return killed
