"""What a model says of records, in compiled code."""

import ctypes

import numpy as np

from discretion.engine.compiled import Records, Vector, _Job, _library
from discretion.engine.stack import Stack

BATCH = 20  # what it takes stays in the cache


def scores(stack: Stack, records: Records, model: Vector, threads: int) -> Vector:
    """(n, classes) the logits of all records.

    Guarantees:
        A record's row depends, to the last bit, on the model and the record only.
    """
    library = _library()
    if library is None:
        raise RuntimeError("the compiled code is not there: ask available() first")
    kind = np.float32 if records.lookup is None else np.uint8
    inputs, start = np.ascontiguousarray(records.inputs), np.ascontiguousarray(model, np.float32)
    labels = np.zeros(len(inputs), np.int64)  # nobody asks, but they are read
    lookup = None if records.lookup is None else np.ascontiguousarray(records.lookup, np.float32)
    fits = inputs.dtype == kind and int(np.prod(inputs.shape[1:])) == int(np.prod(stack.shape))
    if not fits or start.shape != (stack.size,) or (lookup is not None and lookup.shape != (256,)):
        raise ValueError(
            f"expected inputs of {stack.shape} and {kind.__name__}, a model of {stack.size} parameters, and "
            "256 numbers to look up where inputs are bytes"
        )
    rows = stack.rows()
    found = np.empty((len(inputs), stack.classes), np.float32)
    job = _Job(
        layers=rows.ctypes.data,
        depth=len(rows),
        shape=stack.shape,
        bytes=None if lookup is None else inputs.ctypes.data,
        lookup=None if lookup is None else lookup.ctypes.data,
        floats=inputs.ctypes.data if lookup is None else None,
        labels=labels.ctypes.data,
        batch=BATCH,
        model=start.ctypes.data,
        size=stack.size,
        updates=found.ctypes.data,
        threads=max(1, threads),
    )
    if library.score(ctypes.byref(job), ctypes.c_int64(len(inputs))) != 0:
        raise MemoryError(f"no memory for batches of {BATCH} records in {threads} threads")
    return found
