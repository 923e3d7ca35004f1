"""Timing of a run by the parts of its rounds."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

Item = TypeVar("Item")

PARTS = {
    "select": "who takes part",
    "train": "what clients do",
    "clip": "updates clipped and added up",
    "noise": "drawn and added",
    "combine": "the new model",
    "evaluate": "on test records",
    "ledger": "reserved and committed, on disk",
    "write": "history and checkpoint, on disk",
    "admit": "the whole plan, once",
    "other": "progress shown, and what is between parts",
}
OVERHEAD = ("select", "clip", "noise", "combine", "ledger", "write")  # what privacy and crash safety cost


class Profile:
    """Seconds spent in each part. The time of a nested part counts for the inner part only."""

    def __init__(self) -> None:
        self.rounds = 0
        self.seconds: dict[str, float] = {}
        self._parts: list[str] = []
        self._since = 0.0

    def _charge(self) -> None:
        now = time.perf_counter()
        if self._parts:
            part = self._parts[-1]
            self.seconds[part] = self.seconds.get(part, 0.0) + now - self._since
        self._since = now

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        self._charge()
        self._parts.append(part)
        try:
            yield
        finally:
            self._charge()
            self._parts.pop()

    @property
    def overhead(self) -> float:
        """Share of the rounds' time, without evaluation and admission, that privacy and crash safety cost."""
        rounds = sum(took for part, took in self.seconds.items() if part not in ("evaluate", "admit"))
        return sum(self.seconds.get(part, 0.0) for part in OVERHEAD) / rounds if rounds else 0.0

    def to_record(self) -> dict[str, Any]:
        """Return rounds, seconds by part, their total, and the overhead, ready for JSON."""
        seconds = dict.fromkeys(PARTS, 0.0) | self.seconds
        total = sum(seconds.values())
        return {"rounds": self.rounds, "total": total, "seconds": seconds, "overhead": self.overhead}

    def each(self, part: str, items: Iterator[Item]) -> Iterator[Item]:
        """Yield the items, charging the time to produce them to `part`."""
        while True:
            with self(part):
                try:
                    item = next(items)
                except StopIteration:
                    return
            yield item
