"""The sum of the clipped gradients of a batch's records in compiled code, for models that it knows."""

import ctypes
import weakref

import numpy as np

from discretion.clip import layers_of, owners
from discretion.engine.job import Ints, Records, Vector, job_of, library, misfits, require
from discretion.engine.stack import Stack
from discretion.errors import PlanError
from discretion.population import Floats

MOST_RECORDS = 256  # at a time


class _Clipping(ctypes.Structure):
    _fields_ = [
        ("model", ctypes.c_void_p),
        ("records", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("clip", ctypes.c_double),
        ("owner", ctypes.c_void_p),
        ("layers", ctypes.c_int64),
        ("total", ctypes.c_void_p),
        ("squares", ctypes.c_void_p),
    ]


def can_sum(stack: Stack) -> bool:
    """Whether compiled code adds up the gradients of single records: not behind dense spatial layers."""
    return not any(layer.groups or layer.average for layer in stack.layers)


class Sums:
    """Of one model's gradients, over records that are looked up by their numbers. Each thread has its own.

    `together` is how many records are taken at a time, at most: fewer where they are large.
    """

    def __init__(self, stack: Stack, records: Records, together: int = MOST_RECORDS) -> None:
        code, records = library(), records.laid_out()
        dense = {"layers without group normalisation or means": not can_sum(stack)}
        require(misfits(stack, records) | dense)
        self._code, self._size, self._lengths = code, stack.size, stack.lengths
        self._count = len(records.inputs)
        self._owners: dict[tuple[int, ...], Ints] = {}
        self._job = job_of(stack, records)  # whose records compiled code reads in every call
        self._job.batch = max(1, min(together, self._count))
        code.open_sums.restype = ctypes.c_void_p
        session = code.open_sums(ctypes.byref(self._job))
        if session is None:
            raise MemoryError(f"no memory for the gradients of {stack.size} parameters")
        self._session = ctypes.c_void_p(session)
        weakref.finalize(self, code.close_sums, self._session)

    def clipped_sum(self, model: Vector, chosen: Ints, clip: float, layers: tuple[int, ...]) -> Floats:
        """(d,) the sum over the records of these numbers of the gradient of each one's own loss, clipped.

        Guarantees:
            One record more or less moves the sum by at most the clip, and the part of each of L layers by at
            most clip / sqrt(L): the norms are those of the very numbers that are summed, or of the two
            vectors whose product is, and are taken in float64. What the sum itself rounds, float32 among
            records that are taken together and float64 beyond, is not of the record.
            A record whose gradient has a number that is not finite, or is so long that float32 cannot
            shorten it, counts as zero.
        """
        return self.sum_and_squares(model, chosen, clip, layers)[0]

    def sum_and_squares(
        self, model: Vector, chosen: Ints, clip: float, layers: tuple[int, ...]
    ) -> tuple[Floats, float]:
        """The same, and the sum of the squared norms of what is added up: at most clip² for each record."""
        owner = self._owners.get(layers)
        if owner is None:
            owner = self._owners[layers] = self._find_owners(layers)
        chosen = np.ascontiguousarray(chosen, np.int64)
        model = np.ascontiguousarray(model, np.float32)
        if model.shape != (self._size,):
            raise ValueError(f"expected a model of {self._size} parameters, found {model.shape}")
        total, squares = np.zeros(self._size), np.zeros(1)
        clipping = _Clipping(
            model.ctypes.data,
            chosen.ctypes.data,
            chosen.size,
            clip,
            owner.ctypes.data,
            len(layers) or 1,
            total.ctypes.data,
            squares.ctypes.data,
        )
        done = self._code.clip_and_add(self._session, ctypes.byref(clipping), ctypes.c_int64(self._count))
        if done == 1:
            raise MemoryError(f"no memory for {len(layers)} layers")
        if done == 2:
            raise ValueError(f"expected numbers of records below {self._count}")
        return total, float(squares[0])

    def _find_owners(self, layers: tuple[int, ...]) -> Ints:
        owner = owners(self._lengths, layers_of(layers, self._size))
        if owner is None:
            raise PlanError(f"layers {layers} must end where tensors of parameters do: {self._lengths}")
        return np.array(owner, np.int64)
