"""Freed memory stays with the process: to get it back page by page costs up to a third of a step."""

import ctypes

TRIM_THRESHOLD, MMAP_THRESHOLD, ARENA_MAX = -1, -3, -8  # names of options in glibc's malloc.h
KEPT = 2**30


def keep_freed_memory() -> None:
    """For the whole process, where the C library is glibc; elsewhere nothing happens."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(ctypes.c_int(TRIM_THRESHOLD), ctypes.c_int(KEPT))
        mallopt(ctypes.c_int(MMAP_THRESHOLD), ctypes.c_int(KEPT))
        mallopt(ctypes.c_int(ARENA_MAX), ctypes.c_int(1))  # one heap for all threads
