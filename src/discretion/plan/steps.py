"""A client's privacy cost: a list of Gaussian steps, which is all that an accountant ever sees."""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from discretion.errors import PlanError
from discretion.population import Floats, Ints

Unit = Literal["client", "record"]  # what is protected: all data of a client, or each record of it
Adjacency = Literal["add_remove", "replace"]  # neighbours have one unit more or less, or another one


@dataclass(frozen=True, eq=False)
class Steps:
    """Gaussian steps of N clients: count times each, in any order.

    In step s the client's unit enters, with probability rate[s] (a secret coin), a sum that gets noise of
    multiplier[s] times what the unit could change the sum by. Rounds that vary over time, mini-batches
    inside a client, turns that everybody knows of (rate 1) and a single Gaussian release are all this.

    Guarantees:
        Steps of different units or adjacencies are never added up.
        Where neighbours have another unit in place of one, only steps without a secret coin are taken: no
        tight pair of distributions is proved for the others.
    """

    rate: Floats  # (S, N)
    multiplier: Floats  # (S, N)
    count: Ints  # (S, N); (S,) holds for every client
    unit: Unit = "client"
    adjacency: Adjacency = "add_remove"

    def __post_init__(self) -> None:
        count = np.asarray(self.count)
        if count.ndim == 1 and self.rate.ndim == 2 and len(count) == len(self.rate):
            count = np.broadcast_to(count[:, None], self.rate.shape)
        object.__setattr__(self, "count", count)
        alike = self.rate.ndim == 2 and self.rate.shape == self.multiplier.shape == count.shape
        if not alike or not _sound(self.rate, self.multiplier, count):
            raise PlanError(
                "these steps cannot be: a rate lies between 0 and 1, a multiplier is at least 0, a count is "
                "whole and at least 0, and there is one of each for each step and client"
            )
        if self.unit not in get_args(Unit) or self.adjacency not in get_args(Adjacency):
            raise PlanError(
                f"steps protect a client or a record, by add_remove or replace; found {self.unit!r} and "
                f"{self.adjacency!r}"
            )
        if self.adjacency == "replace" and not ((self.rate == 0) | (self.rate == 1)).all():
            raise PlanError(
                "a secret coin cannot be accounted for where one unit is replaced by another: use add_remove"
            )

    def __len__(self) -> int:
        return len(self.rate)

    def of(self, clients: Ints) -> "Steps":
        return self._with(self.rate[:, clients], self.multiplier[:, clients], self.count[:, clients])

    def then(self, later: "Steps") -> "Steps":
        if len(self) and len(later) and (self.unit, self.adjacency) != (later.unit, later.adjacency):
            raise PlanError(
                f"steps that protect a {self.unit} ({self.adjacency}) and steps that protect a {later.unit} "
                f"({later.adjacency}) do not add up: keep an account for each"
            )
        tagged = self if len(self) else later
        return tagged._with(
            np.concatenate([self.rate, later.rate]),
            np.concatenate([self.multiplier, later.multiplier]),
            np.concatenate([self.count, later.count]),
        )

    def _with(self, rate: Floats, multiplier: Floats, count: Ints) -> "Steps":
        return Steps(rate, multiplier, count, self.unit, self.adjacency)

    @classmethod
    def none(cls, clients: int) -> "Steps":
        return cls(np.zeros((0, clients)), np.zeros((0, clients)), np.zeros((0, clients), dtype=np.int64))

    @classmethod
    def same(cls, rate: Floats, multiplier: Floats, count: int | Ints) -> "Steps":
        """`count` equal steps, each client with its own rate and multiplier, (N,) each."""
        counts = np.broadcast_to(np.asarray(count), np.shape(rate))
        return cls(rate[None], multiplier[None], counts[None])


def _sound(rate: Floats, multiplier: Floats, count: Ints) -> bool:
    whole = (count >= 0) & np.isfinite(count) & (count == np.floor(count))
    return bool(((rate >= 0) & (rate <= 1) & (multiplier >= 0) & whole).all())
