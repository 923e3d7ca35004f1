"""Call the compiled code, if it was built when this package was installed."""

import ctypes
import functools
import importlib.util
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from discretion.engine.sequence import Sequence
from discretion.engine.stack import Stack

Vector = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Records:
    """All records that clients hold; images stay bytes, `lookup` says what each byte stands for."""

    inputs: npt.NDArray[np.generic]  # (n, ...) uint8 with a lookup, else float32; tokens: uint8 or int64
    labels: Ints  # (n,)
    lookup: Vector | None = None  # (256,)


@dataclass(frozen=True)
class Batches:
    """Which records each client takes in each step."""

    records: Ints  # (k, steps, batch)
    real: npt.NDArray[np.bool_]  # (k, steps, batch) the others are padding
    rates: Vector  # (steps,)
    momentum: float = 0.0
    weight_decay: float = 0.0


class _Job(ctypes.Structure):
    _fields_ = [
        ("layers", ctypes.c_void_p),
        ("depth", ctypes.c_int64),
        ("shape", ctypes.c_int64 * 3),
        ("bytes", ctypes.c_void_p),
        ("lookup", ctypes.c_void_p),
        ("floats", ctypes.c_void_p),
        ("labels", ctypes.c_void_p),
        ("records", ctypes.c_void_p),
        ("real", ctypes.c_void_p),
        ("clients", ctypes.c_int64),
        ("steps", ctypes.c_int64),
        ("batch", ctypes.c_int64),
        ("rates", ctypes.c_void_p),
        ("momentum", ctypes.c_float),
        ("decay", ctypes.c_float),
        ("model", ctypes.c_void_p),
        ("size", ctypes.c_int64),
        ("updates", ctypes.c_void_p),
        ("threads", ctypes.c_int64),
    ]


class _Text(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("tokens", "width", "window", "classes", "depth")),
        *((name, ctypes.c_int64) for name in ("embedding", "output", "output_bias")),
        *((name, ctypes.c_void_p) for name in ("layers", "bytes", "ids")),
    ]


@functools.cache
def _library() -> ctypes.CDLL | None:
    found = importlib.util.find_spec("discretion.engine._clients")
    if found is None or found.origin is None:
        return None
    try:
        library = ctypes.CDLL(found.origin)
    except OSError:
        return None
    return library if library.usable() else None


def available() -> bool:
    """Whether the compiled code is there and made for this machine."""
    return _library() is not None


def train(stack: Stack | Sequence, records: Records, batches: Batches, model: Vector, threads: int) -> Vector:
    """(k, d) how far local training moves the model, for each client.

    Guarantees:
        A client's row depends, to the last bit, on the model and on its own batches only: neither on the
        number of threads nor on who else is trained with it.
        A step in which a client has no real record moves nothing.
    """
    library = _library()
    if library is None:
        raise RuntimeError("the compiled code is not there: ask available() first")
    rows = stack.rows()
    inputs, labels = np.ascontiguousarray(records.inputs), np.ascontiguousarray(records.labels, np.int64)
    chosen = np.ascontiguousarray(batches.records, np.int64)
    real = np.ascontiguousarray(batches.real, np.bool_)
    rates = np.ascontiguousarray(batches.rates, np.float32)
    start = np.ascontiguousarray(model, np.float32)
    lookup = None if records.lookup is None else np.ascontiguousarray(records.lookup, np.float32)
    _require_fit(stack, inputs, labels, lookup, chosen, real, rates, start)
    updates = np.empty((len(chosen), stack.size), np.float32)
    text = isinstance(stack, Sequence)
    job = _Job(
        None if text else rows.ctypes.data,
        0 if text else len(rows),
        (0, 0, 0) if isinstance(stack, Sequence) else stack.shape,
        None if lookup is None else inputs.ctypes.data,
        None if lookup is None else lookup.ctypes.data,
        inputs.ctypes.data if lookup is None and not text else None,
        labels.ctypes.data,
        chosen.ctypes.data,
        real.ctypes.data,
        *chosen.shape,
        rates.ctypes.data,
        batches.momentum,
        batches.weight_decay,
        start.ctypes.data,
        stack.size,
        updates.ctypes.data,
        max(1, threads),
    )
    if isinstance(stack, Sequence):
        read = _text(stack, rows, inputs)
        failed = library.train_text(ctypes.byref(job), ctypes.byref(read))
    else:
        failed = library.train(ctypes.byref(job))
    if failed:
        raise MemoryError(f"no memory for batches of {chosen.shape[2]} records in {threads} threads")
    return updates


def _text(sequence: Sequence, rows: npt.NDArray[np.generic], inputs: npt.NDArray[np.generic]) -> _Text:
    return _Text(
        *(sequence.tokens, sequence.width, sequence.window, sequence.classes, len(rows)),
        *(sequence.embedding, sequence.output, sequence.output_bias),
        rows.ctypes.data,
        inputs.ctypes.data if inputs.dtype == np.uint8 else None,
        inputs.ctypes.data if inputs.dtype == np.int64 else None,
    )


def _require_fit(
    stack: Stack | Sequence,
    inputs: npt.NDArray[np.generic],
    labels: Ints,
    lookup: Vector | None,
    chosen: Ints,
    real: npt.NDArray[np.bool_],
    rates: Vector,
    start: Vector,
) -> None:
    """The compiled code reads what it is told to read: a wrong shape or number must not get there."""
    if isinstance(stack, Sequence):
        wrong = _wrong_text(stack, inputs, labels) | {"nothing to look up": lookup is not None}
    else:
        kind = np.float32 if lookup is None else np.uint8
        wrong = {
            f"inputs of {stack.shape} and {kind.__name__}": inputs.dtype != kind
            or int(np.prod(inputs.shape[1:])) != int(np.prod(stack.shape)),
        }
    wrong |= {
        "one label for each record": len(labels) != len(inputs),
        "256 numbers to look up": lookup is not None and lookup.shape != (256,),
        "batches (k, steps, batch)": chosen.ndim != 3 or chosen.shape != real.shape,
        "one rate for each step": rates.shape != chosen.shape[1:2],
        f"a model of {stack.size} parameters": start.shape != (stack.size,),
        "numbers of records that exist": bool(chosen.size)
        and (int(chosen.min()) < 0 or int(chosen.max()) >= len(inputs)),
    }
    if any(wrong.values()):
        raise ValueError("expected " + ", ".join(what for what, is_wrong in wrong.items() if is_wrong))


def _wrong_text(stack: Sequence, inputs: npt.NDArray[np.generic], labels: Ints) -> dict[str, bool]:
    whole = inputs.dtype in (np.uint8, np.int64)
    return {
        f"windows of {stack.window} tokens": inputs.shape[1:] != (stack.window,),
        "tokens as uint8 or int64": not whole,
        f"tokens from 0 to {stack.tokens - 1}": whole and not _within(inputs, stack.tokens),
        f"labels from 0 to {stack.classes - 1}": not _within(labels, stack.classes),
    }


def _within(numbers: npt.NDArray[np.generic], most: int) -> bool:
    return not numbers.size or (int(numbers.min()) >= 0 and int(numbers.max()) < most)
