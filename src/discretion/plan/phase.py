"""Phases of a plan: runs of identical rounds, and the clipping of updates in them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discretion.arrays import Floats, Ints, distinct
from discretion.errors import PlanError
from discretion.plan.html_table import one_line

WHOLE = 1e-6  # how far the expected size of a fixed-size sample may be from a whole number
# Clips, noise, weights and rates: no product or square of them on the way to the noise under- or overflows.
SMALLEST, LARGEST = 1e-20, 1e20
MOST_ROUNDS = 10**6  # of a plan: each is a row of the ledger, and accounting takes seconds
MOST_RELEASES = 2**40  # of a client in a phase: counts must stay exact when phases are added up
MOST = 2**53  # the largest whole number up to which floats have all


@dataclass(frozen=True, eq=False)
class Phase:
    """A run of identical rounds. The loop may take less than `rate` and `clip` and add more than `noise`.

    Participation is decided either by a secret coin for each client and round (`rate`, Poisson sampling), or
    in advance and in public (`turns`, with rate 1): public turns do not amplify privacy.
    """

    rounds: int
    rate: Floats  # (N,) sampling rate: probability that a client takes part in a round, by a secret coin
    clip: Floats  # (N,) clipping norm: bound on the L2 norm of an update, or of a record's gradient (`batch`)
    noise: Floats  # (P,) standard deviation of the noise on each coordinate of a pool's sum
    pool: Ints  # (N,) number of the client's pool; updates of a pool are summed before noise is added
    weight: Floats  # (P,) the model moves by the weighted sum of the pools' noisy sums
    turns: Ints | None = None  # (N,) how often each client is asked in a round; each turn is a release
    batch: Floats | None = None  # (N,) sampling rate of records: chance of a record to be in a step's batch
    steps: int = 1  # noisy steps in a turn, each with its own batch and noise
    read: Floats | None = None  # (N,) noise multiplier of the statistic that decides who trains; 0: raw

    def __post_init__(self) -> None:
        """Check every field, and keep read-only copies."""
        rate, clip, noise, pool, weight = self.rate, self.clip, self.noise, self.pool, self.weight
        columns = (rate, clip, pool, self.turns, self.batch, self.read)
        shapes, pools = [np.shape(c) for c in columns if c is not None], [np.shape(noise), np.shape(weight)]
        known, last = f"from {SMALLEST:g} to {LARGEST:g}", np.size(noise) - 1
        numbered = (pool >= 0) & (pool <= last) & (pool == np.floor(pool))
        rules: list[Rule] = [
            (
                f"rounds must be a whole number from 1 to {MOST_ROUNDS:,}",
                whole(self.rounds, 1, MOST_ROUNDS),
                self.rounds,
            ),
            ("steps must be a whole number, at least 1", whole(self.steps, 1), self.steps),
            (
                "rate, clip, pool, turns, batch and read must have one entry for each client",
                _one_length(shapes),
                str(shapes),
            ),
            ("noise and weight must have one entry for each pool", _one_length(pools), str(pools)),
            ("rate must lie between 0 and 1", (rate >= 0) & (rate <= 1), rate),
            (f"clip must be 0, infinite, or {known}", drawable(clip) | (clip == np.inf), clip),
            (f"noise must be 0, or {known}", drawable(noise), noise),
            (f"pool must be the whole number of a pool with noise, from 0 to {last}", numbered, pool),
            (f"weight must be 0, or {known}, or minus that", drawable(np.abs(weight)), weight),
        ]
        check("phase", rules)
        check("phase", self._rules_of_turns())
        for name in ("rounds", "steps"):
            object.__setattr__(self, name, int(getattr(self, name)))
        for name in ("rate", "clip", "noise", "weight", "pool", "turns", "batch", "read"):
            if (column := getattr(self, name)) is not None:
                kind = np.int64 if name in ("pool", "turns") else np.float64
                object.__setattr__(self, name, frozen(np.asarray(column), kind))

    def _rules_of_turns(self) -> "list[Rule]":
        turns = np.zeros_like(self.pool) if self.turns is None else self.turns
        batch = np.ones_like(self.rate) if self.batch is None else self.batch
        read = np.zeros_like(self.rate) if self.read is None else self.read
        own, alone, secret = self.own_pools, self.read is None, (self.rate > 0) & (self.rate < 1)
        releases = int(self.rounds) * int(self.steps) * int(np.nanmax(turns, initial=1))
        return [
            ("turns must be whole numbers, at least 0", (turns >= 0) & (turns == np.floor(turns)), turns),
            ("a client with public turns must have rate 1", self.turns is None or self.rate == 1, self.rate),
            ("a client with several turns must have a pool of its own", own | (turns <= 1), turns),
            ("batch must lie between 0 and 1", (batch >= 0) & (batch <= 1), batch),
            ("clients with batches must have pools of their own", self.batch is None or own, self.pool),
            ("a client with batches must have rate 0 or 1", self.batch is None or ~secret, self.rate),
            (f"read must be 0, or from {SMALLEST:g} to {LARGEST:g}", drawable(read), read),
            ("a client whose statistic is read must have at most one turn", alone | (turns <= 1), turns),
            ("several steps need batches", self.batch is not None or self.steps == 1, self.steps),
            ("rounds × turns × steps must be at most 2^40", releases <= MOST_RELEASES, releases),
        ]

    def __repr__(self) -> str:
        return one_line("Phase", {"rounds": self.rounds, "clients": len(self.rate), "pools": len(self.noise)})

    @property
    def own_pools(self) -> bool:
        """Whether every client has a pool of its own, so that its updates are released on their own."""
        return len(self.noise) == len(self.pool) and bool((self.pool == np.arange(len(self.pool))).all())

    @property
    def releases(self) -> Ints:
        """(N,) number of noisy releases in a round in which the client takes part."""
        turns = np.ones(len(self.rate), dtype=np.int64) if self.turns is None else self.turns
        return turns * self.steps

    @property
    def drawn_alike(self) -> bool:
        """Whether fixed-size sampling is possible: equal rates and clips in a pool, and a whole number."""
        kinds, _ = distinct(np.stack([self.pool, self.rate, self.clip]))
        mean = np.bincount(self.pool, self.rate, len(self.noise))
        alike = len(kinds[0]) == len(np.unique(self.pool)) and (np.abs(mean - self.drawn) < WHOLE).all()
        return self.turns is None and self.batch is None and bool(alike)

    @property
    def drawn(self) -> Floats:
        """(P,) how many clients of each pool are drawn under fixed-size sampling."""
        return np.asarray(np.round(np.bincount(self.pool, self.rate, len(self.noise))))

    @property
    def expected(self) -> Floats:
        """(N,) expected number of updates from each client in a round."""
        return self.rate if self.turns is None else self.turns.astype(np.float64)

    @property
    def holders(self) -> Ints:
        """(N,) how many clients may take part in the client's pool and so share its noise; at least 1."""
        taking = self.expected > 0
        members = np.bincount(self.pool[taking], minlength=len(self.noise))
        return np.maximum(members[self.pool], 1)

    @property
    def pool_releases(self) -> Ints:
        """(P,) number of releases of each pool in a round, which is public; 0 where no client takes part."""
        if self.turns is not None and self.own_pools:
            return self.turns
        return np.minimum(np.bincount(self.pool[self.expected > 0], minlength=len(self.noise)), 1)

    def treats_as(self, other: "Phase") -> bool:
        """Return whether both phases are equal for every client, apart from rounds and public turns."""
        names = ("steps", "rate", "clip", "noise", "pool", "weight", "batch", "read", "holders")
        pairs = ((getattr(self, name), getattr(other, name)) for name in names)
        return all(a is b or np.array_equal(a, b) for a, b in pairs)

    def columns(self) -> dict[str, Floats | Ints]:
        """Return the columns in which clients may differ, apart from public turns."""
        pools = ("noise", "weight") if self.own_pools else ("pool",)
        columns = {name: getattr(self, name) for name in ("rate", "clip", *pools, "batch", "read")}
        return {name: column for name, column in columns.items() if column is not None}

    @classmethod
    def one_pool(cls, rounds: int, rate: Floats, clip: Floats, noise: float) -> "Phase":
        """Return a phase with one pool, whose sum is divided by the expected number of updates.

        The divisor is public and fixed, so a client that drops out costs accuracy and never privacy.
        """
        pool, weight = np.zeros(len(rate), dtype=np.int64), 1.0 / rate.sum() if rate.any() else 0.0
        return cls(rounds, rate, clip, np.array([noise]), pool, np.array([weight]))


def alike(phases: Sequence[Phase]) -> Ints:
    """Return (N,) class numbers: equal for clients that all phases treat alike, apart from public turns.

    Classes are numbered in the order in which they first appear.
    """
    label = np.zeros(len(phases[0].rate), dtype=np.int64)
    for before, phase in zip((None, *phases), phases, strict=False):
        if before is None or not phase.treats_as(before):
            label = distinct(np.stack([label, *phase.columns().values()]))[1]
    first = np.unique(label, return_index=True)[1]
    return np.argsort(np.argsort(first))[label]


def frozen(column: NDArray[Any], kind: type | None = None) -> NDArray[Any]:
    """Return a read-only copy, or the column itself where it is read-only and owns its data."""
    if kind in (None, column.dtype) and column.flags.owndata and not column.flags.writeable:
        return column
    kept: NDArray[Any] = np.array(column, dtype=kind)
    kept += 0  # turns -0.0 into 0.0, so that equal clients are written equally
    kept.flags.writeable = False
    return kept


Rule = tuple[str, Any, Any]  # what is expected, whether it holds (of each entry), and what was found


def check(what: str, rules: Sequence[Rule]) -> None:
    """Raise `PlanError` with what each broken rule expects, and the first value that breaks the rule."""
    broken = []
    for expected, holds, value in rules:
        if not np.all(holds):
            if np.shape(value) == np.shape(holds) != ():
                value = np.asarray(value)[~np.asarray(holds)][0]
            broken.append(f"{expected}, found {value}")
    if broken:
        raise PlanError(f"invalid {what}: " + "; ".join(broken))


@dataclass(frozen=True)
class Quantile:
    """Adaptive clipping: clips follow a quantile of update norms (Andrew, Thakkar, McMahan, Ramaswamy 2021).

    Each update comes with a bit: +1/2 if the update was within its clip, -1/2 if not. One client more or less
    moves the sum of the centred bits by 1/2. The sum gets noise, and clips and noise of later rounds are
    scaled by exp(-learning_rate (share of updates within their clips - target)).
    """

    target: float = 0.5
    learning_rate: float = 0.2
    noise: float = 10.0  # standard deviation, added to the sum of the bits

    def __post_init__(self) -> None:
        if not (0 < self.target < 1 and in_range(self.learning_rate) and in_range(self.noise)):
            raise PlanError(
                f"invalid quantile: found {self}; expected a target between 0 and 1, and a learning rate and "
                f"noise from {SMALLEST:g} to {LARGEST:g}"
            )

    @property
    def multiplier(self) -> float:
        """Noise multiplier of the sum of bits: noise over its sensitivity, 1/2."""
        return self.noise / 0.5


@dataclass(frozen=True)
class Clipping:
    """How an update is clipped to norm c: as a whole (flat), or each of L layers to c / sqrt(L) (per layer).

    Guarantees:
        Either way no update is longer than c: the squares of the layers' clips add up to c².
    """

    layers: tuple[int, ...] = ()  # number of parameters of each layer; empty: the update as a whole
    quantile: Quantile | None = None

    def __post_init__(self) -> None:
        if not all(whole(length, 1) for length in self.layers):
            raise PlanError(
                f"invalid layers: found {self.layers}, expected whole numbers of parameters, at least 1 each"
            )
        object.__setattr__(self, "layers", tuple(int(length) for length in self.layers))


FLAT = Clipping()


def whole(number: float, least: int, most: int = MOST) -> bool:
    """Return whether a number is whole, not below `least` and not above `most`."""
    return least <= number <= most and number % 1 == 0


def in_range(number: float) -> bool:
    """Return whether products and squares of this number and others in range are exact to float64."""
    return SMALLEST <= number <= LARGEST


def drawable(size: Floats) -> NDArray[np.bool_]:
    """Return of each number whether it is 0 or in range."""
    return np.asarray((size == 0) | ((size >= SMALLEST) & (size <= LARGEST)))


def _one_length(shapes: Sequence[tuple[int, ...]]) -> bool:
    return len(shapes[0]) == 1 and len(set(shapes)) == 1
