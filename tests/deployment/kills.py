"""Runs on Flower during which something is killed, again and again, and started again."""

import secrets
import time
from pathlib import Path

import numpy as np

from network import Network, until

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
MOST_TRIES = 30  # to resume a run; while the SuperLink starts, some come to nothing
PACE = 8.0  # seconds within which something is killed after an order came to a guard: about a round


def killed_run(network: Network, name: str, victim: str, times: int) -> int:
    """Do a whole run, resumed as often as it must be, with at most so many kills; how many there were."""
    rng = np.random.default_rng(secrets.randbits(64))
    words, program = VICTIMS[victim]

    def orders() -> int:
        return sum(door.passed for door in network.doors.values())

    killed, passed, tries = 0, orders(), 0
    running = network.run(name, *SETTINGS, f"seed={secrets.randbits(32)}")
    try:
        while not finished(network, name):
            if running.ended():
                tries += 1
                assert tries < MOST_TRIES, f"{name} does not go on: {running.said()[-3000:]}"
                running = network.resume(name)
            if killed == times:
                until(running.ended, f"the run {name} to end")
                continue
            until(lambda: orders() > passed or running.ended(), f"an order of {name}")  # noqa: B023
            time.sleep(0.0 if running.ended() else rng.uniform(0.0, PACE))
            if not running.ended() and network.kill(words.format(client=rng.choice(network.names)), program):
                killed, passed, tries = killed + 1, orders(), 0
                if victim in FATAL:  # Flower would notice after a while, and end the run
                    running.kill()
        until(running.ended, f"the run {name} to end")
    finally:
        running.kill()
    return killed


def finished(network: Network, name: str) -> bool:
    return Path(network.folder, name, "model.safetensors").exists()
