"""Ledger entries of runs, written from plans and read back as Gaussian steps of a population's clients."""

import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discretion.accounting.filter import Taken
from discretion.arrays import Floats, Ints
from discretion.errors import LedgerError
from discretion.plan.plan import Plan
from discretion.plan.steps import Steps

Read = Callable[[str, Sequence[object]], list[Any]]


def record(db: sqlite3.Connection, run: str, plan: Plan, own: Ints) -> None:
    """Enter the clients of a run and what its rounds cost them; equal prices share an entry.

    `own` (M,) are the numbers, in the plan, of the clients of this ledger.
    """
    class_ = np.unique(plan.classes[own], return_inverse=True)[1].reshape(-1)
    first = own[np.unique(class_, return_index=True)[1]]
    members = zip(own.tolist(), class_.tolist(), strict=True)
    rows = ((run, place, plan.clients[i], kind) for place, (i, kind) in enumerate(members))
    db.executemany("INSERT INTO member VALUES (?, ?, ?, ?)", rows)
    known: dict[tuple[str, ...], int] = {}
    for number, phase in enumerate(plan.phases):
        for part, (rate, multiplier, counts) in enumerate(plan.parts(phase)):
            columns = tuple(json.dumps(column[first].tolist()) for column in (rate, multiplier))
            if columns not in known:
                known[columns] = len(known)
                db.execute("INSERT INTO price VALUES (?, ?, ?, ?)", [run, known[columns], *columns])
            count = counts[own]
            asked = np.flatnonzero(count)
            same = (count == count[0]).all() and int(count[0])
            releases = same or [asked.tolist(), count[asked].tolist()]
            db.execute(
                "INSERT INTO phase VALUES (?, ?, ?, ?, ?, ?)",
                [run, number, part, phase.rounds, known[columns], json.dumps(releases)],
            )


@dataclass(frozen=True)
class RunAccount:
    """What a run costs those K of its M clients that are in a population."""

    here: NDArray[np.bool_]  # (M,) which clients of the run are in the population
    clients: Ints  # (K,) their numbers in the population
    rate: Floats  # (S, K) by price
    multiplier: Floats  # (S, K)
    count: Ints  # (S, K) releases on record, as far as they were read
    whole: Ints  # (S, K) releases of the whole plan
    first: NDArray[np.bool_]  # (K,) who paid for something in this run before it paid in any other


Part = tuple[Ints, Floats, Floats, Ints, Ints]  # (K,) clients, (S, K) rates, multipliers, counts, first plans


class Accounts:
    """The costs of all runs in a ledger. Entries never change, so each row is read once.

    Use it inside a transaction, and before a run or a round is entered in that transaction.
    """

    def __init__(self, read: Read, place: Mapping[str, int]) -> None:
        self._read = read
        self._place = place
        self._known: dict[str, RunAccount] = {}
        self._seen = 0  # the last of the rounds that are counted
        self._begun = np.zeros(len(place), dtype=bool)  # who has paid for anything

    def kind(self) -> tuple[Any, ...]:
        """Return unit and adjacency of the runs on record; empty if there are none."""
        return next(iter(self._read("SELECT unit, adjacency FROM run LIMIT 1", [])), ())

    def of(self, run: str) -> RunAccount:
        if run not in self._known:
            query = "SELECT client, class FROM member WHERE run = ? ORDER BY place"
            names, classes = zip(*self._read(query, [run]), strict=True)
            place = np.array([self._place.get(name, -1) for name in names])
            ((needed,),) = self._read("SELECT MAX(price) + 1 FROM phase WHERE run = ?", [run])
            query = "SELECT rate, multiplier FROM price WHERE run = ? ORDER BY price"
            prices = [[json.loads(column) for column in row] for row in self._read(query, [run])]
            if len(prices) != needed or any(len(column) <= max(classes) for row in prices for column in row):
                raise LedgerError(f"the ledger is damaged: prices of run {run} are missing. Restore a copy.")
            here, clients = place >= 0, place[place >= 0]
            columns = np.array(prices, dtype=np.float64)[:, :, np.array(classes)[here]]
            count = np.zeros((needed, len(clients)), dtype=np.int64)
            first = np.zeros(len(clients), dtype=bool)
            account = RunAccount(here, clients, columns[:, 0], columns[:, 1], count, count.copy(), first)
            self._known[run] = account
            self._add_ahead(run, account.whole, 0)
        return self._known[run]

    def round_of(self, run: str, phase: int) -> Steps:
        """Return the steps of one round of this phase."""
        account = self.of(run)
        prices, releases = (list(column) for column in zip(*self.releases(run, phase), strict=True))
        count = np.array(releases)
        part = (account.clients, account.rate[prices], account.multiplier[prices], count, count)
        return self.stacked([part]).steps

    def about(self, run: str) -> dict[str, Any] | None:
        """Return plan digest, unit, adjacency and promise of an admitted run; None if there is none."""
        names = ("plan", "unit", "adjacency", "promise")
        rows = self._read(f"SELECT {', '.join(names)} FROM run WHERE id = ?", [run])
        return dict(zip(names, rows[0], strict=True)) if rows else None

    def steps(
        self, whole_plans: bool = False, more: tuple[str, int] | None = None, only: str | None = None
    ) -> Steps:
        """Return the steps of all rounds on record; the options are those of `taken`."""
        steps = self.taken(whole_plans, more, only).steps
        taken = steps.count.any(axis=1)
        return Steps(steps.rate[taken], steps.multiplier[taken], steps.count[taken], *self.kind())

    def taken(
        self, whole_plans: bool = False, more: tuple[str, int] | None = None, only: str | None = None
    ) -> Taken:
        """Return the steps of all rounds on record, and the first plan of each client.

        `whole_plans` adds the rounds that open runs may still take; `more` adds one round of a run and phase,
        which is the first run of clients that have paid for nothing yet; `only` leaves out all runs but one.
        """
        self._read_on()
        found: list[Part] = []
        for run, closed in self._read("SELECT id, closed FROM run ORDER BY rowid", []):
            account = self.of(run)
            if only not in (None, run) or not len(account.clients):
                continue
            count, first = account.count.copy(), account.first
            if whole_plans and closed is None:
                ((done,),) = self._read("SELECT COUNT(*) FROM round WHERE run = ?", [run])
                self._add_ahead(run, count, done)
            if more is not None and more[0] == run:
                first = first | ~self._begun[account.clients]
                for price, releases in self.releases(*more):
                    count[price] += releases
            plan = np.where(first, account.whole, 0)
            used = (count + plan).any(axis=1)
            prices = (account.rate[used], account.multiplier[used])
            found.append((account.clients, *prices, count[used], plan[used]))
        return self.stacked(found)

    def stacked(self, found: list[Part]) -> Taken:
        """Let each client's steps follow each other, so that runs of different clients share rows.

        Time and memory then grow with what is on record, and not with all runs times all clients.
        """
        height = np.zeros(len(self._place), dtype=np.int64)
        for clients, rate, *_ in found:
            height[clients] += len(rate)
        shape = (int(height.max(initial=0)), len(height))
        rates, multipliers = np.zeros(shape), np.zeros(shape)
        counts, first = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
        height[:] = 0
        for clients, rate, multiplier, count, plan in found:
            at = height[clients] + np.arange(len(rate))[:, None], clients
            rates[at], multipliers[at], counts[at], first[at] = rate, multiplier, count, plan
            height[clients] += len(rate)
        return Taken(Steps(rates, multipliers, counts, *self.kind()), first)

    def _read_on(self) -> None:
        """Count the rounds that were entered since the last reading, in their order."""
        query = "SELECT number, run, phase, refused FROM round WHERE number > ? ORDER BY number"
        for number, run, phase, refused in self._read(query, [self._seen]):
            account = self.of(run)
            for price, releases in self.releases(run, phase, refused):
                account.count[price] += releases
                pays = (releases > 0) & (account.rate[price] > 0) & np.isfinite(account.multiplier[price])
                account.first[pays & ~self._begun[account.clients]] = True
                self._begun[account.clients[pays]] = True
            self._seen = number

    def after_each_round(self, run: str) -> Steps:
        """Return what this population's only client has paid after each round of a run.

        Column t of the steps (usually a client) holds the client's first t + 1 rounds.
        """
        account = self.of(run)
        rows = self._read("SELECT phase, refused FROM round WHERE run = ? ORDER BY round", [run])
        count = np.zeros((len(account.rate), len(rows)), dtype=np.int64)
        for at, (phase, refused) in enumerate(rows):
            for price, releases in self.releases(run, phase, refused):
                count[price, at] += releases.sum()
        # one column of each, or none where the client is not in the run
        prices = (column.sum(axis=1, keepdims=True) for column in (account.rate, account.multiplier))
        rate, multiplier = (np.broadcast_to(price, count.shape) for price in prices)
        return Steps(rate, multiplier, count.cumsum(axis=1), *self.kind())

    def _add_ahead(self, run: str, count: Ints, done: int) -> None:
        """Add the releases of the rounds after the first `done` ones to `count` (S, K), by price."""
        query = "SELECT phase, rounds FROM phase WHERE run = ? AND part = 0 ORDER BY phase"
        for phase, rounds in self._read(query, [run]):
            ahead = rounds - min(done, rounds)
            done -= rounds - ahead
            if ahead:
                for price, releases in self.releases(run, phase):
                    count[price] += ahead * releases

    def releases(self, run: str, phase: int, refused: str = "[]") -> list[tuple[int, Ints]]:
        """Return, for each part of a phase, its price and (K,) releases in a round with these refusals."""
        here, found = self.of(run).here, []
        query = "SELECT price, releases FROM phase WHERE run = ? AND phase = ? ORDER BY part"
        for price, text in self._read(query, [run, phase]):
            stored = json.loads(text)
            asked, counts = (slice(None), stored) if isinstance(stored, int) else stored
            releases = np.zeros(len(here), dtype=np.int64)
            releases[asked] = counts
            releases[json.loads(refused)] = 0
            found.append((price, releases[here]))
        return found
