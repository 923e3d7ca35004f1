"""What of a run may go to other tools: public facts of its plan and certificate, and its history."""

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from discretion import journal
from discretion.accounting.certify import share_of
from discretion.report import statements, wording
from discretion.report.reading import Run

Value = str | int | float

DAY = 86400.0  # seconds


@dataclass(frozen=True)
class Facts:
    """Of one run; `values` by names that every tool takes."""

    name: str
    id: str
    values: Mapping[str, Value]
    secret: bool = False  # whether it must not be told when a round was done: time tells who took part
    began: float = DAY  # seconds since 1970

    def moment(self, round_: int) -> float:
        """When a round is said to be done, in seconds since 1970: now, or a second after the one before."""
        return self.began + round_ if self.secret else time.time()


def facts_of(run: Run) -> Facts:
    certificate, plan = run.certificate, run.plan
    names, member = run.classes
    values: dict[str, Value] = {
        "run": run.name,
        "id": run.about.id,
        "created": run.about.created,
        "discretion": run.about.version,
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
        "protection": run.broken or statements.protection(certificate),
        "accuracy on": wording.tested([run]),
    }
    for k, name in enumerate(names):
        values[f"clients of {plain(name)}"] = int((member == k).sum())
    for name, budget in zip(certificate.spending.classes, certificate.spending.budget, strict=True):
        values[f"budget of {plain(name)}"] = float(budget)
    return Facts(run.name, run.about.id, values, run.secret, _began(run))


def _began(run: Run) -> float:
    try:
        return datetime.fromisoformat(run.about.created).timestamp()
    except ValueError:
        return DAY


def rounds_of(lines: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    for line in lines:
        record = json.loads(line)
        yield int(record["round"]), record


def values_at(run: Run, number: int, record: Mapping[str, Any]) -> dict[str, float]:
    """What is known after a round: accuracy and loss where it was evaluated, and what each budget class has
    spent, at the rounds for which the certificate says so."""
    found: dict[str, float] = {}
    if record.get("accuracy") is not None:
        found |= {"accuracy": float(record["accuracy"]), "loss": journal.loss_in(record)}
    curve = run.certificate.spending
    if number in curve.rounds and not run.broken:
        spent = curve.epsilon[:, curve.rounds.index(number)]
        share = share_of(spent, curve.budget)
        for k, name in enumerate(curve.classes):
            if math.isfinite(spent[k]):
                found[f"spent/{plain(name)}"] = float(spent[k])
                found[f"share of budget/{plain(name)}"] = float(share[k])
    return found


def plain(name: str) -> str:
    """The name of a budget class in letters that every tool takes."""
    return name.replace("ε", "epsilon").replace("δ", "delta").replace(",", "").replace("∞", "inf")
