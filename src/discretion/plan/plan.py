"""What a method decides before training: who takes part how often, with which clip and noise."""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal, get_args

import numpy as np
from pydantic import Field

from discretion.combine import SUM, Combine
from discretion.errors import InputError, PlanError
from discretion.grid import ROUNDING, Grid
from discretion.phase import FLAT, Clipping, Phase, alike, all_hold
from discretion.pick import READS, Reading
from discretion.plan_records import ClippingRecord, CombineRecord, GridRecord, PhaseRecord, ReadingRecord
from discretion.population import Floats, Ints
from discretion.records import Record, dump, parse
from discretion.steps import Adjacency, Steps, Unit

Format = Literal["discretion-plan/2"]
NoiseAt = Literal["server", "clients", "secure_sum", "steps"]
Adversary = Literal["public", "clients", "server"]
Randomness = Literal["seeded", "cryptographic"]
Sampling = Literal["poisson", "fixed_size"]
Accounting = Literal["tight", "paper"]
Parameter = str | float | int | bool

FORMAT: Format = "discretion-plan/2"

# who draws the noise decides who sees what
NOISE_AT: dict[NoiseAt, str] = {
    "server": "the server draws it, and sees each update before",
    "clients": "each client that takes part adds a share, and the server the shares of the others; the "
    "server sees each update with its client's own share only, and who took part",
    "secure_sum": "every client of a pool adds a share in every round, and whoever takes part its update; "
    "the server sees the sums only, and nobody sees who took part: without a secure sum between clients and "
    "server, nothing is promised against it",
    "steps": "each client draws it, in every step of its own training; the server sees what comes of it",
}
ADVERSARIES: tuple[Adversary, ...] = ("public", "clients", "server")  # each is promised with those before it

WORDS = {
    "adjacency": Adjacency,
    "noise_at": NoiseAt,
    "promise": Adversary,
    "sampling": Sampling,
    "randomness": Randomness,
    "accounting": Accounting,
}


@dataclass(frozen=True, eq=False)
class Plan:
    """Everything that decides what is released, and so everything that is accounted for."""

    method: str
    clients: tuple[str, ...]  # whose entry is which, in every (N,) array
    phases: tuple[Phase, ...]
    adjacency: Adjacency = "add_remove"
    noise_at: NoiseAt = "server"
    promise: Adversary = "clients"  # budgets hold against this adversary and those before it
    colluding: int = 1  # clients that may tell each other, or the server, what they know
    dropout: float = 0.0  # share of a pool's clients that may fail to add their shares to a secure sum
    sampling: Sampling = "poisson"
    randomness: Randomness = "seeded"  # seeded: a simulation
    accounting: Accounting = "tight"  # paper: noise by a paper's own formula, whatever that gives
    clipping: Clipping = FLAT
    grid: Grid | None = None  # updates and noise in whole steps of it
    reading: Reading | None = None  # who of those asked trains is picked by something of their data
    combine: Combine = SUM
    parameters: Mapping[str, Parameter] = field(default_factory=dict)  # what the method was given

    def __post_init__(self) -> None:
        object.__setattr__(self, "phases", tuple(self.phases))
        object.__setattr__(self, "clients", tuple(self.clients))
        plain = {name: getattr(value, "item", lambda v=value: v)() for name, value in self.parameters.items()}
        object.__setattr__(self, "parameters", MappingProxyType(plain))
        rules = {
            f"{name} is one of {', '.join(get_args(known))}": getattr(self, name) in get_args(known)
            for name, known in WORDS.items()
        }
        rules |= {
            "it needs at least one phase": bool(self.phases),
            "it needs clients, each with a name of its own": 0 < len(self.clients) == len(set(self.clients)),
            "every phase needs one entry for each of its clients": all(
                len(phase.rate) == len(self.clients) for phase in self.phases
            ),
            "a parameter of a method is finite": not any(
                isinstance(value, float) and not math.isfinite(value) for value in plain.values()
            ),
            "the number of colluding clients is at least 0, and whole": self.colluding >= 0
            and self.colluding % 1 == 0,
            "drop-outs are at least 0 and below 1, and provided for in a secure sum only": 0
            <= self.dropout
            < (1 if self.noise_at == "secure_sum" else math.ulp(0)),
            "noise is drawn in steps exactly where the phases have batches of records": all(
                (phase.batch is not None) == (self.noise_at == "steps") for phase in self.phases
            ),
            "a clip that follows a quantile needs the server's noise, no grid, and no client with several "
            "turns in a round": self.clipping.quantile is None
            or (
                self.noise_at == "server"
                and self.grid is None
                and all(all_hold(phase.releases <= 1) for phase in self.phases)
            ),
            "a grid is for sums of whole updates, flatly clipped, whose noise the server draws": self.grid
            is None
            or (
                self.noise_at == "server"
                and not (self.clipping.layers or any(phase.own_pools for phase in self.phases))
            ),
            "who trains is picked by reading data exactly where phases have noise for that, and steps are "
            "noisy": all((phase.read is not None) == (self.reading is not None) for phase in self.phases)
            and (self.reading is None or self.noise_at == "steps"),
            "a fixed, whole number is drawn of each pool by one rate and clip for all its clients, without "
            "turns or batches": self.sampling != "fixed_size"
            or all(phase.drawn_alike for phase in self.phases),
            "a projection needs several pools, and top_k keeps a share of each pool": all(
                self.combine.fits(len(phase.noise)) for phase in self.phases
            ),
        }
        broken = [rule for rule, holds in rules.items() if not holds]
        if broken:
            raise PlanError("this plan cannot be: " + "; ".join(broken))
        object.__setattr__(self, "colluding", int(self.colluding))
        if self.sampling == "fixed_size" and self.accounting != "paper":
            raise PlanError(
                f"sampling a fixed number of clients without replacement cannot be accounted for under "
                f"{self.adjacency} adjacency, because whoever is left out makes room for another. Let an "
                "independent coin decide for each client (sampling poisson), with the same mean number. It "
                "exists in paper mode only (accounting paper), where it is charged for what it can cost."
            )

    @property
    def reads(self) -> str:
        """What of the clients' data decides who trains."""
        return READS[self.reading.rule] if self.reading else "nothing"

    @property
    def unit(self) -> Unit:
        """What is protected: all data of a client, or, where its steps are noisy, each record."""
        return "record" if self.noise_at == "steps" else "client"

    @property
    def answers_seen(self) -> bool:
        """Whether the server sees each client's answer with that client's own share of the noise."""
        return self.noise_at == "clients" or (self.noise_at == "secure_sum" and self.promise != "server")

    @property
    def rounds(self) -> int:
        return sum(phase.rounds for phase in self.phases)

    @property
    def cohort(self) -> float:
        """Updates expected in a round, on average over the rounds."""
        return sum(float(p.expected.sum()) * p.rounds for p in self.phases) / self.rounds

    def phase_of(self, round_: int) -> int:
        """The phase that round `round_` (counted from 1) belongs to."""
        ends = np.cumsum([phase.rounds for phase in self.phases])
        if not 1 <= round_ <= ends[-1]:
            raise PlanError(f"round {round_} is not in this plan of {ends[-1]} rounds")
        return int(np.searchsorted(ends, round_))

    def sensitivity(self, phase: Phase) -> Floats:
        """(N,) how far a client, or one of its records, can move what gets the noise.

        Guarantees:
            Never given by hand: one unit more or less moves the sum by at most the clip, on a grid by what
            rounding makes of it; another unit in its place by twice that.
        """
        reach = self.grid.sensitivity(phase.clip) if self.grid else phase.clip
        with np.errstate(over="ignore"):
            return reach * self._exchanged

    @property
    def _exchanged(self) -> float:
        """2 where another unit comes in the place of one: a neighbour, or the next of a fixed number."""
        return 2.0 if self.adjacency == "replace" or self.sampling == "fixed_size" else 1.0

    def view(self, phase: Phase, adversary: Adversary) -> tuple[Floats, Floats]:
        """(N,) rate and (N,) noise multiplier of one release, as the adversary sees it.

        Guarantees:
            The public sees the released models. Colluding clients know their own shares of the noise, too,
            which is most where as many others drop out as are provided for.
            The server knows whatever `NOISE_AT` says that it sees, and what the colluding clients know. An
            adversary that knows who took part gets rate 1; noise that it knows does not count. A secure sum
            that is not promised against the server is taken for none: it sees answers one by one.
            A client that cannot change the sum (clip 0) has an infinite multiplier, unless it sends a bit.
        """
        if adversary not in ADVERSARIES:
            raise PlanError(f"an adversary is one of {', '.join(ADVERSARIES)}; found {adversary!r}")
        rate, secret = phase.rate, np.ones(len(phase.rate))  # (N,) share of the variance that is not known
        if self.noise_at in ("clients", "secure_sum") and adversary != "public":
            shares = self.shares(phase)
            secret = 1 - np.minimum(self.colluding, shares - 1) / shares
            if adversary == "server" and self.answers_seen:
                secret = 1 / shares
                if self.noise_at == "clients":
                    rate = np.where(rate > 0, 1.0, 0.0)
        elif self.noise_at == "server" and adversary == "server":
            secret = np.zeros(len(rate))
        elif phase.batch is not None:
            rate = np.where(rate > 0, phase.batch, 0.0)
        sensitivity = self.sensitivity(phase)
        if self.sampling == "fixed_size":  # whoever is left out makes room for another: no secret
            rate = np.where(rate > 0, 1.0, 0.0)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            noise = phase.noise[phase.pool] * np.sqrt(secret)
            multiplier = np.where(sensitivity > 0, noise / sensitivity, math.inf)
            if self.clipping.quantile is not None:
                # whoever draws the noise sees the bits, too
                bit = self.clipping.quantile.multiplier / self._exchanged * np.sqrt(secret)
                multiplier = 1 / np.sqrt(1 / multiplier**2 + 1 / bit**2)
        return rate, multiplier

    def shares(self, phase: Phase) -> Ints:
        """(N,) how many shares make up the noise of the client's pool: of all its clients but drop-outs."""
        dropping = np.floor(self.dropout * phase.holders + 1e-9).astype(np.int64)  # 0.29 of 100 are 29
        return np.asarray(np.maximum(phase.holders - dropping, 1))

    def own_noise(self, phase: Phase) -> Floats:
        """(N,) standard deviation that a client adds itself to each of its updates, or in each of its steps.

        Guarantees:
            The shares of a pool are together its noise, or more where drop-outs are provided for and do not
            happen; where the server draws it, clients add nothing.
        """
        noise = phase.noise[phase.pool]
        if self.noise_at == "server":
            return np.zeros(len(noise))
        return noise if self.noise_at == "steps" else noise / np.sqrt(self.shares(phase))

    def release(self, phase: Phase) -> tuple[Floats, Floats]:
        """(N,) rate and (N,) multiplier that clients are charged: as bad as any promised adversary's view."""
        promised = ADVERSARIES[: ADVERSARIES.index(self.promise) + 1]
        rates, multipliers = zip(*(self.view(phase, who) for who in promised), strict=True)
        return np.maximum.reduce(rates), np.minimum.reduce(multipliers)

    def parts(self, phase: Phase, against: Adversary | None = None) -> list[tuple[Floats, Floats, Ints]]:
        """What one round of a phase is made of: (N,) rate, (N,) multiplier and (N,) count of each part.

        As charged, or as the one adversary sees it. Besides training there may be a statistic that decides
        who trains: whoever is asked pays for both, and where it is read raw everybody pays without end.
        """
        rate, multiplier = self.view(phase, against) if against else self.release(phase)
        found = [(rate, multiplier, phase.releases)]
        if phase.read is not None:
            asked = (phase.expected > 0) | (phase.read == 0)
            found.append((np.ones(len(rate)), phase.read / self._exchanged, asked.astype(np.int64)))
        return found

    def steps(self, rounds: int | None = None, against: Adversary | None = None) -> Steps:
        """What the first `rounds` rounds (all unless said) cost each client.

        As charged, or as the one adversary sees it. Rounds that follow each other at one price are one step.
        """
        left = self.rounds if rounds is None else rounds
        rates: list[Floats] = []
        multipliers: list[Floats] = []
        counts: list[Ints] = []
        priced: Phase | None = None
        for phase in self.phases:
            done = min(left, phase.rounds)
            if done <= 0:
                break
            left -= done
            parts = self.parts(phase, against)
            if priced is not None and phase.treats_as(priced):
                for place, (_, _, count) in enumerate(parts, start=len(counts) - len(parts)):
                    counts[place] = counts[place] + done * count
                continue
            for rate, multiplier, count in parts:
                rates.append(rate)
                multipliers.append(multiplier)
                counts.append(done * count)
            priced = phase
        if not counts:
            return Steps.none(len(self.clients))
        return Steps(np.array(rates), np.array(multipliers), np.array(counts), self.unit, self.adjacency)

    def on_grid(self, step: float, size: int) -> "Plan":
        """The same plan for updates of `size` coordinates in whole steps, at the same multipliers or more."""
        grid = Grid(step, size)
        phases = []
        for phase in self.phases:
            clip = phase.clip[phase.clip > 0]
            more = float(np.max(grid.sensitivity(clip) / clip, initial=1.0))
            more *= 1 + ROUNDING  # so that no multiplier is less by a last digit, and a budget passed
            phases.append(replace(phase, noise=phase.noise * more))
        return replace(self, phases=tuple(phases), grid=grid)

    @cached_property
    def classes(self) -> Ints:
        """(N,) which clients the plan treats alike but for public turns, numbered by appearance."""
        return alike(self.phases)

    def to_json(self) -> str:
        """Readable and exact: floats come back as they were. Clients treated alike share a class."""
        first = np.unique(self.classes, return_index=True)[1]
        phases = [phase.to_record(first) for phase in self.phases]
        return dump(self._about() | {"class": self.classes.tolist(), "phases": phases})

    def _about(self) -> dict[str, Any]:
        """All but the phases, as JSON holds it."""
        quantile = self.clipping.quantile
        return {
            "format": FORMAT,
            "method": self.method,
            "parameters": dict(self.parameters),
            "unit": self.unit,
            "adjacency": self.adjacency,
            "noise_at": self.noise_at,
            "promise": self.promise,
            "colluding": self.colluding,
            **({"dropout": self.dropout} if self.dropout else {}),
            "sampling": self.sampling,
            "randomness": self.randomness,
            "accounting": self.accounting,
            "clipping": {
                "layers": list(self.clipping.layers),
                "quantile": vars(quantile) if quantile else None,
            },
            "grid": vars(self.grid) if self.grid else None,
            "reading": vars(self.reading) if self.reading else None,
            "combine": {**vars(self.combine), "keep": list(self.combine.keep)},
            "clients": list(self.clients),
        }

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        record = parse(text, PlanRecord, "plan")
        member = np.array(record.class_, dtype=np.int64)
        if len(member) != len(record.clients) or not all_hold(member >= 0):
            raise PlanError("not a plan of Discretion: class needs one entry for each client")
        try:
            phases = tuple(phase.to_phase(member) for phase in record.phases)
            grid = Grid(record.grid.step, record.grid.size) if record.grid else None
        except (IndexError, OverflowError, InputError) as problem:
            raise PlanError(f"not a plan of Discretion: {problem}") from None
        plan = cls(
            method=record.method,
            clients=tuple(record.clients),
            phases=phases,
            adjacency=record.adjacency,
            noise_at=record.noise_at,
            promise=record.promise,
            colluding=record.colluding,
            dropout=record.dropout,
            sampling=record.sampling,
            randomness=record.randomness,
            accounting=record.accounting,
            clipping=record.clipping.to_clipping(),
            grid=grid,
            reading=Reading(**record.reading.model_dump()) if record.reading else None,
            combine=Combine(**record.combine.model_dump()),
            parameters=record.parameters,
        )
        if plan.unit != record.unit:
            raise PlanError(f"not a plan of Discretion: its unit is {plan.unit}, but it says {record.unit}")
        return plan

    def digest(self) -> str:
        """SHA-256 of all that the plan says; the certificate, the ledger and training insist on it."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        content = hashlib.sha256(dump(self._about()).encode())
        known: dict[int, bytes] = {}  # arrays that phases share are read once
        for phase in self.phases:
            for name, value in vars(phase).items():
                content.update(name.encode())
                if isinstance(value, np.ndarray):
                    if id(value) not in known:
                        known[id(value)] = hashlib.sha256(value.tobytes()).digest()
                    content.update(known[id(value)])
                else:
                    content.update(repr(value).encode())
        return content.hexdigest()


class PlanRecord(Record):
    format: Format
    method: str
    parameters: dict[str, Parameter]
    unit: Unit
    adjacency: Adjacency
    noise_at: NoiseAt
    promise: Adversary
    colluding: int
    dropout: float = 0.0
    sampling: Sampling
    randomness: Randomness
    accounting: Accounting
    clipping: ClippingRecord
    grid: GridRecord | None
    reading: ReadingRecord | None
    combine: CombineRecord
    clients: list[str]
    class_: list[int] = Field(alias="class")
    phases: list[PhaseRecord]
