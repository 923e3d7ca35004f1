"""The files of a run folder, the lock that keeps two processes apart, and the checkpoint."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors.numpy

from discretion.errors import ConfigError, InputError
from discretion.files import locked, write_safely
from discretion.runs.config import Config
from discretion.training.loop import State


class FileIn:
    """A file of a run folder, as an attribute that gives its path."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, folder: "RunFolder", _: object = None) -> Path:
        return folder.path / self._name


@dataclass(frozen=True)
class RunFolder:
    """Where each part of a run is kept; usable wherever a path is."""

    path: Path

    def __fspath__(self) -> str:
        return str(self.path)

    config = FileIn("config.toml")
    population = FileIn("population.csv")
    plan = FileIn("plan.json")
    certificate = FileIn("certificate.json")
    key = FileIn(".key")
    about = FileIn("run.json")
    history = FileIn("history.jsonl")
    answers = FileIn("answers.jsonl")
    checkpoint = FileIn("checkpoint.safetensors")
    model = FileIn("model.safetensors")
    report = FileIn("report.html")
    profile = FileIn("profile.json")
    lock = FileIn(".lock")

    def ledger(self, config: Config) -> Path:
        return Path(config.ledger) if config.ledger else self.path / "ledger.sqlite"

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
    busy = f"{folder.path} is being run by another process: wait for it, or stop it"
    with locked(folder.lock, busy) as lock:
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
    tensors = {"model": state.model, "velocity": state.velocity, "round": np.array([state.round])}
    tensors |= {"step": state.step, "memory": state.memory, "square": state.square, "mean": state.mean}
    tensors |= {"scale": np.array([state.scale])}
    write_safely(folder.checkpoint, safetensors.numpy.save(tensors))


def read_checkpoint(folder: RunFolder) -> State | None:
    """Return the state after the last finished round; None before the first."""
    if not folder.checkpoint.exists():
        return None
    tensors = safetensors.numpy.load_file(folder.checkpoint)
    done, scale = int(tensors.pop("round")[0]), float(tensors.pop("scale")[0])
    return State(round=done, scale=scale, **tensors)
