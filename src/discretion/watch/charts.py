"""The two charts of the live page, as data: accuracy, and what is spent of the budgets."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from discretion.accounting.certify import share_of
from discretion.report import numbers
from discretion.report.chart import Chart, Series, Style, linear, rounds
from discretion.report.reading import Run
from discretion.report.wording import at_most
from discretion.watch.following import Seen
from discretion.watch.summary import Class

__all__ = ["EMPTY", "Style", "accuracy", "spending"]

HEIGHT = 280
MOST_POINTS = 400  # of a line
LINE = Style("--method-2", "circle", "solid")
EMPTY = Chart((), rounds(1, 1), linear("", 0.0, 1.0, 4, percent=True), HEIGHT)


def accuracy(seen: Seen, last: int) -> Chart:
    """All rounds of the plan have a place from the start, so that one sees how far it is."""
    step = max(1, -(-len(seen.rounds) // MOST_POINTS))
    kept = range((len(seen.rounds) - 1) % step, len(seen.rounds), step)  # the latest one among them
    x, y = [seen.rounds[k] for k in kept], [seen.accuracy[k] for k in kept]
    shown = [numbers.percent(value, 2) for value in y]
    low, high = (min(y), max(y)) if y else (0.0, 1.0)
    room = 0.06 * max(high - low, 0.02)
    axis = linear("Accuracy", max(0.0, low - room), min(1.0, high + room), 5, percent=True)
    return Chart((Series("accuracy", x, y, LINE, shown=shown),), rounds(last, 10), axis, HEIGHT)


def spending(seen: Seen, run: Run, drawn: Sequence[tuple[Class, Style]]) -> Chart:
    """Shares of the budgets: what is spent, and, dotted, what the rest of the plan will spend.

    Lines go through the points of the certificate; what is written at the present round is never too small.
    """
    curve = run.certificate.spending
    names = list(run.classes[0])
    lines = []
    for row, look in drawn:
        k = names.index(row.name)
        share = share_of(curve.epsilon[k], curve.budget[k])
        points = list(zip(curve.rounds, share.tolist(), strict=True))
        now = (seen.counted, float(np.interp(seen.counted, curve.rounds, share)))
        past = [point for point in points if point[0] < seen.counted] + [now]
        ahead = [now] + [point for point in points if point[0] > seen.counted]
        bare = replace(look, symbol="")
        if len(ahead) > 1:
            lines.append(_line(f"{row.name}, planned", ahead, replace(bare, dash="dot"), row, seen.counted))
        lines.append(_line(row.name, past, bare, row, seen.counted))
    highest = max([1.0, *(value for line in lines for value in line.y)])
    axis = linear("Share of the budget", 0.0, 1.06 * highest, 5, percent=True)
    return Chart(tuple(lines), rounds(run.plan.rounds, 10), axis, HEIGHT, levels=((1.0, "--ink"),))


def _line(name: str, points: Sequence[tuple[int, float]], look: Style, row: Class, now: int) -> Series:
    x, y = [at for at, _ in points], [value for _, value in points]
    shown = [at_most(row.share if at == now else value) for at, value in points]
    return Series(name, x, y, look, shown=shown, group=row.name)
