"""Charts as plain data: series of values on two axes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

Shape = Literal["line", "stairs", "points", "bars"]  # stairs: between two points the later one holds
SYMBOLS = ("circle", "square", "ring", "frame")
STEPS = (1, 2, 5)


@dataclass(frozen=True)
class Style:
    """Colour, mark and dash of a series in every chart and table of a page."""

    colour: str  # a custom property of page.css
    symbol: str
    dash: str

    @property
    def bare(self) -> "Style":
        """The line without marks."""
        return replace(self, symbol="")


@dataclass(frozen=True)
class Series:
    name: str
    x: Sequence[float]
    y: Sequence[float]
    look: Style
    shape: Shape = "line"
    shown: Sequence[str] = ()  # each value as text; four significant digits by default
    spread: Sequence[float] = ()  # half of a band around the line
    labels: Sequence[str] = ()  # the client of each point
    colours: Sequence[str] = ()  # of each point
    group: str = ""  # series of one group are shown and hidden together; by default the name


@dataclass(frozen=True)
class Axis:
    title: str
    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    logarithmic: bool = False
    named: bool = False  # its ticks are names, at 0, 1, …

    def place(self, value: float) -> float:
        """Return the place of a value on the axis: 0 is the low end, 1 the high end."""
        if self.logarithmic:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


@dataclass(frozen=True)
class Chart:
    series: tuple[Series, ...]
    x: Axis
    y: Axis
    height: int  # pixels
    levels: tuple[tuple[float, str], ...] = ()  # dotted, each in its colour


def linear(title: str, low: float, high: float, count: int, percent: bool = False) -> Axis:
    """Return an axis with about `count` ticks at most, at whole multiples of 1, 2 or 5."""
    high = high if high > low else low + 1.0
    step = _step((high - low) / count)
    ticks = np.arange(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1) * step
    decimals = max(0, -math.floor(math.log10(step * (100 if percent else 1)) + 1e-9))
    words = [f"{100 * at:.{decimals}f} %" if percent else f"{at:,.{decimals}f}" for at in ticks]
    return Axis(title, low, high, tuple(zip(ticks.tolist(), words, strict=True)))


def logarithmic(title: str, low: float, high: float) -> Axis:
    """Return an axis with ticks at 1, 2, 5, 10, …; at powers of ten only where there would be many."""
    low, high = low / 1.12, high * 1.12
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = STEPS if high <= 1000 * low else (1,)
    ticks = [factor * 10.0**power for power in powers for factor in factors]
    inside = tuple((at, f"{at:g}") for at in ticks if low <= at <= high)
    return Axis(title, low, high, inside, logarithmic=True)


def rounds(last: int, count: int) -> Axis:
    """Return an axis of rounds 0 to `last`, with ticks at whole numbers."""
    step = max(1, round(_step(max(last, 1) / count)))
    ticks = range(0, last + 1, step)
    return Axis("Round", 0.0, float(max(last, 1)), tuple((float(at), f"{at:,}") for at in ticks))


def categories(title: str, names: Sequence[str]) -> Axis:
    """Return an axis with a place for each name."""
    ticks = tuple((float(at), name) for at, name in enumerate(names))
    return Axis(title, -0.5, len(names) - 0.5, ticks, named=True)


def _step(least: float) -> float:
    """Return the smallest of …, 0.1, 0.2, 0.5, 1, 2, 5, 10, … that is at least `least`."""
    power = math.floor(math.log10(least))
    found = next(factor for factor in (*STEPS, 10) if factor * 10.0**power >= least * (1 - 1e-9))
    return found * 10.0**power
