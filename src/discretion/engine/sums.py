"""The sum of the clipped gradients of a batch's records in compiled code, for models that it knows."""

import ctypes
import weakref

import numpy as np

from discretion.clip import layers_of, owners
from discretion.engine.compiled import Ints, Records, Vector, _Job, _library
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
    ]


def can_sum(stack: Stack) -> bool:
    """Whether compiled code adds up the gradients of single records: not behind dense spatial layers."""
    return not any(layer.groups or layer.average for layer in stack.layers)


class Sums:
    """Of one model's gradients, over records that are looked up by their numbers. Each thread has its own.

    `lengths` are of the model's tensors of parameters; `together` is how many records are taken at a time, at
    most: fewer where they are large.
    """

    def __init__(
        self, stack: Stack, records: Records, lengths: tuple[int, ...], together: int = MOST_RECORDS
    ) -> None:
        library = _library()
        if library is None:
            raise RuntimeError("the compiled code is not there: ask available() first")
        inputs, labels = np.ascontiguousarray(records.inputs), np.ascontiguousarray(records.labels, np.int64)
        lookup = None if records.lookup is None else np.ascontiguousarray(records.lookup, np.float32)
        kind, rows = np.float32 if lookup is None else np.uint8, stack.rows()
        wrong = {
            "layers without group normalisation or means": not can_sum(stack),
            f"inputs of {stack.shape} and {kind.__name__}": inputs.dtype != kind
            or int(np.prod(inputs.shape[1:])) != int(np.prod(stack.shape)),
            f"one label below {stack.classes} for each record": len(labels) != len(inputs)
            or bool(len(labels) and not 0 <= labels.min() <= labels.max() < stack.classes),
            "256 numbers to look up": lookup is not None and lookup.shape != (256,),
            f"tensors of {stack.size} parameters": sum(lengths) != stack.size,
        }
        if any(wrong.values()):
            raise ValueError("expected " + ", ".join(what for what, is_wrong in wrong.items() if is_wrong))
        self._library, self._size, self._lengths, self._count = library, stack.size, lengths, len(inputs)
        self._kept = (inputs, labels, lookup)  # compiled code reads them in every call
        self._owners: dict[tuple[int, ...], Ints] = {}
        job = _Job(
            layers=rows.ctypes.data,
            depth=len(rows),
            shape=stack.shape,
            bytes=None if lookup is None else inputs.ctypes.data,
            lookup=None if lookup is None else lookup.ctypes.data,
            floats=inputs.ctypes.data if lookup is None else None,
            labels=labels.ctypes.data,
            batch=max(1, min(together, len(inputs))),
            size=stack.size,
        )
        library.open_sums.restype = ctypes.c_void_p
        session = library.open_sums(ctypes.byref(job))
        if session is None:
            raise MemoryError(f"no memory for the gradients of {stack.size} parameters")
        self._session = ctypes.c_void_p(session)
        weakref.finalize(self, library.close_sums, self._session)

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
        owner = self._owners.get(layers)
        if owner is None:
            owner = self._owners[layers] = self._find_owners(layers)
        chosen = np.ascontiguousarray(chosen, np.int64)
        model = np.ascontiguousarray(model, np.float32)
        if model.shape != (self._size,):
            raise ValueError(f"expected a model of {self._size} parameters, found {model.shape}")
        total = np.zeros(self._size)
        clipping = _Clipping(
            model.ctypes.data,
            chosen.ctypes.data,
            chosen.size,
            clip,
            owner.ctypes.data,
            len(layers) or 1,
            total.ctypes.data,
        )
        done = self._library.add_clipped(self._session, ctypes.byref(clipping), ctypes.c_int64(self._count))
        if done == 1:
            raise MemoryError(f"no memory for {len(layers)} layers")
        if done == 2:
            raise ValueError(f"expected numbers of records below {self._count}")
        return total

    def _find_owners(self, layers: tuple[int, ...]) -> Ints:
        owner = owners(self._lengths, layers_of(layers, self._size))
        if owner is None:
            raise PlanError(f"layers {layers} must end where tensors of parameters do: {self._lengths}")
        return np.array(owner, np.int64)
