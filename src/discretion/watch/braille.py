"""Line charts for the terminal, in dots of Braille."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.text import Text

from discretion.arrays import Floats

DOTS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])  # of a character, down and across
EMPTY = 0x2800  # the character without dots
STEPS = (1, 2, 2.5, 5, 10)
TICKS = 4
LONGEST_NAME = 20


@dataclass(frozen=True)
class Trace:
    name: str  # written at its end
    x: Sequence[float]
    y: Sequence[float]
    style: str = ""  # of rich
    stairs: bool = False  # between two points the later one holds


def sketch(lines: Sequence[Trace], last: float, width: int, height: int, top: float | None = None) -> Text:
    """Return values between 0 and 1 as per cent over rounds up to `last`; the axis includes `top`.

    Each line has its name at its end, so that they can be told apart without colours.
    """
    drawn = [line for line in lines if len(line.x)]
    low, high, ticks = _scale([value for line in drawn for value in line.y], top)
    left = max(len(_percent(at)) for at in ticks)
    right = min(max((len(line.name) for line in drawn), default=0), LONGEST_NAME)
    columns = width - left - right - 4  # an axis, and a space to each side
    canvas = np.full((height, columns), EMPTY)
    owner = np.full((height, columns), -1)
    names: dict[int, int] = {}  # by row: whose name stands there
    for number, line in enumerate(drawn):
        across, down = _dots(line, last, 2 * columns, 4 * height, low, high)
        np.bitwise_or.at(canvas, (down // 4, across // 2), DOTS[down % 4, across % 2])
        owner[down // 4, across // 2] = number
        names[_free(names, int(down[-1]) // 4, height)] = number
    at_row = {round((high - at) / (high - low) * (height - 1)): _percent(at) for at in ticks}
    text = Text()
    for row in range(height):
        text.append(f"{at_row.get(row, ''):>{left}} ", style="dim")
        text.append("┤" if row in at_row else "│", style="dim")
        for cell, who in zip(canvas[row].tolist(), owner[row].tolist(), strict=True):
            text.append(chr(cell), style=drawn[who].style if who >= 0 else "")
        if row in names:
            line = drawn[names[row]]
            text.append(f" {line.name[:LONGEST_NAME]}", style=line.style)
        text.append("\n")
    text.append(f"{'':{left}} └{'─' * columns}\n", style="dim")
    end = f"round {last:,.0f}"
    text.append(f"{'':{left}}  0{end:>{columns - 1}}", style="dim")
    return text


def _dots(
    line: Trace, last: float, wide: int, tall: int, low: float, high: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the places across and down of all dots of a line, without gaps, its last point last."""
    x, y = np.asarray(line.x, dtype=np.float64), np.asarray(line.y, dtype=np.float64)
    place = np.clip(np.round(x / max(last, 1.0) * (wide - 1)), 0, wide - 1).astype(int)
    columns = np.arange(place[0], place[-1] + 1)
    rounds = columns / (wide - 1) * max(last, 1.0)
    later = y[np.minimum(np.searchsorted(x, rounds), len(x) - 1)]
    values = later if line.stairs else np.interp(rounds, x, y)
    level = np.clip(np.round((high - values) / (high - low) * (tall - 1)), 0, tall - 1).astype(int)
    across, down = [], []
    for k, column in enumerate(columns.tolist()):
        before = level[max(k - 1, 0)]
        ends = sorted((int(level[k]), int(before + np.sign(level[k] - before))))
        down += list(range(ends[0], ends[1] + 1))
        across += [column] * (ends[1] - ends[0] + 1)
    return np.array([*across, columns[-1]]), np.array([*down, level[-1]])


def _free(taken: dict[int, int], row: int, height: int) -> int:
    """Return the nearest free row."""
    return min((r for r in range(height) if r not in taken), key=lambda r: abs(r - row), default=row)


def _scale(values: Sequence[float], top: float | None) -> tuple[float, float, Floats]:
    """Return the ends and ticks of the axis, at whole multiples of a round number."""
    found = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = (min(found), max(found)) if top is None else (0.0, max(*found, top))
    wanted = max((high - low) / TICKS, 1e-4)
    power = 10.0 ** math.floor(math.log10(wanted))
    step = next(factor * power for factor in STEPS if factor * power >= wanted * (1 - 1e-9))
    first, end = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = np.arange(first, max(end, first + 1) + 1, dtype=np.float64) * step
    return float(ticks[0]), float(ticks[-1]), ticks


def _percent(value: float) -> str:
    return f"{100 * value:.4g} %"
