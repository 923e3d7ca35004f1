"""Intermediate results of a method that its plan does not hold: curves, chances and numbers, by name."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from discretion.arrays import Floats


@dataclass(frozen=True)
class Details:
    rounds: Mapping[str, Mapping[str, Floats]] = field(default_factory=dict)  # figures, each of (T,) curves
    chance: Floats | None = None  # (N,) of each client in one draw
    numbers: Mapping[str, float] = field(default_factory=dict)

    def to_record(self) -> dict[str, Any]:
        """Return the details as JSON values."""
        curves = {
            title: {name: curve.tolist() for name, curve in lines.items()}
            for title, lines in self.rounds.items()
        }
        chance = None if self.chance is None else self.chance.tolist()
        return {"rounds": curves, "chance": chance, "numbers": dict(self.numbers)}
