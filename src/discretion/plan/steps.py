"""Gaussian steps: a client's privacy cost as an accountant sees it."""

from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from discretion.arrays import Floats, Ints
from discretion.errors import PlanError
from discretion.plan.phase import Rule, check

Unit = Literal["client", "record"]  # unit of privacy: all data of a client, or each of its records
Adjacency = Literal["add_remove", "replace"]  # neighbours have one unit more or less, or one replaced
COLUMNS = ("rate", "multiplier", "count")


@dataclass(frozen=True, eq=False)
class Steps:
    """S different Gaussian steps of N clients, each taken `count` times, in any order.

    In step s the client's unit enters a sum with probability rate[s], by a secret coin (Poisson sampling).
    The sum gets Gaussian noise of standard deviation multiplier[s] times the unit's sensitivity. This covers
    rounds that vary over time, mini-batches within a client, public turns (rate 1), and a single release.

    Guarantees:
        Steps of different units or adjacencies are never added up.
        Under replace adjacency, only steps without a secret coin are accepted: for the others no tight
        dominating pair of distributions is proved.
    """

    rate: Floats  # (S, N)
    multiplier: Floats  # (S, N)
    count: Ints  # (S, N); given as (S,), the counts hold for every client
    unit: Unit = "client"
    adjacency: Adjacency = "add_remove"

    def __post_init__(self) -> None:
        count, adjacency = np.asarray(self.count), self.adjacency
        if count.ndim == 1 and self.rate.ndim == 2 and len(count) == len(self.rate):
            count = np.broadcast_to(count[:, None], self.rate.shape)
        object.__setattr__(self, "count", count)
        shapes = self.rate.shape, self.multiplier.shape, count.shape
        if self.rate.ndim != 2 or len(set(shapes)) > 1:
            raise PlanError(
                "invalid steps: rate, multiplier and count must have one entry for each step and client, "
                f"found shapes {', '.join(map(str, shapes))}"
            )
        whole = (count >= 0) & np.isfinite(count) & (count == np.floor(count))
        rules: list[Rule] = [
            ("rate must lie between 0 and 1", (self.rate >= 0) & (self.rate <= 1), self.rate),
            ("multiplier must be at least 0", self.multiplier >= 0, self.multiplier),
            ("count must be a whole number, at least 0", whole, count),
            ("unit must be client or record", self.unit in get_args(Unit), self.unit),
            ("adjacency must be add_remove or replace", adjacency in get_args(Adjacency), adjacency),
        ]
        check("steps", rules)
        if adjacency == "replace" and not ((self.rate == 0) | (self.rate == 1)).all():
            raise PlanError(
                "a secret coin cannot be accounted for where one unit is replaced by another: use add_remove"
            )

    def __len__(self) -> int:
        return len(self.rate)

    def of(self, clients: Ints) -> "Steps":
        """Return the steps of these clients only."""
        return replace(self, **{name: getattr(self, name)[:, clients] for name in COLUMNS})

    def then(self, later: "Steps") -> "Steps":
        """Return these steps and the later ones together."""
        if len(self) and len(later) and (self.unit, self.adjacency) != (later.unit, later.adjacency):
            raise PlanError(
                f"found steps of unit {self.unit} ({self.adjacency}) and of unit {later.unit} "
                f"({later.adjacency}), which do not add up: keep an account for each"
            )
        both: dict[str, Any] = {
            name: np.concatenate([getattr(self, name), getattr(later, name)]) for name in COLUMNS
        }
        return replace(self if len(self) else later, **both)

    @classmethod
    def none(cls, clients: int) -> "Steps":
        """Return no steps, for this number of clients."""
        return cls(np.zeros((0, clients)), np.zeros((0, clients)), np.zeros((0, clients), dtype=np.int64))

    @classmethod
    def same(cls, rate: Floats, multiplier: Floats, count: int | Ints) -> "Steps":
        """Return `count` equal steps for each client, with (N,) rates and (N,) noise multipliers."""
        counts = np.broadcast_to(np.asarray(count), np.shape(rate))
        return cls(rate[None], multiplier[None], counts[None])
