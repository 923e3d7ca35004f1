"""Runs that differ only in the seed, taken together: their mean, their spread, and each class's share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from discretion.accounting.certify import share_of
from discretion.methods import METHODS
from discretion.plan import ADVERSARIES, Adversary
from discretion.population import Floats, Ints
from discretion.report import statements
from discretion.report.reading import Run
from discretion.treatment import ends

Verdict = Literal["within", "over", "none", "broken"]


@dataclass(frozen=True)
class Estimate:
    mean: float
    std: float | None  # sample standard deviation over seeds; None for a single one

    @classmethod
    def of(cls, values: Floats) -> "Estimate":
        spread = np.isfinite(values).all() and len(values) > 1
        return cls(float(np.mean(values)), float(np.std(values, ddof=1)) if spread else None)


@dataclass(frozen=True)
class Curve:
    rounds: Ints  # (E,) evaluated in every run
    mean: Floats  # (E,)
    std: Floats  # (E,) zeros for a single run
    runs: int


@dataclass(frozen=True)
class BudgetClass:
    """What a class of clients gives and gets; over seeds and members where they differ."""

    name: str
    clients: int
    budget: float  # of the client that spends the largest share of its budget
    spent: float  # by the same client, against whoever sees the released models
    against: Mapping[Adversary, float]  # largest epsilon of the class
    rounds: tuple[int, ...]
    curve: Floats  # (rounds,) epsilon spent after so many rounds, largest over seeds
    budgets: tuple[float, ...]  # smallest and largest
    rate: tuple[float, ...] | None  # of secret coins; None where turns are public
    clip: tuple[float, ...] | None  # None for clients that never take part, as the next two
    multiplier: tuple[float, ...] | None
    batch: tuple[float, ...] | None  # chance of a record to be in a step; None where updates are released
    turns: tuple[float, ...]  # rounds that a client is expected to take part in, or turns that it has
    updates: float  # expected of the whole class, in all rounds; mean over seeds
    records: float  # of the whole class; mean over seeds


@dataclass(frozen=True)
class Group:
    """Runs that differ only in the seed."""

    label: str
    runs: tuple[Run, ...]
    apart: tuple[str, ...]  # why it cannot be compared with the others

    @property
    def first(self) -> Run:
        return self.runs[0]

    @property
    def method(self) -> str:
        return self.first.plan.method

    @property
    def title(self) -> str:
        return title(self.method)

    @property
    def idea(self) -> str:
        return METHODS[self.method].idea if self.method in METHODS else ""

    @property
    def paper(self) -> str:
        return METHODS[self.method].paper if self.method in METHODS else ""

    @cached_property
    def counted(self) -> tuple[Run, ...]:
        """The finished runs; where there is none, those that were evaluated so far."""
        finished = tuple(run for run in self.runs if run.finished)
        return finished or tuple(run for run in self.runs if len(run.history.rounds))

    @property
    def finished(self) -> bool:
        return any(run.finished for run in self.runs)

    @property
    def unfinished(self) -> tuple[Run, ...]:
        return tuple(run for run in self.runs if not run.finished)

    @cached_property
    def curve(self) -> Curve:
        """Accuracy over the rounds that were evaluated in every counted run."""
        histories = [run.history for run in self.counted]
        if not histories:
            return Curve(np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0), 0)
        rounds = histories[0].rounds
        for history in histories:
            rounds = np.intersect1d(rounds, history.rounds)
        values = np.stack([h.accuracy[np.isin(h.rounds, rounds)] for h in histories])  # (runs, E)
        std = values.std(axis=0, ddof=1) if len(histories) > 1 else np.zeros(len(rounds))
        return Curve(rounds, values.mean(axis=0), std, len(histories))

    @cached_property
    def accuracy(self) -> Estimate | None:
        """At the last round that was evaluated in every counted run."""
        last = [run.history.accuracy[run.history.rounds == self._last] for run in self.counted]
        return Estimate.of(np.concatenate(last)) if self._last else None

    @cached_property
    def loss(self) -> Estimate | None:
        last = [run.history.loss[run.history.rounds == self._last] for run in self.counted]
        return Estimate.of(np.concatenate(last)) if self._last else None

    @property
    def _last(self) -> int:
        return int(self.curve.rounds.max(initial=0))

    @cached_property
    def verdict(self) -> Verdict:
        certificates = [run.certificate for run in self.runs]
        if any(run.broken for run in self.runs):
            return "broken"
        if any(certificate.promises_nothing for certificate in certificates):
            return "none"
        return "over" if any(len(c.overspent) for c in certificates) else "within"

    @cached_property
    def classes(self) -> tuple[BudgetClass, ...]:
        """Strictest first, each with a name of its own."""
        found: dict[str, BudgetClass] = {}
        for k in range(len(self.first.classes[0])):
            made = _budget_class(self.runs, k)
            name = f"{made.name} (class {k + 1})" if made.name in found else made.name
            found[name] = replace(made, name=name)
        return tuple(found.values())

    @cached_property
    def held_to_strictest(self) -> bool:
        """Whether nobody spends more than the strictest budget, though some could."""
        strictest = min(float(run.population.epsilon.min()) for run in self.runs)
        most = max(float(run.certificate.spent.max()) for run in self.runs)
        return most <= strictest < max(part.budget for part in self.classes)

    @cached_property
    def remarks(self) -> tuple[str, ...]:
        """What a reader must know of the runs before using the numbers."""
        found = [f"{run.name}: {run.broken}" for run in self.runs if run.broken]
        certificates = [run.certificate for run in self.runs]
        found += dict.fromkeys(filter(None, (statements.paper_mode(c) for c in certificates)))
        found += dict.fromkeys(filter(None, (statements.reading(c) for c in certificates)))
        if self.verdict == "over":
            found += [_overspending(r) for r in self.runs if len(r.certificate.overspent)]
        if self.unfinished:
            done = ", ".join(f"{r.name} ({r.history.done} of {r.plan.rounds})" for r in self.unfinished)
            used = "not in the mean" if self.finished else "the figures are of the rounds so far"
            found.append(f"unfinished: {done}; {used}")
        return tuple(found)


def title(method: str) -> str:
    return METHODS[method].title if method in METHODS else method


def _overspending(run: Run) -> str:
    certificate, over = run.certificate, run.certificate.overspent
    worst = over[int(np.argmax(certificate.spent[over] - certificate.budget[over]))]
    return (
        f"{run.name}: {len(over)} of {len(run.population)} clients over budget, "
        f"worst is client {certificate.clients[worst]}"
    )


def class_name(low: float, high: float) -> str:
    """Of a class whose clients have different budgets."""
    return f"ε {low:.3g} to {high:.3g}".replace("inf", "∞")


def _budget_class(runs: Sequence[Run], k: int) -> BudgetClass:
    spent = np.array([run.spent[k] for run in runs])
    budget = np.array([run.certificate.budget[run.worst[k]] for run in runs])
    top = int(np.argmax(share_of(spent, budget)))
    mine = [run.classes[1] == k for run in runs]
    pairs = list(zip(runs, mine, strict=True))
    treated = [(run.treatment, who) for run, who in pairs]
    batches = [(t.batch[:, who]) for t, who in treated if t.batch is not None]
    budgets = _ends([run.population.epsilon[who] for run, who in pairs])
    names = {run.classes[0][k] for run in runs}
    return BudgetClass(
        name=names.pop() if len(names) == 1 else class_name(*budgets),
        clients=int(mine[0].sum()),
        budget=float(budget[top]),
        spent=float(spent[top]),
        against={
            who: max(float(run.certificate.epsilon[who][part].max()) for run, part in pairs)
            for who in ADVERSARIES
        },
        rounds=runs[0].certificate.spending.rounds,
        curve=_spending(runs, k),
        budgets=budgets,
        rate=None if treated[0][0].public else _known([t.rate[:, who] for t, who in treated]),
        clip=_known([t.clip[:, who] for t, who in treated]),
        multiplier=_known([t.multiplier[:, who] for t, who in treated]),
        batch=_known(batches) if batches else None,
        turns=_ends([t.turns[who] for t, who in treated]),
        updates=float(np.mean([t.turns[who].sum() for t, who in treated])),
        records=float(np.mean([run.population.size[who].sum() for run, who in pairs])),
    )


def _spending(runs: Sequence[Run], k: int) -> Floats:
    """Between two points of a curve its later one holds: spending never decreases."""
    grid = runs[0].certificate.spending.rounds
    curves = []
    for curve in (run.certificate.spending for run in runs):
        if k >= len(curve.classes):
            return np.full(len(grid), np.inf)  # not a certificate of this population: it proves nothing
        at = np.minimum(np.searchsorted(curve.rounds, grid), len(curve.rounds) - 1)
        curves.append(curve.epsilon[k, at])
    return np.asarray(np.max(curves, axis=0))


def _known(values: Sequence[Floats]) -> tuple[float, float] | None:
    return ends(np.concatenate([column.reshape(-1) for column in values]))


def _ends(values: Sequence[Floats]) -> tuple[float, float]:
    return min(float(v.min()) for v in values), max(float(v.max()) for v in values)
