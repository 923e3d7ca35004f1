"""What a method decides before training: who takes part how often, with which clip and noise."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np

from discretion.errors import PlanError
from discretion.population import Floats, Ints

FORMAT = "discretion-plan/1"

Unit = Literal["client"]
Adjacency = Literal["add_remove"]
NoiseAt = Literal["server"]
Parameter = str | float | int | bool


@dataclass(frozen=True)
class Phase:
    """A run of identical rounds. `rate`, `clip` and 1/`noise` are ceilings."""

    rounds: int
    rate: Floats  # (N,) chance of taking part: a secret coin for each client and round
    clip: Floats  # (N,) bound on the L2 norm of one update
    noise: Floats  # (P,) standard deviation of each coordinate, added to each pool's sum
    pool: Ints  # (N,) whose updates are summed before noise is added
    weight: Floats  # (P,) the model moves by the weighted sum of the pools' noisy sums

    def __post_init__(self) -> None:
        clients, pools = len(self.rate), len(self.noise)
        rules = {
            "rounds must be at least 1": self.rounds >= 1,
            "rate, clip and pool need one entry for each client": len(self.clip) == clients
            and len(self.pool) == clients,
            "noise and weight need one entry for each pool": len(self.weight) == pools,
            "a rate lies between 0 and 1": bool(((self.rate >= 0) & (self.rate <= 1)).all()),
            "a clip is at least 0": bool((self.clip >= 0).all()),
            "noise is finite and at least 0": bool((np.isfinite(self.noise) & (self.noise >= 0)).all()),
            "a pool is one of those that have noise": bool(((self.pool >= 0) & (self.pool < pools)).all()),
            "a weight is finite": bool(np.isfinite(self.weight).all()),
        }
        broken = [rule for rule, holds in rules.items() if not holds]
        if broken:
            raise PlanError("this phase cannot be: " + "; ".join(broken))

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


@dataclass(frozen=True)
class Steps:
    """Gaussian steps of several clients: all that an accountant ever sees.

    In step s a client's contribution enters with probability rate[s] (a secret coin) a sum that gets
    noise of `multiplier[s]` times what the client could change it by; that happens count[s] times.
    """

    rate: Floats  # (S, N)
    multiplier: Floats  # (S, N)
    count: Ints  # (S,)

    def of(self, clients: Ints) -> "Steps":
        return Steps(self.rate[:, clients], self.multiplier[:, clients], self.count)

    def then(self, later: "Steps") -> "Steps":
        return Steps(
            np.concatenate([self.rate, later.rate]),
            np.concatenate([self.multiplier, later.multiplier]),
            np.concatenate([self.count, later.count]),
        )

    @classmethod
    def none(cls, clients: int) -> "Steps":
        return cls(np.zeros((0, clients)), np.zeros((0, clients)), np.zeros(0, dtype=np.int64))

    @classmethod
    def same(cls, rate: Floats, multiplier: Floats, count: int) -> "Steps":
        """`count` equal steps, each client with its own rate and multiplier, (N,) each."""
        return cls(rate[None], multiplier[None], np.array([count]))


@dataclass(frozen=True)
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
        if not self.phases:
            raise PlanError("a plan needs at least one phase")
        if any(len(phase.rate) != len(self.clients) for phase in self.phases):
            raise PlanError("every phase of a plan needs one entry for each of its clients")

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
            by at most its clip, so the multiplier is the pool's noise divided by that clip.
            A client that cannot change the sum (clip 0) has an infinite multiplier.
        """
        noise = phase.noise[phase.pool]
        sensitivity = phase.clip
        with np.errstate(divide="ignore", invalid="ignore"):
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
        return Steps(np.array(rates), np.array(multipliers), np.array(counts))

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
        record = parse(text, FORMAT, "plan")
        try:
            member = np.array(record["class"], dtype=np.int64)
            phases = tuple(
                Phase(
                    rounds=int(phase["rounds"]),
                    rate=_floats(phase["rate"])[member],
                    clip=_floats(phase["clip"])[member],
                    noise=_floats(phase["noise"]),
                    pool=np.array(phase["pool"], dtype=np.int64)[member],
                    weight=_floats(phase["weight"]),
                )
                for phase in record["phases"]
            )
            known = {"unit": "client", "adjacency": "add_remove", "noise_at": "server"}
            for name, value in known.items():
                if record[name] != value:
                    raise PlanError(f"this plan has {name} {record[name]!r}; known is {value!r}")
            return cls(
                method=str(record["method"]),
                clients=tuple(record["clients"]),
                phases=phases,
                parameters=record["parameters"],
            )
        except (KeyError, TypeError, ValueError, IndexError) as problem:
            raise PlanError(f"not a plan of Discretion: {problem!r}") from None

    def digest(self) -> str:
        """SHA-256 of the plan as written; the certificate, the ledger and training insist on it."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        return hashlib.sha256(self.to_json().encode()).hexdigest()


def _floats(values: list[Any]) -> Floats:
    return np.array([float(value) for value in values])


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


def parse(text: str, format_: str, what: str) -> dict[str, Any]:
    try:
        record = json.loads(text)
    except json.JSONDecodeError as problem:
        raise PlanError(f"not a {what} of Discretion: {problem}") from None
    found = record.get("format") if isinstance(record, dict) else None
    if found != format_:
        raise PlanError(f"not a {what} of Discretion: format is {found!r}, expected {format_!r}")
    return dict(record)
