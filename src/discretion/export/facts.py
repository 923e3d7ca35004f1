"""Public facts of a run that other tools may get: from its plan, certificate and history."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from discretion.accounting.certificate import share_of
from discretion.audit import statements, verdicts
from discretion.runs.history import RoundRecord
from discretion.runs.read import Run

Value = str | int | float

DAY = 86400.0  # seconds


@dataclass(frozen=True)
class Facts:
    """Public facts of one run; the names in `values` are valid in every tool."""

    name: str
    id: str
    values: Mapping[str, Value]
    secret: bool = False  # whether times of rounds are hidden, because they reveal who took part
    began: float = DAY  # seconds since 1970

    def moment(self, round_: int) -> float:
        """Return a round's time stamp in seconds since 1970: now, or `began` plus a second for each round."""
        return self.began + round_ if self.secret else time.time()


def facts_of(run: Run) -> Facts:
    """Collect the public facts of a run."""
    certificate, plan = run.certificate, run.plan
    names, member = run.classes
    values: dict[str, Value] = {
        "run": run.name,
        "id": run.about.id,
        "created": run.about.created,
        "discretion": run.about.discretion,
        "method": plan.method,
        "data": run.about.data,
        "model": run.model,
        "clients": len(run.population),
        "rounds": plan.rounds,
        "clients expected in a round": plan.cohort,
        "unit": certificate.unit,
        "adjacency": certificate.adjacency,
        "noise drawn by": certificate.noise_at,
        "budgets hold against": certificate.promise,
        "accountant": certificate.accountant,
        "accounting": certificate.accounting,
        "plan": certificate.plan,
        "population": certificate.population,
        "protection": verdicts.protection(run),
        "accuracy on": statements.tested([run]),
    }
    for k, name in enumerate(names):
        values[f"clients of {ascii_name(name)}"] = int((member == k).sum())
    for name, budget in zip(certificate.spending.classes, certificate.spending.budget, strict=True):
        values[f"budget of {ascii_name(name)}"] = float(budget)
    return Facts(run.name, run.about.id, values, run.secret, _began(run))


def _began(run: Run) -> float:
    try:
        return datetime.fromisoformat(run.about.created).timestamp()
    except ValueError:
        return DAY


def values_at(run: Run, record: RoundRecord) -> dict[str, float]:
    """Return what is known after a round: accuracy and loss if evaluated, and spending by budget class.

    Spending is known for the rounds that the certificate's curve has.
    """
    found: dict[str, float] = {}
    if record.accuracy is not None:
        found |= {"accuracy": record.accuracy, "loss": record.loss}
    curve = run.certificate.spending
    if record.round in curve.rounds and not run.broken:
        spent = curve.epsilon[:, curve.rounds.index(record.round)]
        share = share_of(spent, curve.budget)
        for k, name in enumerate(curve.classes):
            if math.isfinite(spent[k]):
                found[f"spent/{ascii_name(name)}"] = float(spent[k])
                found[f"share of budget/{ascii_name(name)}"] = float(share[k])
    return found


def ascii_name(name: str) -> str:
    """Return a budget class's name in characters that every tool accepts."""
    return name.replace("ε", "epsilon").replace("δ", "delta").replace(",", "").replace("∞", "inf")
