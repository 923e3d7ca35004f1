"""Metrics of one guard: orders, refusals by reason, time to answer, and what is left of the budget."""

import math
import os
import threading
import time
from collections import Counter
from pathlib import Path

from discretion.clients.prometheus import Metric, Sample, by_label, gauge, histogram
from discretion.errors import LedgerError
from discretion.guard.refusal_reasons import REASONS
from discretion.ledger.lifetime import Lifetime, read_lifetime

ORDERS = ("join", "check", "train", "read", "survivors", "finish", "declare", "unreadable")
BOUNDS = (0.01, 0.1, 1.0, 10.0, 60.0, 600.0, math.inf)  # seconds


class OrderTally:
    """Counts of the orders that a guard answered and refused since it was started.

    Guarantees:
        It holds numbers only, by kinds of orders and codes of reasons that are fixed beforehand: nothing of
        an order, of a record, or of a coin that the guard flipped.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # the guard counts, and another thread reads
        self._orders = Counter[tuple[str, str]]()
        self._refusals = Counter[str]()
        self._seconds = Counter[float]()
        self._total = 0.0

    def count(self, kind: str, refused: str, began: float) -> None:
        """Count an order of this kind, with the code of its refusal; an empty code: it was answered."""
        took = time.perf_counter() - began
        with self._lock:
            self._orders[kind, "refused" if refused else "answered"] += 1
            self._refusals[refused] += 1
            self._seconds.update(bound for bound in BOUNDS if took <= bound)
            self._total += took

    def metrics(self) -> list[Metric]:
        with self._lock:
            orders = tuple(
                Sample(self._orders[kind, outcome], {"order": kind, "outcome": outcome})
                for kind in ORDERS
                for outcome in ("answered", "refused")
            )
            refusals = {code: self._refusals[code] for code in REASONS}
            buckets, total = {bound: self._seconds[bound] for bound in BOUNDS}, self._total
        told = "Orders since the guard was started."
        return [
            Metric("discretion_guard_orders_total", "counter", told, orders),
            by_label("discretion_guard_refusals_total", "counter", "Refused orders.", "reason", refusals),
            histogram("discretion_guard_answer_seconds", "Time to answer an order.", buckets, total),
        ]


class OwnBudget:
    """Metrics of a guard's own ledger, which is read again only where it has changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: tuple[int, int] | None = None
        self._life: Lifetime | None = None

    def metrics(self) -> list[Metric]:
        try:
            now = os.stat(self._path)
            if self._known != (now.st_mtime_ns, now.st_size):
                self._life, self._known = read_lifetime(self._path), (now.st_mtime_ns, now.st_size)
        except (LedgerError, OSError):
            self._life, self._known = None, None
        readable = "Whether the guard's ledger can be read."
        found = [gauge("discretion_guard_ledger_readable", readable, int(self._life is not None))]
        return found + (_budget(self._life) if self._life else [])


def _budget(life: Lifetime) -> list[Metric]:
    columns = {
        "budget": ("Epsilon that the client allows over its life.", life.budget),
        "spent": ("Epsilon of all rounds on record.", life.spent),
        "promised": ("Epsilon that open runs may still spend.", life.promised),
        "left": ("Epsilon that is neither spent nor promised.", life.left),
    }
    found = [
        gauge(f"discretion_guard_epsilon_{name}", told, float(column[0]))
        for name, (told, column) in columns.items()
    ]
    open_runs = sum(each.run.closed is None for each in life.runs)
    return [*found, gauge("discretion_guard_open_runs", "Runs that were joined and not finished.", open_runs)]
