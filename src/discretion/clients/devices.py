"""Where clients are trained: which device, and how many cores there are."""

import os

import torch

from discretion.errors import InputError


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def find(name: str, compiled: bool) -> torch.device:
    """The device of this name; "auto" is the first GPU, but the CPU for models that are `compiled`."""
    if name == "auto":
        return torch.device("cuda:0" if torch.cuda.is_available() and not compiled else "cpu")
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    known = ["auto", "cpu"] + (["cuda"] if found else []) + [f"cuda:{i}" for i in range(found)]
    if name not in known:
        raise InputError(f"there is no device {name!r} here; there are {', '.join(known)}")
    return torch.device("cuda:0" if name == "cuda" else name)
