"""What a plan is made of, as JSON holds it: phases, clipping, reading, combining and the grid."""

from typing import Literal

import numpy as np

from discretion import combine, pick
from discretion.errors import PlanError
from discretion.phase import Clipping, Phase, Quantile
from discretion.population import Ints
from discretion.records import Record


class PhaseRecord(Record):
    """One entry for each class of clients, or for each pool; public turns by client number."""

    rounds: int
    rate: list[float]
    clip: list[float]
    pool: list[int] | Literal["own"]
    noise: list[float]
    weight: list[float]
    turns: tuple[list[int], list[int]] | None
    batch: list[float] | None
    steps: int
    read: list[float] | None

    def to_phase(self, member: Ints) -> Phase:
        own = self.pool == "own"
        turns = None
        if self.turns is not None:
            asked, times = self.turns
            if len(asked) != len(times) or asked != sorted(set(asked)) or min(asked, default=0) < 0:
                raise PlanError(
                    "not a plan of Discretion: turns need client numbers that rise, each with a count"
                )
            turns = np.zeros(len(member), dtype=np.int64)
            turns[asked] = times
        return Phase(
            rounds=self.rounds,
            rate=np.array(self.rate)[member],
            clip=np.array(self.clip)[member],
            noise=np.array(self.noise)[member] if own else np.array(self.noise),
            pool=np.arange(len(member)) if own else np.array(self.pool)[member],
            weight=np.array(self.weight)[member] if own else np.array(self.weight),
            turns=turns,
            batch=None if self.batch is None else np.array(self.batch)[member],
            steps=self.steps,
            read=None if self.read is None else np.array(self.read)[member],
        )


class QuantileRecord(Record):
    target: float
    learning_rate: float
    noise: float


class ClippingRecord(Record):
    layers: list[int]
    quantile: QuantileRecord | None

    def to_clipping(self) -> Clipping:
        quantile = Quantile(**self.quantile.model_dump()) if self.quantile else None
        return Clipping(tuple(self.layers), quantile)


class ReadingRecord(Record):
    rule: pick.Rule
    choose: int
    bound: float


class CombineRecord(Record):
    rule: combine.Rule
    keep: list[float]
    by: combine.By
    memory: int
    average: float = 0.0


class GridRecord(Record):
    step: float
    size: int
