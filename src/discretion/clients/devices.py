"""Devices, threads and memory with which clients are trained."""

import ctypes
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch

from discretion.errors import InputError

# of glibc's malloc.h: bytes of M_TRIM_THRESHOLD and M_MMAP_THRESHOLD; M_ARENA_MAX: one heap for all threads
MALLOC_OPTIONS = {-1: 2**30, -3: 2**30, -8: 1}


def cores() -> int:
    """Return the number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def find(name: str, compiled: bool) -> torch.device:
    """Return the device of this name; "auto" is the first GPU, or the CPU for `compiled` models."""
    if name == "auto":
        return torch.device("cuda:0" if torch.cuda.is_available() and not compiled else "cpu")
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    known = ["auto", "cpu"] + (["cuda"] if found else []) + [f"cuda:{i}" for i in range(found)]
    if name not in known:
        raise InputError(f"no device {name!r} on this machine: choose one of {', '.join(known)}")
    return torch.device("cuda:0" if name == "cuda" else name)


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on one thread: how torch splits sums among threads changes their last bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def thread_pool() -> Iterator[ThreadPoolExecutor]:
    """Yield a pool of as many threads as torch uses, in each of which torch runs on one thread."""
    threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)  # the pool's threads have set it for all


def keep_freed_memory() -> None:
    """Let freed memory stay with the process, which saves up to a third of a step; glibc only."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in MALLOC_OPTIONS.items():
            mallopt(ctypes.c_int(option), ctypes.c_int(value))
