"""Plans: what a method decides before training, and what each adversary learns from it.

A plan fixes sampling rates, clipping norms and noise. `Plan.view` derives from them each release's rate and
noise multiplier for each adversary; accountants turn those into epsilon.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from types import MappingProxyType
from typing import Literal, get_args, get_origin

import numpy as np

from discretion.arrays import Floats, Ints
from discretion.errors import PlanError, listed
from discretion.plan.combine import SUM, Combine
from discretion.plan.float_sums import rounding
from discretion.plan.grid import ROUNDING, Grid
from discretion.plan.html_table import html_table, one_line
from discretion.plan.names import bad_names
from discretion.plan.phase import FLAT, MOST_ROUNDS, Clipping, Phase, Rule, alike, check, whole
from discretion.plan.selection_rules import READS, Reading
from discretion.plan.steps import Adjacency, Steps, Unit

# who draws the noise: the server; clients that take part by shares, and the server the shares of the others;
# all clients of a pool by shares, summed securely; each client in every step of its training
NoiseAt = Literal["server", "clients", "secure_sum", "steps"]
Adversary = Literal["public", "clients", "server"]
Randomness = Literal["seeded", "cryptographic"]
Sampling = Literal["poisson", "fixed_size"]
Accounting = Literal["tight", "paper"]
Parameter = str | float | int | bool

ADVERSARIES: tuple[Adversary, ...] = ("public", "clients", "server")  # each is promised with those before it


@dataclass(frozen=True, eq=False)
class Plan:
    """Everything that determines what is released, and so everything that is accounted for."""

    method: str
    clients: tuple[str, ...]  # names, in the order of every (N,) array
    phases: tuple[Phase, ...]
    adjacency: Adjacency = "add_remove"
    noise_at: NoiseAt = "server"
    promise: Adversary = "clients"  # budgets hold against this adversary and those before it in ADVERSARIES
    colluding: int = 1  # number of clients that may share what they know, with each other or the server
    dropout: float = 0.0  # share of a pool's clients that may fail to add their noise to a secure sum
    sampling: Sampling = "poisson"
    randomness: Randomness = "seeded"  # seeded: a simulation
    accounting: Accounting = "tight"  # paper: noise by a paper's own formula, whatever epsilon that gives
    clipping: Clipping = FLAT
    grid: Grid | None = None  # where set, updates and noise are whole numbers of its steps
    reading: Reading | None = None  # where set, a statistic of clients' data decides which of them train
    combine: Combine = SUM
    parameters: Mapping[str, Parameter] = field(default_factory=dict)  # given to the method

    def __post_init__(self) -> None:
        object.__setattr__(self, "phases", tuple(self.phases))
        object.__setattr__(self, "clients", tuple(self.clients))
        plain = {name: getattr(value, "item", lambda v=value: v)() for name, value in self.parameters.items()}
        object.__setattr__(self, "parameters", MappingProxyType(plain))
        if bad := bad_names(self.clients):
            raise PlanError("invalid plan: " + "; ".join(listed(bad)))
        check("plan", [*self._rules_of_fields(), *self._rules_of_phases()])
        object.__setattr__(self, "colluding", int(self.colluding))
        if self.sampling == "fixed_size" and self.accounting != "paper":
            raise PlanError(
                "invalid plan: found sampling fixed_size, which cannot be accounted for tightly under "
                f"{self.adjacency} adjacency, because a client that is left out makes room for another one. "
                "Use an independent coin for each client (sampling poisson) with the same expected number; "
                "only paper mode (accounting paper) takes it, and charges for the worst that it can cost."
            )

    def _rules_of_fields(self) -> list[Rule]:
        names, most = self.clients, 1 if self.noise_at == "secure_sum" else math.ulp(0)
        finite = {k: not isinstance(v, float) or math.isfinite(v) for k, v in self.parameters.items()}
        words = {f.name: get_args(f.type) for f in fields(self) if get_origin(f.type) is Literal}
        return [
            *(
                (f"{name} must be one of {', '.join(known)}", vars(self)[name] in known, vars(self)[name])
                for name, known in words.items()
            ),
            ("a plan must have clients with different names", 0 < len(names) == len(set(names)), len(names)),
            ("parameters must be finite", all(finite.values()), dict(self.parameters)),
            ("rounds must be a whole number", type(self.parameters.get("rounds", 1)) is int, self.parameters),
            ("colluding must be a whole number from 0 to 2^53", whole(self.colluding, 0), self.colluding),
            (
                "dropout must be at least 0 and below 1, and 0 unless noise_at is secure_sum",
                0 <= self.dropout < most,
                self.dropout,
            ),
        ]

    def _rules_of_phases(self) -> list[Rule]:
        phases, noise_at, read = self.phases, self.noise_at, self.reading is not None
        count, lengths = len(self.clients), [len(phase.rate) for phase in phases]
        by_steps = all((phase.batch is not None) == (noise_at == "steps") for phase in phases)
        pooled = not self.clipping.layers and not any(phase.own_pools for phase in phases)
        once = all((phase.releases <= 1).all() for phase in phases)
        return [
            ("a plan must have at least one phase", bool(phases), "none"),
            (f"a plan must have at most {MOST_ROUNDS:,} rounds", self.rounds <= MOST_ROUNDS, self.rounds),
            (f"every phase must have one entry for each of {count} clients", {*lengths} <= {count}, lengths),
            ("noise_at must be steps exactly where the phases have batches of records", by_steps, noise_at),
            (
                "adaptive clipping (a quantile) needs noise_at server, no grid, and at most one turn of a "
                "client in a round",
                self.clipping.quantile is None or (noise_at == "server" and self.grid is None and once),
                f"noise_at {noise_at}, grid {self.grid}",
            ),
            (
                "a grid needs noise in sums of updates (noise_at server, clients or secure_sum), flat "
                "clipping, and pools of several clients",
                self.grid is None or (noise_at != "steps" and pooled),
                f"noise_at {noise_at}, layers {self.clipping.layers}",
            ),
            *(
                rule
                for phase in phases
                if self.grid is not None and self.has_shares and 0 <= self.dropout < 1
                for rule in self.grid.rules_of_shares(phase, self.own_noise(phase))
            ),
            (
                "noise on a grid must be at most 2^50 steps",
                self.grid is None or all((phase.noise <= self.grid.most_noise).all() for phase in phases),
                [float(phase.noise.max()) for phase in phases],
            ),
            (
                "selection by a statistic (reading) needs noise_at steps, and noise for the statistic (read) "
                "in every phase; without it, read must be None",
                all((phase.read is not None) == read for phase in phases)
                and (not read or noise_at == "steps"),
                f"noise_at {noise_at}, reading {self.reading}",
            ),
            (
                "sampling fixed_size needs, in each pool, one rate and clip for all clients and a whole "
                "expected number of clients, without turns or batches",
                self.sampling != "fixed_size" or all(phase.drawn_alike for phase in phases),
                "otherwise",
            ),
            (
                "combine project needs several pools, and top_k needs a share to keep of each pool",
                all(self.combine.fits(len(phase.noise)) for phase in phases),
                f"{self.combine.rule} with {[len(phase.noise) for phase in phases]} pools",
            ),
        ]

    def __repr__(self) -> str:
        return one_line(f"Plan {self.method}:", self._facts())

    def _repr_html_(self) -> str:
        return html_table(f"Plan: {self.method}", self._facts() | dict(self.parameters))

    def _facts(self) -> dict[str, object]:
        return {
            "rounds": self.rounds,
            "clients": len(self.clients),
            "unit": self.unit,
            "promise": self.promise,
            "noise at": self.noise_at,
        }

    def merges(self, phase: Phase) -> bool:
        """Return whether pools of single clients are summed into one: where `combine` only adds them up."""
        return phase.own_pools and self.combine.rule == "sum"

    @property
    def reads(self) -> str:
        """What of the clients' data decides which clients train."""
        return READS[self.reading.rule] if self.reading else "nothing"

    @property
    def unit(self) -> Unit:
        """Unit of privacy: all data of a client or, where noise is added in every step, each record."""
        return "record" if self.noise_at == "steps" else "client"

    @property
    def has_shares(self) -> bool:
        """Whether clients add the noise of a sum, each a share of it."""
        return self.noise_at in ("clients", "secure_sum")

    @property
    def answers_seen(self) -> bool:
        """Whether the server sees each client's answer with that client's own share of the noise."""
        return self.noise_at == "clients" or (self.noise_at == "secure_sum" and self.promise != "server")

    @property
    def summed(self) -> bool:
        """Whether the server is to see sums of clients' answers only, by a secure sum."""
        return self.noise_at == "secure_sum" and self.promise == "server"

    @property
    def rounds(self) -> int:
        return sum(phase.rounds for phase in self.phases)

    @property
    def cohort(self) -> float:
        """Expected number of updates in a round, averaged over the rounds."""
        return sum(float(p.expected.sum()) * p.rounds for p in self.phases) / self.rounds

    def phase_of(self, round_: int) -> int:
        """Return the number of the phase that round `round_` (counted from 1) belongs to."""
        ends = np.cumsum([phase.rounds for phase in self.phases])
        if not 1 <= round_ <= ends[-1]:
            raise PlanError(f"found round {round_}, expected a round from 1 to {ends[-1]} of this plan")
        return int(np.searchsorted(ends, round_))

    def sensitivity(self, phase: Phase) -> Floats:
        """Return (N,) the sensitivity: how far one unit can move, in L2 norm, the sum that gets the noise.

        Guarantees:
            Derived, never given by hand: one unit more or less moves the sum by at most the clip (on a grid,
            by the clip after rounding); replacing a unit moves the sum by at most twice that. Beside clips
            that are so much longer that floats round the sum by more than a clip spares, that counts, too.
        """
        reach = self.grid.sensitivity(phase.clip) if self.grid else phase.clip
        exact = self.grid is not None or self.noise_at == "steps"  # sums of whole steps; noise before sums
        with np.errstate(over="ignore"):
            return (reach + (0.0 if exact else rounding(phase, self.merges(phase)))) * self._exchanged

    @property
    def _exchanged(self) -> float:
        """2 where one unit is replaced by another (replace adjacency, or fixed-size sampling), else 1."""
        return 2.0 if self.adjacency == "replace" or self.sampling == "fixed_size" else 1.0

    def view(self, phase: Phase, adversary: Adversary) -> tuple[Floats, Floats]:
        """Return (N,) sampling rate and (N,) noise multiplier of one release, as the adversary sees it.

        Guarantees:
            The public sees the released models. Colluding clients know their own shares of the noise, too,
            which is most where as many others drop out as are provided for.
            The server knows what the colluding clients know and, by `noise_at`, sees: each update before the
            noise (server); each update with its client's own share, and who took part (clients); sums only
            (secure_sum); what noisy steps make (steps). A secure sum that is not promised against the server
            is taken for none: the server sees answers one by one. An adversary that knows who took part gets
            rate 1; noise that an adversary knows does not count.
            A client that cannot change the sum (clip 0) has an infinite multiplier, unless it sends a bit.
            Shares on a grid count as the Gaussian noise that their sum is made of (`Grid.continuous`).
        """
        if adversary not in ADVERSARIES:
            raise PlanError(f"found adversary {adversary!r}, expected one of {', '.join(ADVERSARIES)}")
        rate, secret = phase.rate, np.ones(len(phase.rate))  # (N,) share of the noise variance not known
        if self.has_shares and adversary != "public":
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
        if self.sampling == "fixed_size":  # a client left out makes room for another: no amplification
            rate = np.where(rate > 0, 1.0, 0.0)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            noise = phase.noise[phase.pool] * np.sqrt(secret)
            if self.grid is not None and self.has_shares:
                noise = self.grid.continuous(noise)
            multiplier = np.where(sensitivity > 0, noise / sensitivity, math.inf)
            if self.clipping.quantile is not None:
                # an adversary that knows the noise knows the bits, too
                bit = self.clipping.quantile.multiplier / self._exchanged * np.sqrt(secret)
                multiplier = 1 / np.sqrt(1 / multiplier**2 + 1 / bit**2)
        return rate, multiplier

    def shares(self, phase: Phase) -> Ints:
        """Return (N,) how many shares make up the noise of a client's pool: its clients less drop-outs."""
        dropping = np.floor(self.dropout * phase.holders + 1e-9).astype(np.int64)  # 0.29 × 100 gives 29
        return np.asarray(np.maximum(phase.holders - dropping, 1))

    def own_noise(self, phase: Phase) -> Floats:
        """Return (N,) the standard deviation of the noise that a client adds to each update, or in each step.

        Guarantees:
            The shares of a pool add up to the pool's noise, or to more where fewer clients drop out than
            provided for; where the server draws the noise, clients add nothing.
        """
        noise = phase.noise[phase.pool]
        if self.noise_at == "server":
            return np.zeros(len(noise))
        return noise if self.noise_at == "steps" else noise / np.sqrt(self.shares(phase))

    def release(self, phase: Phase) -> tuple[Floats, Floats]:
        """Return (N,) rate and (N,) noise multiplier that clients are charged for one release.

        Guarantees:
            The rate is no less, and the multiplier no more, than in the view of any promised adversary.
        """
        promised = ADVERSARIES[: ADVERSARIES.index(self.promise) + 1]
        rates, multipliers = zip(*(self.view(phase, who) for who in promised), strict=True)
        return np.maximum.reduce(rates), np.minimum.reduce(multipliers)

    def parts(self, phase: Phase, against: Adversary | None = None) -> list[tuple[Floats, Floats, Ints]]:
        """Return (N,) rate, (N,) noise multiplier and (N,) count of each kind of release in one round.

        As charged, or as the adversary `against` sees them. There may be two kinds: training, and a statistic
        that decides which clients train. A client that is asked is charged for both; where the statistic is
        read raw, every client is charged an infinite epsilon.
        """
        rate, multiplier = self.view(phase, against) if against else self.release(phase)
        found = [(rate, multiplier, phase.releases)]
        if phase.read is not None:
            asked = (phase.expected > 0) | (phase.read == 0)
            found.append((np.ones(len(rate)), phase.read / self._exchanged, asked.astype(np.int64)))
        return found

    def steps(self, rounds: int | None = None, against: Adversary | None = None) -> Steps:
        """Return the Gaussian steps of the first `rounds` rounds (default: all), for an accountant.

        As charged, or as the adversary `against` sees them. Consecutive rounds of equal cost become one step.
        """
        left = self.rounds if rounds is None else rounds
        rows: list[tuple[Floats, Floats, Ints]] = []
        for before, phase in zip((None, *self.phases), self.phases, strict=False):
            done = min(left, phase.rounds)
            if done <= 0:
                break
            left -= done
            parts = self.parts(phase, against)
            if before is None or not phase.treats_as(before):
                rows += [(rate, multiplier, np.zeros_like(count)) for rate, multiplier, count in parts]
            for (_, _, total), (_, _, count) in zip(rows[-len(parts) :], parts, strict=True):
                total += done * count
        if not rows:
            return Steps.none(len(self.clients))
        rate, multiplier, count = (np.array(column) for column in zip(*rows, strict=True))
        return Steps(rate, multiplier, count, self.unit, self.adjacency)

    def on_grid(self, step: float, size: int) -> "Plan":
        """Return this plan on a grid, for updates of `size` coordinates, with multipliers no smaller."""
        grid = Grid(step, size)
        phases = []
        for phase in self.phases:
            clip = phase.clip[phase.clip > 0]
            more = float(np.max(grid.sensitivity(clip) / clip, initial=1.0))
            more *= 1 + ROUNDING  # so that rounding lowers no multiplier, which would overspend a budget
            noise = phase.noise * more
            if self.has_shares:
                noise = grid.made_up(noise, phase.pool, self.shares(phase))
            phases.append(replace(phase, noise=noise))
        return replace(self, phases=tuple(phases), grid=grid)

    @cached_property
    def classes(self) -> Ints:
        """(N,) class numbers: equal for clients that the plan treats alike, apart from public turns."""
        return alike(self.phases)

    def to_json(self) -> str:
        """Return the plan as JSON text; `from_json` gives back the same plan, float by float."""
        from discretion.plan import plan_json

        return plan_json.plan_to_json(self)

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        """Read a plan from JSON text; raise `PlanError` for text that is not exactly a plan."""
        from discretion.plan import plan_json

        return plan_json.plan_from_json(text)

    def digest(self) -> str:
        """Return the SHA-256 of the whole plan, which certificate, ledger and training loop insist on."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        from discretion.plan import plan_json

        return plan_json.plan_digest(self)
