"""Compiled sums of clipped per-record gradients, for supported models."""

import ctypes
import weakref

import numpy as np

from discretion.arrays import Floats, Ints
from discretion.engine.compiled_training import RecordArrays, job_of, library, misfits, require
from discretion.engine.layer_stack import Stack
from discretion.errors import PlanError
from discretion.training.clip import layers_of, owners
from discretion.training.server_update import Vector

MOST_RECORDS = 256  # in one pass


class _Clipping(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("model", "records")),
        ("count", ctypes.c_int64),
        ("clip", ctypes.c_double),
        ("owner", ctypes.c_void_p),
        ("layers", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("total", "squares")),
    ]


def can_sum(stack: Stack) -> bool:
    """Return whether compiled code supports this model: no group normalisation and no mean pooling."""
    return not any(layer.groups or layer.average for layer in stack.layers)


class CompiledSums:
    """Clipped sums of one model's gradients over records given by their numbers; each thread needs its own.

    `together` is the most records in one pass; compiled code takes fewer if they are large.
    """

    def __init__(self, stack: Stack, records: RecordArrays, together: int = MOST_RECORDS) -> None:
        code, records = library(), records.laid_out()
        require(misfits(stack, records) | {"layers without group normalisation or means": not can_sum(stack)})
        self._code, self._size, self._lengths = code, stack.size, stack.lengths
        self._count = len(records.inputs)
        self._owners: dict[tuple[int, ...], Ints] = {}
        self._job = job_of(stack, records)  # compiled code reads its records in every call
        self._job.batch = max(1, min(together, MOST_RECORDS, self._count))
        code.open_sums.restype = ctypes.c_void_p
        session = code.open_sums(ctypes.byref(self._job))
        if session is None:
            raise MemoryError(f"out of memory for the gradients of {stack.size} parameters")
        self._session = ctypes.c_void_p(session)
        weakref.finalize(self, code.close_sums, self._session)

    def clipped_sum(self, model: Vector, chosen: Ints, clip: float, layers: tuple[int, ...]) -> Floats:
        """Return (d,) the sum of the clipped gradients of the chosen records' losses.

        Guarantees:
            One record more or less moves the sum by at most the clip (clipping norm), and the part of each of
            L layers by at most clip / sqrt(L): norms are computed in float64, of exactly the numbers that are
            summed, or of the two vectors whose outer product is summed, and sums are in float64
            (`clip.ROUNDING` has the proof). Not covered: a record's gradient may differ in last bits of
            float32 with the number of records beside it.
            A record whose gradient has a number that is not finite, or is so long that float32 cannot scale
            it down, counts as zero.
        """
        return self.sum_and_squares(model, chosen, clip, layers)[0]

    def sum_and_squares(
        self, model: Vector, chosen: Ints, clip: float, layers: tuple[int, ...]
    ) -> tuple[Floats, float]:
        """Return `clipped_sum`, and the sum of the squared norms of its terms: at most clip² per record."""
        if layers not in self._owners:
            found = owners(self._lengths, layers_of(layers, self._size))
            if found is None:
                raise PlanError(f"layers {layers} must end where parameter tensors end: {self._lengths}")
            self._owners[layers] = np.array(found, np.int64)
        owner = self._owners[layers]
        chosen = np.ascontiguousarray(chosen, np.int64)
        model = np.ascontiguousarray(model, np.float32)
        if model.shape != (self._size,):
            raise ValueError(f"expected a model of {self._size} parameters, found {model.shape}")
        total, squares = np.zeros(self._size), np.zeros(1)
        clipping = _Clipping(
            *(model.ctypes.data, chosen.ctypes.data, chosen.size, clip),
            *(owner.ctypes.data, len(layers) or 1, total.ctypes.data, squares.ctypes.data),
        )
        done = self._code.clip_and_add(self._session, ctypes.byref(clipping), ctypes.c_int64(self._count))
        if done == 1:
            raise MemoryError(f"out of memory for {len(layers)} layers")
        if done == 2:
            raise ValueError(f"expected numbers of records below {self._count}")
        return total, float(squares[0])
