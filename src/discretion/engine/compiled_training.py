"""Local training in compiled code."""

import ctypes
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from discretion.engine.job import (
    Ints,
    Job,
    Records,
    Vector,
    job_of,
    label_misfits,
    library,
    misfits,
    require,
    within,
)
from discretion.engine.sequence import Sequence
from discretion.engine.stack import Stack


@dataclass(frozen=True)
class Batches:
    """Which records each client takes in each step."""

    records: Ints  # (k, steps, batch)
    real: npt.NDArray[np.bool_]  # (k, steps, batch) the others are padding
    rates: Vector  # (steps,)
    momentum: float = 0.0
    weight_decay: float = 0.0


class _Text(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("tokens", "width", "window", "classes", "depth")),
        *((name, ctypes.c_int64) for name in ("embedding", "output", "output_bias")),
        *((name, ctypes.c_void_p) for name in ("layers", "bytes", "ids")),
    ]


def train(stack: Stack | Sequence, records: Records, batches: Batches, model: Vector, threads: int) -> Vector:
    """(k, d) how far local training moves the model, for each client.

    Guarantees:
        A client's row depends, to the last bit, on the model and on its own batches only: neither on the
        number of threads nor on who else is trained with it.
        A step in which a client has no real record moves nothing.
    """
    code, records = library(), records.laid_out()
    chosen = np.ascontiguousarray(batches.records, np.int64)
    real = np.ascontiguousarray(batches.real, np.bool_)
    rates = np.ascontiguousarray(batches.rates, np.float32)
    start = np.ascontiguousarray(model, np.float32)
    wrong = _text_misfits(stack, records) if isinstance(stack, Sequence) else misfits(stack, records)
    require(
        wrong
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
        rows = stack.rows()
        text = _text(stack, rows, records.inputs)
        failed = code.train_text(ctypes.byref(job), ctypes.byref(text))
    else:
        failed = code.train(ctypes.byref(job))
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


def _text_misfits(sequence: Sequence, records: Records) -> dict[str, bool]:
    inputs = records.inputs
    whole = inputs.dtype in (np.uint8, np.int64)
    return {
        f"windows of {sequence.window} tokens": inputs.shape[1:] != (sequence.window,),
        "tokens as uint8 or int64": not whole,
        f"tokens from 0 to {sequence.tokens - 1}": whole and not within(inputs, sequence.tokens),
        "nothing to look up": records.lookup is not None,
    } | label_misfits(records, sequence.classes)
