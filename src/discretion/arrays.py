"""Array types, and the distinct columns of a table, so that equal clients are computed once."""

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def distinct(table: Floats) -> tuple[Floats, Ints]:
    """Return the (C, K) distinct columns of a (C, N) table, and (N,) the number of each column among them.

    The distinct columns are sorted by their first row, then by the second and so on. They are found row by
    row, which for a million clients is many times faster than comparing whole columns.
    """
    clients = table.shape[1]
    label, count = np.zeros(clients, dtype=np.int64), min(clients, 1)
    for row in table:
        if count == clients:
            break  # all columns differ, and their order is settled
        if (row == row[0]).all():
            continue
        values, value = np.unique(row, return_inverse=True)
        found, label = np.unique(label * len(values) + value.reshape(-1), return_inverse=True)
        count = len(found)
    first = np.zeros(count, dtype=np.int64)
    first[label[::-1]] = np.arange(clients)[::-1]
    return table[:, first], label


def chunks(numbers: Ints, length: int) -> list[Ints]:
    """Return the numbers in order, in lists of nearly equal length: at most `length`, and at least 1."""
    return np.array_split(numbers, math.ceil(len(numbers) / max(length, 1))) if len(numbers) else []
