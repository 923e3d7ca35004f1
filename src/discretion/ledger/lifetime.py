"""Every client's account over all runs of a ledger, at one moment: spent, promised, left, and by run."""

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from discretion.accounting.accountant import TIGHT
from discretion.accounting.filter import Taken
from discretion.arrays import Floats, Ints
from discretion.ledger.ledger import Ledger, LedgerRun
from discretion.ledger.reader import connect_for_reading
from discretion.ledger.turns import Mask, Turns
from discretion.plan.population import Population
from discretion.plan.steps import Adjacency, Steps, Unit

KeyNow = Callable[[str], str]

# Whether a budget has room for another run like the last one: for all of its turns, for the first one at
# least, for none; or the client was not in that run
Room = Literal["whole", "part", "none", "not in it"]


@dataclass(frozen=True, eq=False)
class RunCost:
    """One run of a ledger, and what it costs each client as if it were the only one."""

    run: LedgerRun
    operator: str  # public key that a guard joined the run with, or its successor; empty in a server's ledger
    member: Mask  # (N,) whose run it is
    spent: Floats  # (N,) epsilon of its rounds on record
    planned: Floats  # (N,) epsilon of its whole plan


@dataclass(frozen=True, eq=False)
class Lifetime:
    """The accounts of a ledger's clients. Epsilons are by the ledger's rule, over all of its runs.

    Guarantees:
        `spent` is the ledger's own `spent`: rounds that are reserved count.
        `spent` and `promised` together are what all rounds on record and all that open runs may still take
        cost, as far as the budget allows them: composed, not added up.
        `room` is what the ledger itself would say of the last plan, if it were asked again now.
    """

    rule: str
    kind: tuple[Unit, Adjacency] | None  # unit and adjacency of the runs; None where there are none
    population: Population  # with the budgets that clients came with
    budget: Floats  # (N,) epsilon that each client allows now
    spent: Floats  # (N,)
    promised: Floats  # (N,) what open runs may still spend
    runs: tuple[RunCost, ...]  # the first one first
    operators: dict[str, float]  # in a guard's ledger: epsilon of all runs of an operator's key together
    granted: dict[str, float]  # the same, with the whole plans of runs that are open: it tells of no coin
    room: tuple[Room, ...]  # (N,)
    turns: Ints  # (N,) turns in another run like the last that budgets allow, were all open runs done
    turns_planned: Ints  # (N,) turns in such a run
    admits_again: bool | None  # whether the last plan would be admitted once more; None without a run

    @property
    def left(self) -> Floats:
        """(N,) epsilon that is neither spent nor promised."""
        with np.errstate(invalid="ignore"):
            left = np.maximum(self.budget - self.spent - self.promised, 0.0)
        return np.where(np.isinf(self.spent), 0.0, left)

    @property
    def share(self) -> Floats:
        """(N,) share of its budget that each client has spent; infinite where nothing is allowed any more."""
        with np.errstate(divide="ignore", invalid="ignore"):
            share = self.spent / self.budget
        return np.where(np.isinf(self.budget) | (self.spent == 0), 0.0, share)


class OnRun(NamedTuple):
    """What is read of one run, before anything is computed."""

    run: LedgerRun
    operator: str
    member: Mask
    taken: Steps  # rounds on record
    plan: Steps  # all of it


class LifetimeReader(Ledger):
    """A ledger opened for reading.

    Guarantees:
        Neither the ledger nor a file beside it is made or changed.
        The file is read as it was at one moment, and let go before epsilons are computed.
    """

    def _connect(self) -> sqlite3.Connection:
        return connect_for_reading(Path(self._path))

    def close(self) -> None:
        self._db.close()

    def lifetime(self, key_now: KeyNow = str) -> Lifetime:
        with self._transaction("DEFERRED"):
            budget, kind = self.budget, self._accounts.kind()
            now, ahead = self._accounts.taken(), self._accounts.taken(whole_plans=True)
            operators = dict(self._read("SELECT run, operator FROM joined"))
            runs = [self._on_run(run, key_now(operators.get(run.id, ""))) for run in self.runs]
            last = self._turns_of(runs[-1].run.id) if runs else Turns(Steps.none(len(budget)), ())
        everybody = np.arange(len(budget))
        spent, total = self._cost(now, everybody), self._cost(ahead, everybody)
        room, again = self._room(runs[-1:], last, now, ahead, budget)
        return Lifetime(
            rule=self.rule,
            kind=(kind[0], kind[1]) if kind else None,
            population=self.population,
            budget=budget,
            spent=spent,
            promised=_promised(spent, total, budget),
            runs=tuple(self._alone(run) for run in runs),
            operators=self._by_operator(runs, open_whole=False),
            granted=self._by_operator(runs, open_whole=True),
            room=room,
            turns=self._allowed(ahead, last, budget),
            turns_planned=last.count,
            admits_again=again,
        )

    def _on_run(self, run: LedgerRun, operator: str) -> OnRun:
        place = self._accounts.of(run.id).clients
        member = np.isin(np.arange(len(self.population)), place)
        steps = self._accounts.steps(only=run.id)
        return OnRun(run, operator, member, steps, self._plan_of(run.id))

    def _plan_of(self, run: str) -> Steps:
        """Return the steps of a run's whole plan, a row for each price."""
        account = self._accounts.of(run)
        whole = account.whole
        return self._accounts.stacked(
            [(account.clients, account.rate, account.multiplier, whole, whole)]
        ).steps

    def _turns_of(self, run: str) -> Turns:
        """Return the turns of this population's clients in a run on record."""
        clients, phases = self._accounts.of(run).clients, []
        query = "SELECT phase, rounds FROM phase WHERE run = ? AND part = 0 ORDER BY phase"
        for phase, rounds in self._read(query, [run]):
            releases = []
            for price, some in self._accounts.releases(run, phase):
                everybody = np.zeros(len(self.population), dtype=np.int64)
                everybody[clients] = some
                releases.append((price, everybody))
            phases.append((rounds, releases))
        return Turns(self._plan_of(run), phases)

    def _alone(self, on: OnRun) -> RunCost:
        delta = self.population.delta
        spent, planned = TIGHT.epsilon(on.taken, delta), TIGHT.epsilon(on.plan, delta)
        return RunCost(on.run, on.operator, on.member, spent, planned)

    def _by_operator(self, runs: list[OnRun], open_whole: bool) -> dict[str, float]:
        """Return the epsilon of each operator's runs, composed; a guard's ledger has one client.

        Runs that are open count with what is on record, or with their whole plans.
        """
        together: dict[str, Steps] = {}
        for on in runs:
            if on.operator:
                before = together.get(on.operator, Steps.none(len(self.population)))
                whole = open_whole and on.run.closed is None
                together[on.operator] = before.then(on.plan if whole else on.taken)
        return {key: float(TIGHT.epsilon(s, self.population.delta).max()) for key, s in together.items()}

    def _room(
        self, last: list[OnRun], turns: Turns, now: Taken, ahead: Taken, budget: Floats
    ) -> tuple[tuple[Room, ...], bool | None]:
        """Return the room for a plan like the last, with these turns, and whether it is admitted."""
        everybody = np.arange(len(budget))
        for on in last:
            whole = self._cost(ahead.then(on.plan, on.plan), everybody) <= budget
            begins = whole
            if self.rule == "adaptive":
                first = turns.first(np.ones_like(turns.count))
                begins = whole | self._fits(now, first, turns, budget)
            answers = zip(on.member.tolist(), whole.tolist(), begins.tolist(), strict=True)
            rooms = tuple(_room_of(*answer) for answer in answers)
            if self.rule == "adaptive":
                return rooms, self._begins(now, turns, budget)
            return rooms, bool(begins[on.member].all())
        return tuple(_room_of(member=False, whole=False, begins=False) for _ in everybody), None


def _room_of(member: bool, whole: bool, begins: bool) -> Room:
    if not member:
        return "not in it"
    return "whole" if whole else "part" if begins else "none"


def _promised(spent: Floats, total: Floats, budget: Floats) -> Floats:
    """(N,) what open runs may still add, of what the budget allows; 0 where all is spent or infinite."""
    with np.errstate(invalid="ignore"):
        more = np.minimum(total, budget) - spent
    return np.where(np.isinf(spent), 0.0, np.maximum(more, 0.0))


def read_lifetime(path: Path | str, key_now: KeyNow = str) -> Lifetime:
    """Return the accounts in a ledger's file, which may be in use.

    `key_now` returns the key that replaced an operator's key, whose runs then count as the new key's.
    """
    with LifetimeReader.existing(path) as ledger:
        return ledger.lifetime(key_now)
