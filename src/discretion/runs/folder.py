"""The files of a run folder, the lock that keeps two processes apart, and the checkpoint."""

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from discretion import jsonfile
from discretion.errors import ConfigError, FolderError, InputError
from discretion.files import locked, read_bytes, trying_to, write_safely
from discretion.runs.config import Config
from discretion.training.loop import State

SEAL, UNSEALED = "sha256", b"0" * 64  # of a checkpoint: its name in the header, and what stands there before
RESTORE = "Restore the folder from a copy, or start a new run; a ledger keeps what was spent."


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
        self.manifest = path / "manifest.json"
        self.audit = path / "audit.json"
        self.next_audit = path / "audit.json.next"  # until the manifest lists it
        self.preflight = path / "preflight.json"
        self.statements = path / "statements.json"
        self.lock = path / ".lock"

    def __fspath__(self) -> str:
        return str(self.path)

    @property
    def made(self) -> tuple[Path, ...]:
        """The files that a run is made with, which never change."""
        return (self.config, self.population, self.plan, self.certificate, self.key, self.about)

    @property
    def results(self) -> tuple[Path, ...]:
        """The files that do not change once the run is finished."""
        return (self.history, self.answers, self.profile, self.model)

    def ledger(self, config: Config) -> Path:
        return Path(config.ledger) if config.ledger else self.path / "ledger.sqlite"

    def heads(self, config: Config) -> Path:
        """Where the heads of guards' ledgers are kept: beside the operator's key, for all of its runs."""
        return Path(f"{config.clients.key}.heads")

    def secret(self) -> bytes:
        """Return the key of the run's name; empty for a simulation, whose name anybody may compute."""
        return read_bytes(self.key) or b""

    def require(self) -> None:
        if not self.about.is_file():
            raise InputError(f"no run in {self.path}: expected a file {self.about.name} there")

    def require_new(self) -> None:
        if self.path.exists() and any(self.path.iterdir()):
            raise ConfigError(f"{self.path} exists already. Give another folder, or resume the run in it.")


@contextmanager
def alone(folder: RunFolder) -> Iterator[None]:
    """Hold the run's lock, or raise if another process holds it; the lock ends with this process."""
    in_use = f"{folder.path} is being run by another process: wait for it, or stop it"
    with locked(folder.lock, in_use) as lock:
        with trying_to("write", folder.lock):
            lock.truncate(0)
            lock.write(lock_scope().encode())
        yield


def lock_scope() -> str:
    """Name the boot and the process namespace in which this process's locks are visible; "" if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


@dataclass(frozen=True)
class Sealed:
    """Content of a checkpoint: the state after a round, and digests of what was on disk before it."""

    state: State
    digests: Mapping[str, str]  # SHA-256 by name, of the lines of each journal up to the state's round


def write_checkpoint(folder: RunFolder, state: State, digests: Mapping[str, str]) -> None:
    """Write the state after a round, the digests of the journals' lines so far, and one of the file itself.

    All of it is one file, because that is replaced at once: no crash leaves digests of another state.
    """
    tensors = {name: np.atleast_1d(value) for name, value in vars(state).items()}
    content = safetensors.numpy.save(tensors, {**digests, SEAL: UNSEALED.decode()})
    write_safely(folder.checkpoint, content.replace(UNSEALED, _digest(content), 1))


def read_checkpoint(folder: RunFolder) -> State | None:
    """Return the state after the last finished round; None before the first."""
    sealed = read_sealed(folder)
    return sealed.state if sealed else None


def read_sealed(folder: RunFolder) -> Sealed | None:
    """Return the checkpoint; None where there is none.

    Guarantees:
        A checkpoint with a changed byte, or cut short, is refused.
    """
    content = read_bytes(folder.checkpoint)
    if content is None:
        return None
    seal = re.search(rb'"sha256":"([0-9a-f]{64})"', content)
    if seal is None or _digest(content.replace(seal[1], UNSEALED, 1)) != seal[1]:
        found = "no SHA-256 in it" if seal is None else "its content has not the SHA-256 that is in it"
        raise FolderError(f"{folder.checkpoint} is damaged or was changed: found {found}. {RESTORE}")
    state = _state(tensors_in(content, folder.checkpoint), folder.checkpoint)
    header = content[8 : 8 + int.from_bytes(content[:8], "little")]
    try:
        return Sealed(state, dict(jsonfile.loads(header)["__metadata__"]))
    except (ValueError, LookupError, TypeError) as problem:
        raise FolderError(f"{folder.checkpoint} has an odd header: {problem!r}. {RESTORE}") from None


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()


def _state(tensors: dict[str, NDArray[Any]], path: Path) -> State:
    """Return the state in a checkpoint's tensors; refuse other names, types and shapes, NaN and infinity."""
    names = {field.name for field in fields(State)}
    odd = sorted(names ^ set(tensors)) or [
        name for name, array in tensors.items() if not _fits(name, array, tensors["model"].size)
    ]
    odd = odd or [f"{name} (not finite)" for name in tensors if not np.isfinite(tensors[name]).all()]
    if odd or tensors["round"][0] < 1 or tensors["scale"][0] <= 0:
        raise FolderError(
            f"{path} is no checkpoint of a run: found odd {', '.join(odd) or 'round or scale'}. {RESTORE}"
        )
    done, scale = int(tensors.pop("round")[0]), float(tensors.pop("scale")[0])
    return State(round=done, scale=scale, **tensors)


def _fits(name: str, array: NDArray[Any], size: int) -> bool:
    """Whether an array has the type and shape that a state has under this name, with (`size`,) a model."""
    if name in ("round", "scale"):
        return array.shape == (1,) and array.dtype == (np.int64 if name == "round" else np.float64)
    shape = array.shape[1:] if name == "memory" else array.shape
    left_out = name in ("square", "mean") and shape == (0,)
    return array.dtype == np.float32 and (shape == (size,) or left_out)


def read_tensors(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays in a safetensors file, by name; raise `FolderError` where it is none."""
    return tensors_in(read_bytes(path) or b"", path)


def tensors_in(content: bytes, path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays in the content of a safetensors file, by name."""
    try:
        return safetensors.numpy.load(content)
    except (safetensors.SafetensorError, LookupError, TypeError, ValueError) as problem:
        raise FolderError(f"cannot read {path}: no safetensors file ({problem}). {RESTORE}") from None
