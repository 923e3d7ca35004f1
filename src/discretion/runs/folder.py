"""The files of a run folder, the lock that keeps two processes apart, and the checkpoint."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import safetensors.numpy

from discretion.errors import ConfigError, InputError
from discretion.files import locked, write_safely
from discretion.runs.config import Config
from discretion.training.loop import State


class RunFolder:
    """Where each part of a run is kept; usable wherever a path is."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.toml"
        self.population = path / "population.csv"
        self.plan = path / "plan.json"
        self.certificate = path / "certificate.json"
        self.key = path / ".key"
        self.about = path / "run.json"
        self.history = path / "history.jsonl"
        self.answers = path / "answers.jsonl"
        self.checkpoint = path / "checkpoint.safetensors"
        self.model = path / "model.safetensors"
        self.report = path / "report.html"
        self.profile = path / "profile.json"
        self.lock = path / ".lock"

    def __fspath__(self) -> str:
        return str(self.path)

    def ledger(self, config: Config) -> Path:
        return Path(config.ledger) if config.ledger else self.path / "ledger.sqlite"

    def heads(self, config: Config) -> Path:
        """Where the heads of guards' ledgers are kept: beside the ledger that this run uses."""
        return self.ledger(config).with_suffix(".heads")

    def secret(self) -> bytes:
        """Return the key of the run's name; empty for a simulation, whose name anybody may compute."""
        return self.key.read_bytes() if self.key.exists() else b""

    def require(self) -> None:
        if not self.about.is_file():
            raise InputError(f"no run in {self.path}: expected a file {self.about.name} there")

    def require_new(self) -> None:
        if self.path.exists() and any(self.path.iterdir()):
            raise ConfigError(
                f"{self.path} exists already. Give another --out, or --resume to go on with a run in it."
            )


@contextmanager
def alone(folder: RunFolder) -> Iterator[None]:
    """Hold the run's lock, or raise if another process holds it; the lock ends with this process."""
    in_use = f"{folder.path} is being run by another process: wait for it, or stop it"
    with locked(folder.lock, in_use) as lock:
        lock.truncate(0)
        lock.write(lock_scope())
        lock.flush()
        yield


def lock_scope() -> str:
    """Name the boot and the process namespace in which this process's locks are visible; "" if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def write_checkpoint(folder: RunFolder, state: State) -> None:
    tensors = {name: np.atleast_1d(value) for name, value in vars(state).items()}
    write_safely(folder.checkpoint, safetensors.numpy.save(tensors))


def read_checkpoint(folder: RunFolder) -> State | None:
    """Return the state after the last finished round; None before the first."""
    if not folder.checkpoint.exists():
        return None
    tensors = safetensors.numpy.load_file(folder.checkpoint)
    done, scale = int(tensors.pop("round")[0]), float(tensors.pop("scale")[0])
    return State(round=done, scale=scale, **tensors)
