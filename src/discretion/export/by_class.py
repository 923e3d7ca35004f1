"""A run's budgets and spending by budget class, for documents that others read; no client is named."""

import math
from dataclasses import dataclass

import numpy as np

from discretion.report import numbers
from discretion.runs.read import Run


@dataclass(frozen=True)
class ClassSpending:
    """A budget class: in it, budget and spending of the client that uses most of its budget."""

    name: str
    clients: int
    budget: float
    spent: float  # rounded up
    delta: float  # the largest of the class


def spending(run: Run) -> list[ClassSpending]:
    """Return what each budget class was allowed and has spent, the strictest class first."""
    names, member = run.classes
    return [
        ClassSpending(
            name,
            int((member == k).sum()),
            float(run.certificate.budget[run.worst[k]]),
            rounded_up(float(run.spent[k])),
            float(run.certificate.delta[member == k].max()),
        )
        for k, name in enumerate(names)
    ]


def largest(run: Run) -> float:
    """Return the largest epsilon that was spent of a budget with a limit, rounded up."""
    limited = np.array([each.spent for each in spending(run) if math.isfinite(each.budget)])
    return float(limited.max(initial=0.0))


def rounded_up(epsilon: float) -> float:
    return epsilon if math.isinf(epsilon) else float(numbers.spent(epsilon, 5))
