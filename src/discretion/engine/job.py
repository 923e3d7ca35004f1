"""What compiled code is told of a model and its records, and the library that it is in."""

import ctypes
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from discretion.engine.stack import Stack
from discretion.extension import extension

Vector = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Records:
    """All records that clients hold; images stay bytes, `lookup` says what each byte stands for."""

    inputs: npt.NDArray[np.generic]  # (n, ...) uint8 with a lookup, else float32; tokens: uint8 or int64
    labels: Ints  # (n,)
    lookup: Vector | None = None  # (256,)

    def laid_out(self) -> "Records":
        """As compiled code reads them: the same arrays, unless they lie in memory in another way."""
        lookup = None if self.lookup is None else np.ascontiguousarray(self.lookup, np.float32)
        labels = np.ascontiguousarray(self.labels, np.int64)
        return Records(np.ascontiguousarray(self.inputs), labels, lookup)


class Job(ctypes.Structure):
    """Its fields are those of the compiled code; what is not given is 0 or nothing."""

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


def job_of(stack: Stack, records: Records) -> Job:
    """For a model and records that are laid out; both arrays have to stay where they are."""
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
    job.kept = (rows, records)  # as long as the job is
    return job


def misfits(stack: Stack, records: Records) -> dict[str, bool]:
    """What is expected of records that are laid out, and whether it is wrong."""
    inputs, lookup = records.inputs, records.lookup
    kind = np.float32 if lookup is None else np.uint8
    return {
        f"inputs of {stack.shape} and {kind.__name__}": inputs.dtype != kind
        or int(np.prod(inputs.shape[1:])) != int(np.prod(stack.shape)),
        "256 numbers to look up": lookup is not None and lookup.shape != (256,),
    } | label_misfits(records, stack.classes)


def label_misfits(records: Records, classes: int) -> dict[str, bool]:
    return {
        "one label for each record": len(records.labels) != len(records.inputs),
        f"labels from 0 to {classes - 1}": not within(records.labels, classes),
    }


def require(wrong: dict[str, bool]) -> None:
    """The compiled code reads what it is told to read: a wrong shape or number must not get there."""
    if any(wrong.values()):
        raise ValueError("expected " + ", ".join(what for what, is_wrong in wrong.items() if is_wrong))


def within(numbers: npt.NDArray[np.generic], most: int) -> bool:
    """Whether all are from 0 to below `most`."""
    return not numbers.size or (int(numbers.min()) >= 0 and int(numbers.max()) < most)


def available() -> bool:
    """Whether the compiled code is there and made for this machine."""
    return extension() is not None


def library() -> ctypes.CDLL:
    """The compiled code."""
    found = extension()
    if found is None:
        raise RuntimeError("the compiled code is not there: ask available() first")
    return found
