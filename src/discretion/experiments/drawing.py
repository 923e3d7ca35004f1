"""Accuracy or spending over rounds as a small SVG, readable on light and dark pages, without any library."""

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from discretion.experiments.cells import Result
from discretion.population import Floats, Ints

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 760, 380, 48, 34, 40
RIGHT = 250  # for the names
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#7f5fc4", "#888888")
DASHES = ("", "6 4", "2 3")


@dataclass(frozen=True)
class Curve:
    label: str
    rounds: Ints  # (E,)
    mean: Floats  # (E,) in per cent, or epsilon
    std: Floats  # (E,) zeros for a single seed
    look: tuple[int, int] | None = None  # colour and dash, else by its place

    @classmethod
    def over_seeds(cls, label: str, results: Sequence[Result]) -> "Curve":
        rounds = np.array(results[0].rounds)
        values = 100 * np.array([result.accuracies for result in results])
        std = values.std(axis=0, ddof=1) if len(results) > 1 else np.zeros(len(rounds))
        return cls(label, rounds, values.mean(axis=0), std)


def draw(title: str, curves: Sequence[Curve], unit: str = " %") -> str:
    """A line for each curve with a band of one standard deviation; names stand where the lines end."""
    last = max(int(curve.rounds[-1]) for curve in curves)
    low = min(float((curve.mean - curve.std).min()) for curve in curves)
    high = max(float((curve.mean + curve.std).max()) for curve in curves)
    low = 10 * math.floor(low / 10)
    high = max(10 * math.ceil(high / 10), low + 10)

    def x(rounds: Floats | Ints) -> Floats:
        return np.asarray(LEFT + (WIDTH - LEFT - RIGHT) * rounds / last)

    def y(values: Floats) -> Floats:
        return np.asarray(TOP + (HEIGHT - TOP - BOTTOM) * (high - values) / (high - low))

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="12" fill="#777">',
        f'<text x="{LEFT}" y="18" font-size="14">{html.escape(title)}</text>',
    ]
    ticks = np.arange(low, high + 1, 10.0)
    for tick, place in zip(ticks, y(ticks), strict=True):
        parts.append(
            f'<path d="M{LEFT} {place:.1f}H{WIDTH - RIGHT}" stroke="#777" stroke-opacity="0.25"/>'
            f'<text x="{LEFT - 6}" y="{place + 4:.1f}" text-anchor="end">{tick:.0f}{unit}</text>'
        )
    ticks = np.unique(np.linspace(0, last, 6).round())
    for tick, place in zip(ticks, x(ticks), strict=True):
        parts.append(f'<text x="{place:.1f}" y="{HEIGHT - 20}" text-anchor="middle">{tick:.0f}</text>')
    parts.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 4}" text-anchor="middle">round</text>')
    places = _apart([float(y(curve.mean)[-1]) for curve in curves])
    for number, (curve, place) in enumerate(zip(curves, places, strict=True)):
        hue, gaps = curve.look or (number % len(COLOURS), number // len(COLOURS) % len(DASHES))
        colour, dash = COLOURS[hue], DASHES[gaps]
        across, line = x(curve.rounds), y(curve.mean)
        if curve.std.any():
            outline = np.concatenate([y(curve.mean + curve.std), y(curve.mean - curve.std)[::-1]])
            band = _path(np.concatenate([across, across[::-1]]), outline)
            parts.append(f'<path d="{band}Z" fill="{colour}" fill-opacity="0.15"/>')
        parts.append(
            f'<path d="{_path(across, line)}" fill="none" stroke="{colour}" stroke-width="2" '
            f'stroke-dasharray="{dash}"/>'
            f'<text x="{WIDTH - RIGHT + 8}" y="{place + 4:.1f}" fill="{colour}">'
            f"{html.escape(curve.label)} {curve.mean[-1]:.1f}</text>"
        )
    return "\n".join([*parts, "</svg>", ""])


def _path(across: Floats, down: Floats) -> str:
    return "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in zip(across, down, strict=True))


def _apart(places: Sequence[float], gap: float = 15.0) -> list[float]:
    """The same order, moved so that names do not lie on each other and stay on the page."""
    order = np.argsort(places, kind="stable")
    moved = np.array(places)[order]
    for i in range(1, len(moved)):
        moved[i] = max(moved[i], moved[i - 1] + gap)
    moved -= max(0.0, moved[-1] - (HEIGHT - BOTTOM))
    out = np.empty(len(moved))
    out[order] = moved
    return [float(place) for place in out]
