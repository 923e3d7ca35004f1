"""A run of identical rounds, and how updates are clipped in them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discretion.errors import PlanError
from discretion.population import Floats, Ints

WHOLE = 1e-6  # how far a fixed number may be from a whole one
# clips and noise outside could not be drawn, or added up, in the floats that carry them
SMALLEST, LARGEST = 1e-20, 1e20
MOST_RELEASES = 2**40  # of a client in a phase; counts have to stay exact, also where phases add up


@dataclass(frozen=True, eq=False)
class Phase:
    """A run of identical rounds. `rate`, `clip` and 1/`noise` are ceilings.

    Who takes part is either a secret coin for each client and round (`rate`), or was drawn when planning
    and is public (`turns`, with rate 1): then it amplifies nothing.
    """

    rounds: int
    rate: Floats  # (N,) chance of taking part: a secret coin for each client and round
    clip: Floats  # (N,) bound on the L2 norm of one update, or of one record's gradient (with `batch`)
    noise: Floats  # (P,) standard deviation of each coordinate, added to each pool's sum
    pool: Ints  # (N,) whose updates are summed before noise is added
    weight: Floats  # (P,) the model moves by the weighted sum of the pools' noisy sums
    turns: Ints | None = None  # (N,) how often each client is asked in a round, a release each
    batch: Floats | None = None  # (N,) chance of each record, a secret coin, to be in the batch of a step
    steps: int = 1  # of a turn, each on a batch of its own with noise of its own
    read: Floats | None = None  # (N,) noise multiplier of a statistic that decides who trains; 0: read raw

    def __post_init__(self) -> None:
        """Check everything, and keep copies that nobody can change later."""
        clients, pools = np.shape(self.rate), np.shape(self.noise)
        columns = (self.clip, self.pool, self.turns, self.batch, self.read)
        shaped = len(clients) == 1 and all(c is None or np.shape(c) == clients for c in columns)
        rules = {
            "rounds and steps must be at least 1, and whole": all(
                count >= 1 and count % 1 == 0 for count in (self.rounds, self.steps)
            ),
            "rate, clip, pool, turns, batch and read need one entry for each client": shaped,
            "noise and weight need one entry for each pool": len(pools) == 1
            and np.shape(self.weight) == pools,
            "a rate lies between 0 and 1": all_hold((self.rate >= 0) & (self.rate <= 1)),
            f"a clip is 0, infinite, or from {SMALLEST:g} to {LARGEST:g}": all_hold(
                _drawable(self.clip) | (self.clip == np.inf)
            ),
            f"noise is 0, or from {SMALLEST:g} to {LARGEST:g}": all_hold(_drawable(self.noise)),
            "a pool is one of those that have noise, by its whole number": all_hold(
                (self.pool >= 0) & (self.pool < np.size(self.noise)) & (self.pool == np.floor(self.pool))
            ),
            "a weight is finite": all_hold(np.isfinite(self.weight)),
        }
        if shaped and not [rule for rule, holds in rules.items() if not holds]:
            rules |= self._rules_of_turns()
        broken = [rule for rule, holds in rules.items() if not holds]
        if broken:
            raise PlanError("this phase cannot be: " + "; ".join(broken))
        for name in ("rounds", "steps"):
            object.__setattr__(self, name, int(getattr(self, name)))
        for name in ("rate", "clip", "noise", "weight", "pool", "turns", "batch", "read"):
            if (column := getattr(self, name)) is not None:
                kind = np.int64 if name in ("pool", "turns") else np.float64
                object.__setattr__(self, name, frozen(np.asarray(column), kind))

    def _rules_of_turns(self) -> dict[str, bool]:
        turns, batch = self.turns, self.batch
        own = self.own_pools
        return {
            "a turn is a whole number, at least 0, and public: its client's rate is 1": turns is None
            or all_hold((turns >= 0) & (turns == np.floor(turns)) & (self.rate == 1)),
            "a client with several turns has a pool of its own": turns is None or own or all_hold(turns <= 1),
            "a batch's rate lies between 0 and 1": batch is None or all_hold((batch >= 0) & (batch <= 1)),
            "a client with batches has a pool of its own, and its turns are public": batch is None
            or (own and all_hold((self.rate == 0) | (self.rate == 1))),
            "the noise of a statistic is at least 0": self.read is None or all_hold(self.read >= 0),
            "a client whose statistic is read has one turn at most": self.read is None
            or turns is None
            or all_hold(turns <= 1),
            "several steps need batches": batch is not None or self.steps == 1,
            "rounds × turns × steps is at most 2^40": int(self.rounds)
            * int(self.steps)
            * int(np.max(1 if turns is None else turns, initial=1))
            <= MOST_RELEASES,
        }

    @property
    def own_pools(self) -> bool:
        """Whether each client's updates are released on their own."""
        return len(self.noise) == len(self.pool) and bool((self.pool == np.arange(len(self.pool))).all())

    @property
    def releases(self) -> Ints:
        """(N,) noisy releases in a round in which the client takes part."""
        turns = np.ones(len(self.rate), dtype=np.int64) if self.turns is None else self.turns
        return turns * self.steps

    @property
    def drawn_alike(self) -> bool:
        """Whether a fixed number can be drawn of each pool, of clients that can stand for each other."""
        alike = self.turns is None and self.batch is None
        for column in (self.rate, self.clip):
            most = np.zeros(len(self.noise))
            np.maximum.at(most, self.pool, column)
            alike &= all_hold(column == most[self.pool])
        mean = np.bincount(self.pool, self.rate, len(self.noise))
        return alike and all_hold(np.abs(mean - self.drawn) < WHOLE)

    @property
    def drawn(self) -> Floats:
        """(P,) how many of each pool are drawn where their number is fixed."""
        return np.asarray(np.round(np.bincount(self.pool, self.rate, len(self.noise))))

    @property
    def expected(self) -> Floats:
        """(N,) updates that are expected in a round."""
        return self.rate if self.turns is None else self.turns.astype(np.float64)

    @property
    def holders(self) -> Ints:
        """(N,) how many clients may take part in the client's pool, and so share its noise; at least 1."""
        taking = self.expected > 0
        members = np.bincount(self.pool[taking], minlength=len(self.noise))
        return np.maximum(members[self.pool], 1)

    @property
    def open_pools(self) -> NDArray[np.bool_]:
        """(P,) in which anybody can take part."""
        return np.bincount(self.pool[self.expected > 0], minlength=len(self.noise)) > 0

    def treats_as(self, other: "Phase") -> bool:
        """Whether both are the same for every client but for their rounds and public turns."""
        if self.steps != other.steps or (self.batch is None) != (other.batch is None):
            return False
        if (self.read is None) != (other.read is None):
            return False
        names = ("rate", "clip", "noise", "pool", "weight", "batch", "read", "holders")
        pairs = ((getattr(self, name), getattr(other, name)) for name in names)
        return all(a is b or np.array_equal(a, b) for a, b in pairs)

    def columns(self) -> dict[str, Floats | Ints]:
        """What tells one client from another, but for public turns."""
        own: dict[str, Floats | Ints] = {"noise": self.noise, "weight": self.weight}
        columns = {"rate": self.rate, "clip": self.clip, **(own if self.own_pools else {"pool": self.pool})}
        extra = {"batch": self.batch, "read": self.read}
        return columns | {name: column for name, column in extra.items() if column is not None}

    def to_record(self, first: Ints) -> dict[str, Any]:
        """As JSON holds it; `first` is one client of each class."""
        record: dict[str, Any] = {"noise": self.noise.tolist(), "weight": self.weight.tolist()}
        record |= {"batch": None, "read": None}
        record |= {name: column[first].tolist() for name, column in self.columns().items()}
        if self.own_pools:
            record["pool"] = "own"
        turns = None
        if self.turns is not None:
            asked = np.flatnonzero(self.turns)
            turns = [asked.tolist(), self.turns[asked].tolist()]
        return {"rounds": self.rounds, **record, "turns": turns, "steps": self.steps}

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


def alike(phases: Sequence[Phase]) -> Ints:
    """(N,) which clients all these phases treat alike but for public turns, numbered by appearance."""
    label = np.zeros(len(phases[0].rate), dtype=np.int64)
    before: Phase | None = None
    for phase in phases:
        if before is None or not phase.treats_as(before):
            for column in phase.columns().values():
                value = np.unique(column, return_inverse=True)[1].reshape(-1)
                label = np.unique(label * (value.max() + 1) + value, return_inverse=True)[1]
        before = phase
    first = np.unique(label, return_index=True)[1]
    order = np.empty(len(first), dtype=np.int64)
    order[np.argsort(first)] = np.arange(len(first))
    return order[label]


def frozen(column: NDArray[Any], kind: type | None = None) -> NDArray[Any]:
    """A copy that nobody can change, or the column itself where it is one already."""
    if kind in (None, column.dtype) and column.flags.owndata and not column.flags.writeable:
        return column
    kept: NDArray[Any] = np.array(column, dtype=kind)
    kept += 0  # -0.0 is 0.0, or clients that are alike would not be written alike
    kept.flags.writeable = False
    return kept


def all_hold(holds: NDArray[np.bool_]) -> bool:
    return bool(np.all(holds))


@dataclass(frozen=True)
class Quantile:
    """A clip that follows a quantile of the updates' norms (Andrew, Thakkar, McMahan and Ramaswamy 2021).

    Each update comes with a bit, +1/2 if it was within its clip and -1/2 if not: centred, so that one client
    more or less moves the sum of the bits by 1/2. The sum gets noise, and clips and noise of later rounds
    are scaled by exp(-learning_rate (share of updates within their clips - target)).
    """

    target: float = 0.5
    learning_rate: float = 0.2
    noise: float = 10.0  # standard deviation, added to the sum of the bits

    def __post_init__(self) -> None:
        if not (0 < self.target < 1 and 0 < self.learning_rate < math.inf and 0 < self.noise < math.inf):
            raise PlanError("a quantile lies between 0 and 1; its learning rate and noise are above 0")

    @property
    def multiplier(self) -> float:
        """Noise over what one client can move the sum of the bits by."""
        return self.noise / 0.5


@dataclass(frozen=True)
class Clipping:
    """How an update is brought down to its clip c: as a whole, or in each of L layers to c / sqrt(L).

    Guarantees:
        Either way no update is longer than c: the squares of the layers' clips add up to c².
    """

    layers: tuple[int, ...] = ()  # how many parameters each has; none: as a whole
    quantile: Quantile | None = None

    def __post_init__(self) -> None:
        if not all(length >= 1 and length % 1 == 0 for length in self.layers):
            raise PlanError("a layer has at least one parameter, and a whole number of them")
        object.__setattr__(self, "layers", tuple(int(length) for length in self.layers))


FLAT = Clipping()


def _drawable(size: Floats) -> NDArray[np.bool_]:
    return np.asarray((size == 0) | ((size >= SMALLEST) & (size <= LARGEST)))
