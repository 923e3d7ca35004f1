"""Where the time of a run goes, by the parts of its rounds."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

Item = TypeVar("Item")


class Profile:
    """Seconds by part. A part that is inside another one is not counted as the other's."""

    def __init__(self) -> None:
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

    def each(self, part: str, items: Iterator[Item]) -> Iterator[Item]:
        """The items; what it takes to make them is this part's."""
        while True:
            with self(part):
                try:
                    item = next(items)
                except StopIteration:
                    return
            yield item
