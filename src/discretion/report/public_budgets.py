"""Spending by budget class for others: no names, no small counts, and nothing to subtract."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from discretion.errors import InputError
from discretion.ledger.lifetime import Lifetime
from discretion.report import numbers

LEAST = 5  # clients in a cell
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

    Budgets are grouped between powers of two, which depend on no client. Public data is left out.

    Guarantees:
        Every client with a budget is in exactly one cell, and no cell has fewer than `least` clients: sums
        and differences of cells are numbers of whole cells.
        There is no cell at all where fewer than `least` clients have a budget. Ranges without a cell are
        empty.
    """
    epsilon = lifetime.population.epsilon
    known = np.flatnonzero(np.isfinite(epsilon))
    if len(known) < least:
        return []
    power = np.frexp(epsilon[known])[1] - 1  # 2^power <= epsilon < 2^(power + 1)
    low, high = int(power.min()), int(power.max()) + 1
    band = np.searchsorted(SHARES[1:-1], lifetime.share[known], side="right")
    counts = np.zeros((high - low, len(SHARES) - 1), dtype=np.int64)
    np.add.at(counts, (power - low, band), 1)
    found = []
    for first, last in _merged(counts.sum(axis=1).tolist(), least):
        bands = counts[first:last].sum(axis=0)
        for start, end in _merged(bands.tolist(), least):
            ends = (2.0 ** (low + first), 2.0 ** (low + last), SHARES[start], SHARES[end])
            found.append(PublicCell(*ends, int(bands[start:end].sum())))
    return found


def _merged(counts: Sequence[int], least: int) -> list[tuple[int, int]]:
    """Return ranges over neighbouring counts, of `least` together or more; zeros beside them are left out.

    What is left at the end joins the range before it.
    """
    found: list[tuple[int, int]] = []
    start, together = 0, 0
    for place, count in enumerate(counts):
        start = start if together else place
        together += count
        if together >= least:
            found.append((start, place + 1))
            together = 0
    if together:
        first, _ = found.pop()
        found.append((first, max(place for place, count in enumerate(counts) if count) + 1))
    return found


def budget_name(cell: PublicCell) -> str:
    return f"ε {cell.budget_from:g} to below {cell.budget_below:g}"


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
