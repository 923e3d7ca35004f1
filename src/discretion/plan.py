"""What a method decides before training: who takes part how often, with which clip and noise."""

import hashlib
import json
import math
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from discretion.errors import PlanError
from discretion.population import Floats, Ints
from discretion.steps import Adjacency, Steps

Format = Literal["discretion-plan/1"]
Unit = Literal["client"]
NoiseAt = Literal["server"]
Parameter = str | float | int | bool

FORMAT: Format = "discretion-plan/1"


@dataclass(frozen=True, eq=False)
class Phase:
    """A run of identical rounds. `rate`, `clip` and 1/`noise` are ceilings."""

    rounds: int
    rate: Floats  # (N,) chance of taking part: a secret coin for each client and round
    clip: Floats  # (N,) bound on the L2 norm of one update
    noise: Floats  # (P,) standard deviation of each coordinate, added to each pool's sum
    pool: Ints  # (N,) whose updates are summed before noise is added
    weight: Floats  # (P,) the model moves by the weighted sum of the pools' noisy sums

    def __post_init__(self) -> None:
        """Check everything, and keep copies that nobody can change later."""
        clients, pools = np.shape(self.rate), np.shape(self.noise)
        rules = {
            "rounds must be at least 1, and whole": self.rounds >= 1 and self.rounds % 1 == 0,
            "rate, clip and pool need one entry for each client": len(clients) == 1
            and np.shape(self.clip) == clients
            and np.shape(self.pool) == clients,
            "noise and weight need one entry for each pool": len(pools) == 1
            and np.shape(self.weight) == pools,
            "a rate lies between 0 and 1": _all((self.rate >= 0) & (self.rate <= 1)),
            "a clip is at least 0": _all(self.clip >= 0),
            "noise is finite and at least 0": _all(np.isfinite(self.noise) & (self.noise >= 0)),
            "a pool is one of those that have noise, by its whole number": _all(
                (self.pool >= 0) & (self.pool < np.size(self.noise)) & (self.pool == np.floor(self.pool))
            ),
            "a weight is finite": _all(np.isfinite(self.weight)),
        }
        broken = [rule for rule, holds in rules.items() if not holds]
        if broken:
            raise PlanError("this phase cannot be: " + "; ".join(broken))
        object.__setattr__(self, "rounds", int(self.rounds))
        for name in ("rate", "clip", "noise", "weight", "pool"):
            column = np.array(getattr(self, name), dtype=np.int64 if name == "pool" else np.float64)
            column.flags.writeable = False
            object.__setattr__(self, name, column)

    @classmethod
    def one_pool(cls, rounds: int, rate: Floats, clip: Floats, noise: float) -> "Phase":
        """Every update in one sum, divided by the expected number of updates in it.

        The divisor is public and fixed, so a drop-out costs accuracy and never privacy.
        """
        return cls(
            rounds=rounds,
            rate=rate,
            clip=clip,
            noise=np.array([noise]),
            pool=np.zeros(len(rate), dtype=np.int64),
            weight=np.array([1.0 / rate.sum()]) if rate.any() else np.zeros(1),
        )


@dataclass(frozen=True, eq=False)
class Plan:
    """Everything that decides what is released, and so everything that is accounted for."""

    method: str
    clients: tuple[str, ...]  # whose entry is which, in every (N,) array
    phases: tuple[Phase, ...]
    unit: Unit = "client"
    adjacency: Adjacency = "add_remove"
    noise_at: NoiseAt = "server"
    parameters: Mapping[str, Parameter] = field(default_factory=dict)  # what the method was given

    def __post_init__(self) -> None:
        object.__setattr__(self, "phases", tuple(self.phases))
        object.__setattr__(self, "clients", tuple(self.clients))
        if not self.phases:
            raise PlanError("a plan needs at least one phase")
        if not self.clients or len(set(self.clients)) != len(self.clients):
            raise PlanError("a plan needs clients, each with a name of its own")
        if any(len(phase.rate) != len(self.clients) for phase in self.phases):
            raise PlanError("every phase of a plan needs one entry for each of its clients")
        plain = {name: getattr(value, "item", lambda v=value: v)() for name, value in self.parameters.items()}
        if any(isinstance(value, float) and not math.isfinite(value) for value in plain.values()):
            raise PlanError("a parameter of a method is finite")
        object.__setattr__(self, "parameters", MappingProxyType(plain))

    @property
    def rounds(self) -> int:
        return sum(phase.rounds for phase in self.phases)

    @property
    def cohort(self) -> float:
        """Clients expected in a round, on average over the rounds."""
        return sum(float(p.rate.sum()) * p.rounds for p in self.phases) / self.rounds

    def phase_of(self, round_: int) -> int:
        """The phase that round `round_` (counted from 1) belongs to."""
        ends = np.cumsum([phase.rounds for phase in self.phases])
        if not 1 <= round_ <= ends[-1]:
            raise PlanError(f"round {round_} is not in this plan of {ends[-1]} rounds")
        return int(np.searchsorted(ends, round_))

    def release(self, phase: Phase) -> tuple[Floats, Floats]:
        """(N,) sampling rate and (N,) noise multiplier of one round.

        Guarantees:
            The sensitivity is never given by hand: adding or removing a client changes its pool's sum
            by at most its clip, replacing its data by twice that; the multiplier is the pool's noise divided
            by it.
            A client that cannot change the sum (clip 0) has an infinite multiplier.
        """
        noise = phase.noise[phase.pool]
        sensitivity = phase.clip * (2.0 if self.adjacency == "replace" else 1.0)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            multiplier = np.where(sensitivity > 0, noise / sensitivity, math.inf)
        return phase.rate, multiplier

    def steps(self, rounds: int | None = None) -> Steps:
        """What the first `rounds` rounds cost each client (all rounds unless said)."""
        left = self.rounds if rounds is None else rounds
        rates, multipliers, counts = [], [], []
        for phase in self.phases:
            count = min(left, phase.rounds)
            if count <= 0:
                break
            rate, multiplier = self.release(phase)
            rates.append(rate)
            multipliers.append(multiplier)
            counts.append(count)
            left -= count
        if not counts:
            return Steps.none(len(self.clients))
        return Steps(np.array(rates), np.array(multipliers), np.array(counts), self.unit, self.adjacency)

    @cached_property
    def classes(self) -> Ints:
        """(N,) which clients the plan treats alike, as numbers from 0 in order of appearance."""
        label = np.zeros(len(self.clients), dtype=np.int64)
        for phase in self.phases:
            for column in (phase.rate, phase.clip, phase.pool):
                value = np.unique(column, return_inverse=True)[1].reshape(-1)
                label = np.unique(label * (value.max() + 1) + value, return_inverse=True)[1]
        first = np.unique(label, return_index=True)[1]
        order = np.empty(len(first), dtype=np.int64)
        order[np.argsort(first)] = np.arange(len(first))
        return order[label]

    def to_json(self) -> str:
        """Readable and exact: floats come back as they were. Clients treated alike share a class."""
        first = np.unique(self.classes, return_index=True)[1]
        return dump(
            {
                "format": FORMAT,
                "method": self.method,
                "parameters": dict(self.parameters),
                "unit": self.unit,
                "adjacency": self.adjacency,
                "noise_at": self.noise_at,
                "clients": list(self.clients),
                "class": self.classes.tolist(),
                "phases": [
                    {
                        "rounds": phase.rounds,
                        "rate": phase.rate[first].tolist(),
                        "clip": phase.clip[first].tolist(),
                        "pool": phase.pool[first].tolist(),
                        "noise": phase.noise.tolist(),
                        "weight": phase.weight.tolist(),
                    }
                    for phase in self.phases
                ],
            }
        )

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        record = parse(text, PlanRecord, "plan")
        member = np.array(record.class_)
        if len(member) != len(record.clients) or (member < 0).any():
            raise PlanError("not a plan of Discretion: class needs one entry for each client")
        try:
            phases = tuple(
                Phase(
                    rounds=phase.rounds,
                    rate=np.array(phase.rate)[member],
                    clip=np.array(phase.clip)[member],
                    noise=np.array(phase.noise),
                    pool=np.array(phase.pool)[member],
                    weight=np.array(phase.weight),
                )
                for phase in record.phases
            )
        except (IndexError, OverflowError) as problem:
            raise PlanError(f"not a plan of Discretion: {problem}") from None
        return cls(
            method=record.method,
            clients=tuple(record.clients),
            phases=phases,
            unit=record.unit,
            adjacency=record.adjacency,
            noise_at=record.noise_at,
            parameters=record.parameters,
        )

    def digest(self) -> str:
        """SHA-256 of the plan as written; the certificate, the ledger and training insist on it."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        return hashlib.sha256(self.to_json().encode()).hexdigest()


class Record(BaseModel):
    """What a JSON file holds: nothing more, nothing less."""

    model_config = ConfigDict(extra="forbid")


class PhaseRecord(Record):
    """One entry for each class of clients, or for each pool."""

    rounds: int
    rate: list[float]
    clip: list[float]
    pool: list[int]
    noise: list[float]
    weight: list[float]


class PlanRecord(Record):
    format: Format
    method: str
    parameters: dict[str, Parameter]
    unit: Unit
    adjacency: Adjacency
    noise_at: NoiseAt
    clients: list[str]
    class_: list[int] = Field(alias="class")
    phases: list[PhaseRecord]


def _all(holds: NDArray[np.bool_]) -> bool:
    return bool(np.all(holds))


def dump(record: dict[str, Any]) -> str:
    """JSON that every parser reads: infinities as the strings "inf" and "-inf"."""
    lines = (
        f"{json.dumps(key)}: {json.dumps(_finite(value), ensure_ascii=False, allow_nan=False)}"
        for key, value in record.items()
    )
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and math.isinf(value) else value


AnyRecord = TypeVar("AnyRecord", bound=Record)


def parse(text: str, kind: type[AnyRecord], what: str) -> AnyRecord:
    """Read a JSON file of this kind; every problem in it is said."""
    try:
        return kind.model_validate_json(text)
    except ValidationError as problem:
        lines = (
            ".".join(str(part) for part in error["loc"] or ("the file",))
            + f": {error['msg'].lower()}, found "
            f"{reprlib.repr(error['input'])}"
            for error in problem.errors()[:5]
        )
        raise PlanError(f"not a {what} of Discretion: {'; '.join(lines)}") from None
