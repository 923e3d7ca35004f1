"""Compiled local training (SGD) of many clients at once, and inference; arrays are checked first."""

import ctypes
import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from discretion._native import extension
from discretion.arrays import Ints
from discretion.engine.layer_stack import Stack
from discretion.engine.sequence import Sequence
from discretion.training.server_update import Vector

SCORED = 20  # records at a time, so that activations stay in the processor's cache


@dataclass(frozen=True)
class RecordArrays:
    """All clients' records; images stay bytes, whose float values are in `lookup`."""

    inputs: npt.NDArray[np.generic]  # (n, ...) uint8 with a lookup, else float32; tokens: uint8 or int64
    labels: Ints  # (n,)
    lookup: Vector | None = None  # (256,)

    def laid_out(self) -> "RecordArrays":
        """Return the records in contiguous arrays, as compiled code reads them; copy only where needed."""
        lookup = None if self.lookup is None else np.ascontiguousarray(self.lookup, np.float32)
        labels = np.ascontiguousarray(self.labels, np.int64)
        return RecordArrays(np.ascontiguousarray(self.inputs), labels, lookup)


class Job(ctypes.Structure):
    """The C struct of the same name; fields that are not given are 0 or null."""

    _fields_ = [
        ("layers", ctypes.c_void_p),
        ("depth", ctypes.c_int64),
        ("shape", ctypes.c_int64 * 3),
        *((name, ctypes.c_void_p) for name in ("bytes", "lookup", "floats", "labels", "records", "real")),
        *((name, ctypes.c_int64) for name in ("clients", "steps", "batch")),
        ("rates", ctypes.c_void_p),
        *((name, ctypes.c_float) for name in ("momentum", "decay")),
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


def job_of(stack: Stack, records: RecordArrays) -> Job:
    """Make a job for a model and records that are laid out; the job keeps their arrays alive."""
    rows, inputs, lookup = stack.rows(), records.inputs.ctypes.data, records.lookup
    job = Job(
        layers=rows.ctypes.data,
        depth=len(rows),
        shape=stack.shape,
        bytes=None if lookup is None else inputs,
        lookup=None if lookup is None else lookup.ctypes.data,
        floats=inputs if lookup is None else None,
        labels=records.labels.ctypes.data,
        size=stack.size,
    )
    job.kept = (rows, records)
    return job


def misfits(stack: Stack | Sequence, records: RecordArrays) -> dict[str, bool]:
    """Return each expectation of laid-out records, with whether it is violated."""
    inputs, lookup = records.inputs, records.lookup
    if isinstance(stack, Sequence):
        whole = inputs.dtype in (np.uint8, np.int64)
        wrong = {
            f"windows of {stack.window} tokens": inputs.shape[1:] != (stack.window,),
            "tokens as uint8 or int64": not whole,
            f"tokens from 0 to {stack.tokens - 1}": whole and not within(inputs, stack.tokens),
            "nothing to look up": lookup is not None,
        }
    else:
        kind, numbers = np.float32 if lookup is None else np.uint8, math.prod(inputs.shape[1:])
        fitting = inputs.dtype == kind and numbers == math.prod(stack.shape)
        wrong = {
            f"inputs of {stack.shape} and {kind.__name__}": not fitting,
            "256 numbers to look up": lookup is not None and lookup.shape != (256,),
        }
    return wrong | {
        "one label for each record": len(records.labels) != len(inputs),
        f"labels from 0 to {stack.classes - 1}": not within(records.labels, stack.classes),
    }


def require(wrong: dict[str, bool]) -> None:
    """Raise a ValueError on any violated expectation: compiled code would read outside of its arrays."""
    if any(wrong.values()):
        raise ValueError("expected " + ", ".join(what for what, is_wrong in wrong.items() if is_wrong))


def within(numbers: npt.NDArray[np.generic], most: int) -> bool:
    """Return whether all numbers are at least 0 and below `most`."""
    return not numbers.size or (int(numbers.min()) >= 0 and int(numbers.max()) < most)


def available() -> bool:
    """Return whether the compiled library is installed and was built for this machine."""
    return extension() is not None


def library() -> ctypes.CDLL:
    if (found := extension()) is None:
        raise RuntimeError("the compiled library is not installed: call available() first")
    return found


@dataclass(frozen=True)
class Batches:
    """The records of each client's local steps, and the settings of SGD."""

    records: Ints  # (k, steps, batch)
    real: npt.NDArray[np.bool_]  # (k, steps, batch) False for padding
    rates: Vector  # (steps,) learning rates
    momentum: float = 0.0
    weight_decay: float = 0.0


def train(
    stack: Stack | Sequence, records: RecordArrays, batches: Batches, model: Vector, threads: int
) -> Vector:
    """Train each client from `model`; return (k, d) updates, the change of the model.

    Guarantees:
        A client's row depends, to the last bit, on the model and on its own batches only: neither on the
        number of threads nor on the other clients trained with it.
        A step in which a client has no real record changes nothing.
    """
    code, records = library(), records.laid_out()
    chosen = np.ascontiguousarray(batches.records, np.int64)
    real = np.ascontiguousarray(batches.real, np.bool_)
    rates = np.ascontiguousarray(batches.rates, np.float32)
    start = np.ascontiguousarray(model, np.float32)
    require(
        misfits(stack, records)
        | {
            "batches (k, steps, batch)": chosen.ndim != 3 or chosen.shape != real.shape,
            "one rate for each step": rates.shape != chosen.shape[1:2],
            f"a model of {stack.size} parameters": start.shape != (stack.size,),
            "numbers of records that exist": not within(chosen, len(records.inputs)),
        }
    )
    updates = np.empty((len(chosen), stack.size), np.float32)
    job = Job(labels=records.labels.ctypes.data) if isinstance(stack, Sequence) else job_of(stack, records)
    job.records, job.real, job.rates = chosen.ctypes.data, real.ctypes.data, rates.ctypes.data
    job.clients, job.steps, job.batch = chosen.shape
    job.momentum, job.decay = batches.momentum, batches.weight_decay
    job.model, job.size = start.ctypes.data, stack.size
    job.updates, job.threads = updates.ctypes.data, max(1, threads)
    if isinstance(stack, Sequence):
        rows, kind, place = stack.rows(), records.inputs.dtype, records.inputs.ctypes.data
        text = _Text(
            *(stack.tokens, stack.width, stack.window, stack.classes, len(rows)),
            *(stack.embedding, stack.output, stack.output_bias, rows.ctypes.data),
            *(place if kind == np.uint8 else None, place if kind == np.int64 else None),
        )
        failed = code.train_text(ctypes.byref(job), ctypes.byref(text))
    else:
        failed = code.train(ctypes.byref(job))
    if failed:
        raise MemoryError(f"out of memory for batches of {chosen.shape[2]} records in {threads} threads")
    return updates


def scores(stack: Stack, records: RecordArrays, model: Vector, threads: int) -> Vector:
    """Return (n, classes) the logits of all records.

    Guarantees:
        A record's row depends, to the last bit, on the model and the record only.
    """
    labels = np.zeros(len(records.inputs), np.int64)  # compiled code reads labels, and ignores them
    records = replace(records, labels=labels).laid_out()
    start = np.ascontiguousarray(model, np.float32)
    require(misfits(stack, records) | {f"a model of {stack.size} parameters": start.shape != (stack.size,)})
    found = np.empty((len(labels), stack.classes), np.float32)
    job = job_of(stack, records)
    job.batch, job.threads = SCORED, max(1, threads)
    job.model, job.updates = start.ctypes.data, found.ctypes.data
    if library().score(ctypes.byref(job), ctypes.c_int64(len(labels))) != 0:
        raise MemoryError(f"out of memory for batches of {SCORED} records in {threads} threads")
    return found
