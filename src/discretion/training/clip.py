"""Clipping: updates and gradients brought down to the length that is charged for, and added up."""

import ctypes
import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from discretion.errors import PlanError
from discretion.extension import extension
from discretion.population import Floats

Matrix = NDArray[np.float32]  # (k, d)

ROUNDING = 1e-6  # a clipped update ends this much below its bound, so rounding cannot lift it above
TILE = (32, 2**12)  # updates and columns that are in float64 at once: they stay in the processor's cache


def layers_of(lengths: tuple[int, ...], size: int) -> list[slice]:
    """Which parameters are clipped together: all of them, unless the plan names layers."""
    if lengths and sum(lengths) != size:
        raise PlanError(f"the plan's layers have {sum(lengths)} parameters, the model has {size}")
    ends = np.cumsum(lengths or (size,)).tolist()
    return [slice(start, end) for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def owners(lengths: Sequence[int], layers: Sequence[slice]) -> list[int] | None:
    """The layer that each tensor of so many parameters is clipped with; None if one ends within a tensor."""
    ends = np.cumsum(lengths)
    owner: list[int] = np.searchsorted([part.stop for part in layers], ends).tolist()
    return owner if {part.stop for part in layers} <= set(ends.tolist()) else None


def factors(norm: Floats, clip: Floats) -> Floats:
    """(k, L) what to multiply layers of these norms by; all 0 where one of them is not finite.

    Guarantees:
        Multiplied so, each layer's norm is at most clip / sqrt(L), and so the whole at most the clip, with
        `ROUNDING` to spare.
    """
    bound = (clip * (1 - ROUNDING) / math.sqrt(norm.shape[1]))[:, None]
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        factor = np.where(norm > bound, bound / norm, 1.0)
    return np.where(np.isfinite(norm).all(axis=1, keepdims=True), factor, 0.0)


def finite_and_factor(change: Matrix, clip: Floats, layers: Sequence[slice]) -> tuple[Matrix, Floats]:
    """(k, d) updates, zero where one is not finite, and (k, L) what to multiply their L layers by.

    Guarantees:
        Multiplied so, each layer's L2 norm is at most clip / sqrt(L), and so the whole at most the clip.
        An update of which any number is not finite counts as zero, in every layer.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        norm = np.sqrt(np.stack([_squares(change[:, columns]) for columns in layers], axis=1))
    finite: NDArray[np.bool_] = np.asarray(np.isfinite(norm).all(axis=1))
    if not finite.all():  # zero times infinity is not zero
        change = np.where(finite[:, None], change, np.float32(0))
    return change, factors(norm, clip)


def add_layers(
    total: Floats, share: Floats | NDArray[np.bool_], change: Matrix, factor: Floats, layers: Sequence[slice]
) -> None:
    """Add to (d,) `total` the (k,) share of each update, each of its layers multiplied by its factor.

    Guarantees:
        Products and sums are in float64: an update that is long, or many, do not round a short one up.
    """
    for number, columns in enumerate(layers):
        _add(total[columns], share * factor[:, number], change[:, columns])


def _add(total: Floats, each: Floats, change: Matrix) -> None:
    """Add to (d,) `total` the rows, each multiplied by its own number, in float64."""
    code = extension()
    if code is not None and _floats_in_rows(change) and total.flags.c_contiguous:
        code.add_rows(*_where(change), _pointer(each), _pointer(total))
        return
    for rows, block, tile in _tiles(change):
        total[block] += np.einsum("k,kd->d", each[rows], tile)


def _squares(change: Matrix) -> Floats:
    """(k,) the squared norms, in float64."""
    total, code = np.zeros(len(change)), extension()
    if code is not None and _floats_in_rows(change):
        code.row_squares(*_where(change), _pointer(total))
        return total
    for rows, _, tile in _tiles(change):
        total[rows] += np.einsum("kd,kd->k", tile, tile)
    return total


def _floats_in_rows(change: NDArray[np.generic]) -> bool:
    """Whether compiled code can read it: a grid's are float64."""
    between, within = change.strides
    return change.dtype == np.float32 and within == 4 and between >= 0 and between % 4 == 0


def _where(change: Matrix) -> tuple[ctypes.c_void_p, *tuple[ctypes.c_int64, ...]]:
    """The first number, how many rows, how many numbers from one to the next, and how many in each."""
    numbers = (len(change), change.strides[0] // 4, change.shape[1])
    return _pointer(change), *(ctypes.c_int64(number) for number in numbers)


def _pointer(array: NDArray[np.generic]) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def _tiles(change: Matrix) -> Iterator[tuple[slice, slice, Floats]]:
    """Rows, columns and what is there in float64, until the next is asked for.

    What is made of a tile is made by einsum and not by a matrix product, whose last bits and time depend on
    how many threads the library for it takes, and on who else keeps the cores busy.
    """
    (k, d), (tall, wide) = change.shape, TILE
    kept = np.empty((min(k, tall), min(d, wide)))
    for top in range(0, k, tall):
        for left in range(0, d, wide):
            rows, columns = slice(top, min(top + tall, k)), slice(left, min(left + wide, d))
            tile = kept[: rows.stop - top, : columns.stop - left]
            tile[...] = change[rows, columns]
            yield rows, columns, tile
