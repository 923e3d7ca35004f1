"""Clipping of updates and gradients to the norm that is charged for, and their sum."""

import ctypes
import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from discretion._native import extension
from discretion.arrays import Floats
from discretion.errors import PlanError

Matrix = NDArray[np.float32]  # (k, d)

# Share of its bound by which a clipped update or gradient stays below, as room for rounding: of its factor
# and of its numbers times the factor (2^-24 each where that is float32), of numbers that underflow (a quarter
# of this), and of the sum. A float64 sum of n gradients, in runs of m that are added up, is off by less than
# (m + n/m) 2^-53 times the sum of their lengths, n clips at most, and so is the sum of all but one: with runs
# of 256, up to 500,000 gradients of one clip are within the 6e-7 that are left. If sums of updates are not,
# that is charged for (`plan.float_sums`).
ROUNDING = 1e-6
TILE = (32, 2**12)  # updates and columns converted to float64 at once: they stay in the processor's cache


def layers_of(lengths: tuple[int, ...], size: int) -> list[slice]:
    """Return the slices of parameters that are clipped together: one for all, or one for each layer."""
    if lengths and sum(lengths) != size:
        raise PlanError(
            f"the plan's layers have {sum(lengths)} parameters, the model has {size}: plan for this model"
        )
    ends = np.cumsum(lengths or (size,)).tolist()
    return [slice(start, end) for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def owners(lengths: Sequence[int], layers: Sequence[slice]) -> list[int] | None:
    """Return the number of the layer that holds each tensor, by its length; None if a layer splits one."""
    ends = np.cumsum(lengths)
    owner: list[int] = np.searchsorted([part.stop for part in layers], ends).tolist()
    return owner if {part.stop for part in layers} <= set(ends.tolist()) else None


def factors(norm: Floats, clip: Floats) -> Floats:
    """Return (k, L) clipping factors for layers of these norms; all 0 for updates with a non-finite norm.

    Guarantees:
        Multiplied by its factor, each layer's norm is at most clip / sqrt(L), and so the whole update's norm
        at most the clip, with `ROUNDING` to spare.
    """
    bound = (clip * (1 - ROUNDING) / math.sqrt(norm.shape[1]))[:, None]
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        factor = np.where(norm > bound, bound / norm, 1.0)
    return np.where(np.isfinite(norm).all(axis=1, keepdims=True), factor, 0.0)


def finite_and_factor(change: Matrix, clip: Floats, layers: Sequence[slice]) -> tuple[Matrix, Floats]:
    """Return (k, d) updates, with non-finite ones set to zero, and (k, L) clipping factors of their layers.

    Guarantees:
        Multiplied by its factor, each layer's L2 norm is at most clip / sqrt(L), and so the whole update's
        norm at most the clip.
        An update with any number that is not finite counts as zero, in every layer.
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
    """Add to (d,) `total` each update times its (k,) share, with each layer multiplied by its factor.

    Guarantees:
        Products and sums are in float64, so that long or many updates do not round a short one up.
    """
    code = extension()
    for number, columns in enumerate(layers):
        each, part, layer = share * factor[:, number], total[columns], change[:, columns]
        if code is not None and _floats_in_rows(layer) and part.flags.c_contiguous:
            code.add_rows(*_where(layer), _pointer(each), _pointer(part))
            continue
        for rows, block, tile in _tiles(layer):
            part[block] += np.einsum("k,kd->d", each[rows], tile)


def _squares(change: Matrix) -> Floats:
    """Return (k,) squared norms, in float64."""
    total, code = np.zeros(len(change)), extension()
    if code is not None and _floats_in_rows(change):
        code.row_squares(*_where(change), _pointer(total))
        return total
    for rows, _, tile in _tiles(change):
        total[rows] += np.einsum("kd,kd->k", tile, tile)
    return total


def _floats_in_rows(change: NDArray[np.generic]) -> bool:
    """Return whether compiled code can read the updates; updates on a grid are float64, which it cannot."""
    between, within = change.strides
    return change.dtype == np.float32 and within == 4 and between >= 0 and between % 4 == 0


def _where(change: Matrix) -> tuple[ctypes.c_void_p, *tuple[ctypes.c_int64, ...]]:
    """Return a pointer to the first number, the number of rows, the row stride, and the row length."""
    numbers = (len(change), change.strides[0] // 4, change.shape[1])
    return _pointer(change), *(ctypes.c_int64(number) for number in numbers)


def _pointer(array: NDArray[np.generic]) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def _tiles(change: Matrix) -> Iterator[tuple[slice, slice, Floats]]:
    """Yield rows, columns and their float64 content, which is valid until the next tile is asked for.

    Callers use einsum, not a matrix product, whose last bits and time depend on the number of threads of the
    linear algebra library.
    """
    (k, d), (tall, wide) = change.shape, TILE
    kept = np.empty((min(k, tall), min(d, wide)))
    for top in range(0, k, tall):
        for left in range(0, d, wide):
            rows, columns = slice(top, min(top + tall, k)), slice(left, min(left + wide, d))
            tile = kept[: rows.stop - top, : columns.stop - left]
            tile[...] = change[rows, columns]
            yield rows, columns, tile
