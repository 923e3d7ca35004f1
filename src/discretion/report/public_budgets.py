"""Spending by budget class for others: no names, no small counts, and no range that shows a single client."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from discretion.arrays import Ints
from discretion.errors import InputError
from discretion.ledger.lifetime import Lifetime
from discretion.report import numbers

LEAST = 5  # clients in a cell
BUDGETS = (0.0, 0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, math.inf)  # ends of the bands of budgets
SHARES = (0.0, 0.25, 0.5, 0.75, 0.9, math.inf)  # ends of the bands of the share that is spent


@dataclass(frozen=True)
class PublicCell:
    """Number of clients by budget and share spent; ranges have their lower end and not their upper one."""

    budget_from: float
    budget_below: float
    share_from: float
    share_below: float  # infinite: the whole budget, or more than is allowed now
    clients: int


def cells(lifetime: Lifetime, least: int = LEAST) -> list[PublicCell]:
    """Return how many clients have spent which share, by the budgets that they came with.

    All budgets and all shares are one cell at first. A range is cut at the middle of its fixed BUDGETS, or
    SHARES, if `least` clients or more are on either side, and then each side again. Public data is left out.

    Guarantees:
        Every client with a budget is in exactly one cell, and no cell has fewer than `least` clients: sums
        and differences of cells are numbers of whole cells. Together they have every budget and every share.
        There is no cell at all where fewer than `least` clients have a budget.
        That a range was not cut tells only that one side of its middle has fewer than `least` clients, or
        none: neither which side nor how many. So no end of a range depends on where fewer clients are.
    """
    epsilon = lifetime.population.epsilon
    known = np.flatnonzero(np.isfinite(epsilon))
    if len(known) < least:
        return []
    budget = np.searchsorted(BUDGETS[1:-1], epsilon[known], side="right")
    share = np.searchsorted(SHARES[1:-1], lifetime.share[known], side="right")
    counts = np.zeros((len(BUDGETS) - 1, len(SHARES) - 1), dtype=np.int64)
    np.add.at(counts, (budget, share), 1)
    found = []
    for first, last in _cut(counts.sum(axis=1), 0, len(BUDGETS) - 1, least):
        bands = counts[first:last].sum(axis=0)
        for start, end in _cut(bands, 0, len(SHARES) - 1, least):
            ends = (BUDGETS[first], BUDGETS[last], SHARES[start], SHARES[end])
            found.append(PublicCell(*ends, int(bands[start:end].sum())))
    return found


def _cut(counts: Ints, first: int, last: int, least: int) -> list[tuple[int, int]]:
    """Return the ranges that counts `first` to before `last` are cut into, each of `least` or more."""
    middle = (first + last) // 2
    if min(counts[first:middle].sum(), counts[middle:last].sum()) < least:
        return [(first, last)]
    return [*_cut(counts, first, middle, least), *_cut(counts, middle, last, least)]


def budget_name(cell: PublicCell) -> str:
    if math.isinf(cell.budget_below):
        return f"ε {cell.budget_from:g} or more" if cell.budget_from else "any budget"
    return (
        f"ε {cell.budget_from:g} to below {cell.budget_below:g}"
        if cell.budget_from
        else f"ε below {cell.budget_below:g}"
    )


def share_name(cell: PublicCell) -> str:
    low, high = (numbers.percent(share, 0) for share in (cell.share_from, min(cell.share_below, 1.0)))
    if math.isinf(cell.share_below):
        return f"{low} or more" if cell.share_from else "any share"
    return f"{low} to below {high}" if cell.share_from else f"below {high}"


def to_record(lifetime: Lifetime, least: int) -> dict[str, Any]:
    """Return the cells and what else may be told to anybody, as a record for JSON."""
    found = cells(lifetime, least)
    return {"least": least, "runs": len(lifetime.runs), "cells": [asdict(cell) for cell in found]}


def only_one(lifetimes: Sequence[Lifetime]) -> Lifetime:
    """Return the one ledger that a version for others may be made from."""
    if len(lifetimes) != 1:
        raise InputError(
            f"found {len(lifetimes)} ledgers for one public version, expected one: their tables could be "
            "subtracted from each other. Make a version of each, for different readers"
        )
    return lifetimes[0]
