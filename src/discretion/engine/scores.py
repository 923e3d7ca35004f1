"""What a model says of records, in compiled code."""

import ctypes
from dataclasses import replace

import numpy as np

from discretion.engine.job import Records, Vector, job_of, library, misfits, require
from discretion.engine.stack import Stack

BATCH = 20  # what it takes stays in the cache


def scores(stack: Stack, records: Records, model: Vector, threads: int) -> Vector:
    """(n, classes) the logits of all records.

    Guarantees:
        A record's row depends, to the last bit, on the model and the record only.
    """
    labels = np.zeros(len(records.inputs), np.int64)  # nobody asks, but they are read
    records = replace(records, labels=labels).laid_out()
    start = np.ascontiguousarray(model, np.float32)
    require(misfits(stack, records) | {f"a model of {stack.size} parameters": start.shape != (stack.size,)})
    found = np.empty((len(labels), stack.classes), np.float32)
    job = job_of(stack, records)
    job.batch, job.threads = BATCH, max(1, threads)
    job.model, job.updates = start.ctypes.data, found.ctypes.data
    if library().score(ctypes.byref(job), ctypes.c_int64(len(labels))) != 0:
        raise MemoryError(f"no memory for batches of {BATCH} records in {threads} threads")
    return found
