"""The durable record of spending: reserve before data is touched, commit after the release, or refuse."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from discretion.accounting.spent import TIGHT, Accountant
from discretion.errors import BudgetError, LedgerError
from discretion.plan import Plan
from discretion.population import Floats, Population
from discretion.steps import Steps

VERSION = 1_400_001  # of the tables below; says whose file it is
SCHEMA = """
CREATE TABLE IF NOT EXISTS client (name TEXT PRIMARY KEY, epsilon REAL, delta REAL);
CREATE TABLE IF NOT EXISTS run (
    id TEXT PRIMARY KEY, plan TEXT, noise TEXT, method TEXT, unit TEXT, adjacency TEXT, rounds INTEGER,
    admitted TEXT, closed TEXT);
CREATE TABLE IF NOT EXISTS member (run TEXT, client TEXT, class INTEGER, PRIMARY KEY (run, client));
CREATE TABLE IF NOT EXISTS phase (
    run TEXT, phase INTEGER, rounds INTEGER, PRIMARY KEY (run, phase));
CREATE TABLE IF NOT EXISTS price (
    run TEXT, phase INTEGER, class INTEGER, rate REAL, multiplier REAL,
    PRIMARY KEY (run, phase, class));
CREATE TABLE IF NOT EXISTS round (
    run TEXT, round INTEGER, phase INTEGER, state TEXT, reserved TEXT, committed TEXT,
    PRIMARY KEY (run, round));
"""


class Ledger:
    """What each client has spent, over all runs that share this file.

    Guarantees:
        A round is on record before any data is touched, and a record is never taken back: a crash can
        make the ledger count a round that released nothing, never the other way round.
        A plan is admitted only if, for every client, all that is on record and all that other admitted
        plans may still spend and the whole new plan together stay within the budget. This is a proof
        for plans that were not chosen in the light of what earlier runs released.
        Who took part in a round is not recorded: the coins are secret.
    """

    def __init__(self, path: Path | str, population: Population) -> None:
        self._path = str(path)
        try:
            self._db = sqlite3.connect(self._path, isolation_level=None, timeout=30.0)
            self._db.execute("PRAGMA synchronous = EXTRA")
        except sqlite3.Error as problem:
            raise LedgerError(f"cannot open the ledger {self._path}: {problem}") from None
        self.population = population
        try:
            self._lay_out()
            self._enrol(population)
        except BaseException:
            self._db.close()
            raise

    def _lay_out(self) -> None:
        """Make the tables in a new file; refuse a file that is something else."""
        with self._transaction():
            tables = {name for (name,) in self._db.execute("SELECT name FROM sqlite_schema")}
            (version,) = self._db.execute("PRAGMA user_version").fetchone()
            if tables and version != VERSION:
                raise LedgerError(f"{self._path} is not a ledger of Discretion, or of another version")
            for statement in SCHEMA.split(";"):
                self._db.execute(statement)
            self._db.execute(f"PRAGMA user_version = {VERSION}")

    def close(self) -> None:
        self._db.close()

    def __enter__(self) -> "Ledger":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
        except sqlite3.Error as problem:
            raise LedgerError(f"the ledger {self._path} cannot be used now: {problem}") from None

    def _enrol(self, population: Population) -> None:
        """Enter new clients; a client that is on record keeps the budget that is on record."""
        with self._transaction():
            rows = self._db.execute("SELECT name, epsilon, delta FROM client")
            known = {name: (epsilon, delta) for name, epsilon, delta in rows}
            new = []
            for i, name in enumerate(population.client):
                budget = (float(population.epsilon[i]), float(population.delta[i]))
                if name not in known:
                    new.append((name, *budget))
                elif known[name] != budget:
                    raise LedgerError(
                        f"client {name} has the budget (epsilon {known[name][0]:g}, delta "
                        f"{known[name][1]:g}) in {self._path}, but (epsilon {budget[0]:g}, delta "
                        f"{budget[1]:g}) in the population. A budget holds for life: use the "
                        "population.csv of the earlier run, or another ledger for other data."
                    )
            self._db.executemany("INSERT INTO client VALUES (?, ?, ?)", new)

    def admit(self, run: str, plan: Plan, noise: str = "", accept_no_privacy: bool = False) -> None:
        """Let `run` spend what `plan` says, or raise BudgetError. Admitting it again changes nothing.

        `noise` says where the noise comes from. A run keeps it as it keeps its plan: a round that is done
        again after a crash must be the same release, not a second one with other noise.
        """
        if plan.clients != self.population.client:
            raise LedgerError("the plan names other clients than the population of this ledger")
        with self._transaction():
            row = self._db.execute("SELECT plan, noise FROM run WHERE id = ?", [run]).fetchone()
            if row is not None:
                if row[0] != plan.digest():
                    raise LedgerError(
                        f"run {run} was admitted with plan {row[0][:12]}…, not {plan.digest()[:12]}…. "
                        "A run keeps its plan: start a new run for another one."
                    )
                if row[1] != noise:
                    raise LedgerError(
                        f"run {run} was admitted with noise from {row[1]}, not from {noise}. A run keeps "
                        "its noise: start a new run for another one."
                    )
                return
            self.consider(plan, accept_no_privacy)
            self._record(run, plan, noise)

    def consider(self, plan: Plan, accept_no_privacy: bool = False) -> None:
        """Raise BudgetError if the plan would not be admitted now; nothing is recorded."""
        before = self._steps(whole_plans=True)
        total = TIGHT.epsilon(before.then(plan.steps()), self.population.delta)
        over = np.flatnonzero(~(total <= self.population.epsilon))
        if len(over) == 0 or (accept_no_privacy and np.isinf(total).all()):
            return
        already = TIGHT.epsilon(before, self.population.delta)
        worst = over[int(np.argmax(total[over] - self.population.epsilon[over]))]
        raise BudgetError(
            f"{len(over)} of {len(total)} clients refuse this plan; worst is client "
            f"{self.population.client[worst]}: epsilon {already[worst]:.4g} is spent or promised "
            f"already and would become {total[worst]:.4g} > budget "
            f"{self.population.epsilon[worst]:.4g}. Give this run a smaller share of the budgets "
            "(-c plan.share=0.5), if enough is left."
        )

    def _record(self, run: str, plan: Plan, noise: str) -> None:
        self._db.execute(
            "INSERT INTO run VALUES (?, ?, ?, ?, ?, ?, ?, ?, NULL)",
            [run, plan.digest(), noise, plan.method, plan.unit, plan.adjacency, plan.rounds, _now()],
        )
        members = zip(plan.clients, plan.classes.tolist(), strict=True)
        self._db.executemany("INSERT INTO member VALUES (?, ?, ?)", [(run, name, k) for name, k in members])
        first = np.unique(plan.classes, return_index=True)[1]
        for number, phase in enumerate(plan.phases):
            self._db.execute("INSERT INTO phase VALUES (?, ?, ?)", [run, number, phase.rounds])
            rate, multiplier = plan.release(phase)
            prices = zip(rate[first].tolist(), multiplier[first].tolist(), strict=True)
            self._db.executemany(
                "INSERT INTO price VALUES (?, ?, ?, ?, ?)",
                [(run, number, k, *price) for k, price in enumerate(prices)],
            )

    def reserve(self, run: str, round_: int) -> None:
        """Put the round on record as spent. A round reserved before a crash may be reserved again."""
        with self._transaction():
            row = self._db.execute("SELECT rounds, closed FROM run WHERE id = ?", [run]).fetchone()
            if row is None:
                raise LedgerError(f"run {run} has no plan in this ledger: admit one first")
            rounds, closed = row
            if closed is not None:
                raise LedgerError(f"run {run} is closed since {closed}: it may spend nothing more")
            if round_ > rounds:
                raise LedgerError(f"round {round_} is beyond the {rounds} rounds that were admitted")
            states = dict(self.states(run))
            if states.get(round_) == "committed":
                raise LedgerError(f"round {round_} of run {run} was released already")
            if round_ in states:
                return
            if round_ != len(states) + 1 or "reserved" in states.values():
                raise LedgerError(f"round {round_} of run {run} is out of turn: {len(states)} are on record")
            self._db.execute(
                "INSERT INTO round VALUES (?, ?, ?, 'reserved', ?, NULL)",
                [run, round_, self._phase_of(run, round_), _now()],
            )

    def _phase_of(self, run: str, round_: int) -> int:
        rows = self._db.execute("SELECT rounds FROM phase WHERE run = ? ORDER BY phase", [run])
        return int(np.searchsorted(np.cumsum([rounds for (rounds,) in rows]), round_))

    def commit(self, run: str, round_: int) -> None:
        """Say that the round's release is durable."""
        with self._transaction():
            state = dict(self.states(run)).get(round_)
            if state is None:
                raise LedgerError(f"round {round_} of run {run} was never reserved")
            self._db.execute(
                "UPDATE round SET state = 'committed', committed = ? "
                "WHERE run = ? AND round = ? AND state = 'reserved'",
                [_now(), run, round_],
            )

    def finish(self, run: str) -> None:
        """End the run: what its plan allowed and did not use is free again."""
        with self._transaction():
            self._db.execute("UPDATE run SET closed = ? WHERE id = ? AND closed IS NULL", [_now(), run])

    def states(self, run: str) -> list[tuple[int, str]]:
        """Each round of the run that is on record, with 'reserved' or 'committed'."""
        rows = self._db.execute("SELECT round, state FROM round WHERE run = ? ORDER BY round", [run])
        return [(int(number), str(state)) for number, state in rows]

    def spent(self, accountant: Accountant = TIGHT) -> Floats:
        """(N,) epsilon of all that is on record, reserved rounds included."""
        return accountant.epsilon(self._steps(whole_plans=False), self.population.delta)

    def _steps(self, whole_plans: bool) -> Steps:
        """All Gaussian steps on record; with `whole_plans`, all that open runs may still take, too."""
        total = Steps.none(len(self.population))
        for run, closed in self._db.execute("SELECT id, closed FROM run").fetchall():
            counted = (
                "SELECT phase, rounds FROM phase WHERE run = ? ORDER BY phase"
                if whole_plans and closed is None
                else "SELECT phase, COUNT(*) FROM round WHERE run = ? GROUP BY phase ORDER BY phase"
            )
            counts = self._db.execute(counted, [run]).fetchall()
            if counts:
                total = total.then(self._steps_of(run, counts))
        return total

    def _steps_of(self, run: str, counts: list[tuple[int, int]]) -> Steps:
        """`counts` rounds of each phase of `run`, for the clients of this population."""
        members = dict(self._db.execute("SELECT client, class FROM member WHERE run = ?", [run]))
        class_of = np.array([members.get(name, -1) for name in self.population.client])
        rates, multipliers = [], []
        for phase, _ in counts:
            prices = self._db.execute(
                "SELECT rate, multiplier FROM price WHERE run = ? AND phase = ? ORDER BY class",
                [run, phase],
            ).fetchall()
            if len(prices) <= class_of.max(initial=-1):
                raise LedgerError(f"the ledger {self._path} is damaged: prices of run {run} are missing")
            table = np.array([*prices, (0.0, np.inf)])  # the last row is for who was not in the run
            rates.append(table[class_of, 0])
            multipliers.append(table[class_of, 1])
        return Steps(np.array(rates), np.array(multipliers), np.array([count for _, count in counts]))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
