"""The durable record of spending: reserve before data is touched, commit after the release, or refuse."""

import math
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from discretion.accounting import filter, renyi
from discretion.accounting.spent import TIGHT
from discretion.errors import BudgetError, LedgerError
from discretion.plan import Plan
from discretion.population import Floats, Ints, Population
from discretion.steps import Steps

VERSION = 1_400_002  # of the tables below; says whose file it is
SCHEMA = """
CREATE TABLE IF NOT EXISTS about (rule TEXT);
CREATE TABLE IF NOT EXISTS client (name TEXT PRIMARY KEY, epsilon REAL, delta REAL);
CREATE TABLE IF NOT EXISTS change (
    number INTEGER PRIMARY KEY, client TEXT, epsilon REAL, note TEXT, made TEXT);
CREATE TABLE IF NOT EXISTS run (
    id TEXT PRIMARY KEY, plan TEXT, noise TEXT, method TEXT, unit TEXT, adjacency TEXT, rounds INTEGER,
    unprotected INTEGER, changes INTEGER, admitted TEXT, closed TEXT);
CREATE TABLE IF NOT EXISTS member (run TEXT, client TEXT, class INTEGER, PRIMARY KEY (run, client));
CREATE TABLE IF NOT EXISTS phase (
    run TEXT, phase INTEGER, rounds INTEGER, steps INTEGER, public INTEGER, PRIMARY KEY (run, phase));
CREATE TABLE IF NOT EXISTS price (
    run TEXT, phase INTEGER, class INTEGER, rate REAL, multiplier REAL,
    PRIMARY KEY (run, phase, class));
CREATE TABLE IF NOT EXISTS turn (
    run TEXT, phase INTEGER, client TEXT, turns INTEGER, PRIMARY KEY (run, phase, client));
CREATE TABLE IF NOT EXISTS round (
    run TEXT, round INTEGER, phase INTEGER, state TEXT, reserved TEXT, committed TEXT,
    PRIMARY KEY (run, round));
CREATE TABLE IF NOT EXISTS refusal (
    run TEXT, round INTEGER, phase INTEGER, client TEXT, PRIMARY KEY (run, round, client));
"""

Rule = Literal["planned", "adaptive"]
Mask = NDArray[np.bool_]


class Ledger:
    """What each client has spent, over all runs that share this file, by one of two rules.

    Planned: a run's whole plan is admitted or refused before its first round, by tight accounting.
    Adaptive: a plan is admitted as it is, and each client refuses, round by round, what would pass its
    budget, by a Rényi filter (`accounting.filter`), which costs some of the budget.

    Guarantees:
        A round is on record before any data is touched, and a record is never taken back: a crash can
        make the ledger count a round that released nothing, never the other way round.
        Planned: a plan is admitted only if, for every client, all that is on record and all that other
        admitted plans may still spend and the whole new plan together stay within the budget. This is a
        proof for plans that were not chosen in the light of what earlier runs released.
        Adaptive: however plans were chosen, a client takes part in no round that its filter does not allow.
        A client whose budget was lowered takes part in no round that would pass what is left, by either rule.
        All runs of a ledger protect the same unit under the same adjacency.
        Who took part in a round is not recorded: the coins are secret. Who refused is: budgets are not.
    """

    def __init__(self, path: Path | str, population: Population, rule: Rule = "planned") -> None:
        self._path = str(path)
        self._open()
        self.population = population
        try:
            self._lay_out(rule)
            self._enrol(population)
        except BaseException:
            self._db.close()
            raise

    @classmethod
    def existing(cls, path: Path | str) -> "Ledger":
        """The ledger in this file, with all clients that are on record."""
        if not Path(path).is_file():
            raise LedgerError(f"there is no ledger {path}")
        self = cls.__new__(cls)
        self._path = str(path)
        self._open()
        try:
            self._lay_out(None)
            rows = self._read("SELECT name, epsilon, delta FROM client ORDER BY rowid")
            names, epsilon, delta = zip(*rows, strict=True) if rows else ((), (), ())
            self.population = replace(Population.of(epsilon, np.array(delta)), client=names)
        except BaseException:
            self._db.close()
            raise
        return self

    def _open(self) -> None:
        try:
            self._db = sqlite3.connect(self._path, isolation_level=None, timeout=30.0)
            self._db.execute("PRAGMA synchronous = EXTRA")
        except sqlite3.Error as problem:
            raise LedgerError(f"cannot open the ledger {self._path}: {problem}") from None

    def _lay_out(self, rule: Rule | None) -> None:
        """Make the tables in a new file; refuse a file that is something else, or keeps another rule."""
        with self._transaction():
            tables = {name for (name,) in self._db.execute("SELECT name FROM sqlite_schema")}
            (version,) = self._db.execute("PRAGMA user_version").fetchone()
            if tables and version != VERSION:
                raise LedgerError(f"{self._path} is not a ledger of Discretion, or of another version")
            for statement in SCHEMA.split(";"):
                self._db.execute(statement)
            self._db.execute(f"PRAGMA user_version = {VERSION}")
            row = self._db.execute("SELECT rule FROM about").fetchone()
            if row is None:
                self._db.execute("INSERT INTO about VALUES (?)", [rule or "planned"])
            self.rule: Rule = row[0] if row else rule or "planned"
            if rule not in (None, self.rule):
                raise LedgerError(
                    f"the ledger {self._path} goes by the rule {self.rule}, not {rule}; it keeps its rule"
                )

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

    def _read(self, query: str, values: Sequence[object] = ()) -> list[Any]:
        try:
            return self._db.execute(query, values).fetchall()
        except sqlite3.Error as problem:
            raise LedgerError(f"the ledger {self._path} cannot be used now: {problem}") from None

    def _enrol(self, population: Population) -> None:
        """Enter new clients; a client that is on record keeps the budget that is on record."""
        with self._transaction():
            rows = self._db.execute("SELECT name, epsilon, delta FROM client")
            known = {name: (epsilon, delta) for name, epsilon, delta in rows}
            changed = self._changes()
            new = []
            for i, name in enumerate(population.client):
                budget = (float(population.epsilon[i]), float(population.delta[i]))
                if name not in known:
                    new.append((name, *budget))
                    continue
                first, delta = known[name]
                if budget not in ((first, delta), (first + changed.get(name, 0.0), delta)):
                    raise LedgerError(
                        f"client {name} has the budget (epsilon {first + changed.get(name, 0.0):g}, delta "
                        f"{delta:g}) in {self._path}, but (epsilon {budget[0]:g}, delta {budget[1]:g}) in "
                        "the population. A budget holds for life: use the population.csv of the earlier run, "
                        "another ledger for other data, or change the budget with `discretion ledger`."
                    )
            self._db.executemany("INSERT INTO client VALUES (?, ?, ?)", new)

    def _changes(self, since: int = 0) -> dict[str, float]:
        """By how much budgets were changed, after the change of that number."""
        query = "SELECT client, SUM(epsilon) FROM change WHERE number > ? GROUP BY client"
        return dict(self._read(query, [since]))

    @property
    def budget(self) -> Floats:
        """(N,) epsilon that each client allows now, over its life: top-ups and withdrawals included."""
        first = dict(self._read("SELECT name, epsilon FROM client"))
        changed = self._changes()
        return np.array([max(first[name] + changed.get(name, 0.0), 0.0) for name in self.population.client])

    def change_budget(self, client: str, by: float, note: str = "") -> None:
        """Top up a client's epsilon, or withdraw some of it (by < 0): an entry that stays on record.

        What is spent already stays spent: where more was withdrawn than is left, the client refuses whatever
        costs anything.
        """
        if client not in self.population.client:
            raise LedgerError(f"there is no client {client} in the ledger {self._path}")
        if not (math.isfinite(by) and by != 0):
            raise LedgerError(f"a budget is changed by a finite number, up or down; found {by}")
        with self._transaction():
            self._db.execute(
                "INSERT INTO change VALUES (NULL, ?, ?, ?, ?)", [client, float(by), note, _now()]
            )

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
            kinds = self._db.execute("SELECT DISTINCT unit, adjacency FROM run").fetchall()
            if kinds and kinds != [(plan.unit, plan.adjacency)]:
                raise LedgerError(
                    f"the ledger {self._path} protects a {kinds[0][0]} ({kinds[0][1]}), this plan a "
                    f"{plan.unit} ({plan.adjacency}): costs do not add up. Use a ledger of its own."
                )
            self.consider(plan, accept_no_privacy)
            self._record(run, plan, noise, accept_no_privacy)

    def consider(self, plan: Plan, accept_no_privacy: bool = False) -> None:
        """Raise BudgetError if the plan would not be admitted now; nothing is recorded."""
        if self.rule == "adaptive":
            return
        before = self._steps(whole_plans=True)
        budget = self.budget
        total = TIGHT.epsilon(before.then(plan.steps()), self.population.delta)
        over = np.flatnonzero(~(total <= budget))
        if len(over) == 0 or (accept_no_privacy and np.isinf(total).all()):
            return
        already = TIGHT.epsilon(before, self.population.delta)
        worst = over[int(np.argmax(total[over] - budget[over]))]
        raise BudgetError(
            f"{len(over)} of {len(total)} clients refuse this plan; worst is client "
            f"{self.population.client[worst]}: epsilon {already[worst]:.4g} is spent or promised "
            f"already and would become {total[worst]:.4g} > budget {budget[worst]:.4g}. Give this run a "
            "smaller share of the budgets (-c plan.share=0.5), if enough is left."
        )

    def _record(self, run: str, plan: Plan, noise: str, unprotected: bool) -> None:
        (changes,) = self._db.execute("SELECT COALESCE(MAX(number), 0) FROM change").fetchone()
        about = [run, plan.digest(), noise, plan.method, plan.unit, plan.adjacency, plan.rounds]
        self._db.execute(
            "INSERT INTO run VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, NULL)",
            [*about, unprotected, changes, _now()],
        )
        members = zip(plan.clients, plan.classes.tolist(), strict=True)
        self._db.executemany("INSERT INTO member VALUES (?, ?, ?)", [(run, name, k) for name, k in members])
        first = np.unique(plan.classes, return_index=True)[1]
        for number, phase in enumerate(plan.phases):
            public = phase.turns is not None
            self._db.execute(
                "INSERT INTO phase VALUES (?, ?, ?, ?, ?)", [run, number, phase.rounds, phase.steps, public]
            )
            rate, multiplier = plan.release(phase)
            prices = zip(rate[first].tolist(), multiplier[first].tolist(), strict=True)
            self._db.executemany(
                "INSERT INTO price VALUES (?, ?, ?, ?, ?)",
                [(run, number, k, *price) for k, price in enumerate(prices)],
            )
            if phase.turns is not None:
                asked = np.flatnonzero(phase.turns).tolist()
                self._db.executemany(
                    "INSERT INTO turn VALUES (?, ?, ?, ?)",
                    [(run, number, plan.clients[i], int(phase.turns[i])) for i in asked],
                )

    def reserve(self, run: str, round_: int) -> Mask:
        """Put the round on record as spent by all but those who refuse; (N,) who takes part if asked.

        A round reserved before a crash may be reserved again: the same clients refuse.
        """
        with self._transaction():
            query = "SELECT rounds, closed, unprotected, changes FROM run WHERE id = ?"
            row = self._db.execute(query, [run]).fetchone()
            if row is None:
                raise LedgerError(f"run {run} has no plan in this ledger: admit one first")
            rounds, closed, unprotected, changes = row
            if closed is not None:
                raise LedgerError(f"run {run} is closed since {closed}: it may spend nothing more")
            if round_ > rounds:
                raise LedgerError(f"round {round_} is beyond the {rounds} rounds that were admitted")
            states = dict(self.states(run))
            if states.get(round_) == "committed":
                raise LedgerError(f"round {round_} of run {run} was released already")
            if round_ in states:
                return ~self._refused(run, round_)
            if round_ != len(states) + 1 or "reserved" in states.values():
                raise LedgerError(f"round {round_} of run {run} is out of turn: {len(states)} are on record")
            phase = self._phase_of(run, round_)
            willing = self._willing(run, phase, changes) if not unprotected else self._everybody()
            self._db.execute(
                "INSERT INTO round VALUES (?, ?, ?, 'reserved', ?, NULL)", [run, round_, phase, _now()]
            )
            self._db.executemany(
                "INSERT INTO refusal VALUES (?, ?, ?, ?)",
                [(run, round_, phase, self.population.client[i]) for i in np.flatnonzero(~willing)],
            )
            return willing

    def _everybody(self) -> Mask:
        return np.ones(len(self.population), dtype=bool)

    def _refused(self, run: str, round_: int) -> Mask:
        rows = self._db.execute("SELECT client FROM refusal WHERE run = ? AND round = ?", [run, round_])
        return np.isin(self.population.client, [name for (name,) in rows])

    def _willing(self, run: str, phase: int, changes: int) -> Mask:
        """(N,) whose budget allows one more round of this phase.

        By the planned rule only those need to look whose budget was lowered since the plan was admitted.
        """
        willing, budget = self._everybody(), self.budget
        if self.rule == "planned":
            lowered = {name for name, by in self._changes(changes).items() if by < 0}
            asked = np.flatnonzero([name in lowered for name in self.population.client])
        else:
            asked = np.arange(len(budget))
        if len(asked):
            more = self._steps_of(run, [(phase, 1)]).of(asked)
            costless = ((more.rate == 0) | np.isinf(more.multiplier) | (more.count == 0)).all(axis=0)
            total = self._cost(self._steps(whole_plans=False).of(asked).then(more), asked)
            willing[asked] = costless | (total <= budget[asked])
        return willing

    def _cost(self, steps: Steps, clients: Ints) -> Floats:
        """(k,) epsilon by the rule of this ledger."""
        delta = self.population.delta[clients]
        if self.rule == "planned":
            return TIGHT.epsilon(steps, delta)
        first = dict(self._read("SELECT name, epsilon FROM client"))
        epsilon = np.array([first[self.population.client[i]] for i in clients])
        return filter.spent(renyi.divergence(steps), delta, filter.ladder(epsilon, delta))

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

    def spent(self) -> Floats:
        """(N,) epsilon of all that is on record, reserved rounds included, by the rule of this ledger."""
        return self._cost(self._steps(whole_plans=False), np.arange(len(self.population)))

    def _steps(self, whole_plans: bool) -> Steps:
        """All Gaussian steps on record; with `whole_plans`, all that open runs may still take, too."""
        total = Steps.none(len(self.population))
        for run, closed in self._read("SELECT id, closed FROM run"):
            counted = (
                "SELECT phase, rounds FROM phase WHERE run = ? ORDER BY phase"
                if whole_plans and closed is None
                else "SELECT phase, COUNT(*) FROM round WHERE run = ? GROUP BY phase ORDER BY phase"
            )
            counts = self._read(counted, [run])
            if counts:
                steps = self._steps_of(run, counts)
                refused = self._refusals(run, [phase for phase, _ in counts])
                total = total.then(replace(steps, count=steps.count - refused))
        return total

    def _refusals(self, run: str, phases: list[int]) -> Ints:
        """(S, N) releases that clients refused."""
        place = {name: i for i, name in enumerate(self.population.client)}
        refused = np.zeros((len(phases), len(place)), dtype=np.int64)
        query = "SELECT phase, client, COUNT(*) FROM refusal WHERE run = ? GROUP BY phase, client"
        for phase, name, count in self._read(query, [run]):
            if name in place:
                refused[phases.index(phase), place[name]] = count
        if refused.any():
            refused *= self._steps_of(run, [(phase, 1) for phase in phases]).count
        return refused

    def _steps_of(self, run: str, counts: list[tuple[int, int]]) -> Steps:
        """So many rounds of these phases of `run`, for the clients of this population."""
        members = dict(self._read("SELECT client, class FROM member WHERE run = ?", [run]))
        class_of = np.array([members.get(name, -1) for name in self.population.client])
        (kind,) = self._read("SELECT unit, adjacency FROM run WHERE id = ?", [run])
        rates, multipliers, releases = [], [], []
        for phase, rounds in counts:
            prices = self._read(
                "SELECT rate, multiplier FROM price WHERE run = ? AND phase = ? ORDER BY class", [run, phase]
            )
            if len(prices) <= class_of.max(initial=-1):
                raise LedgerError(f"the ledger {self._path} is damaged: prices of run {run} are missing")
            table = np.array([*prices, (0.0, np.inf)])  # the last row is for who was not in the run
            rates.append(table[class_of, 0])
            multipliers.append(table[class_of, 1])
            ((steps, public),) = self._read(
                "SELECT steps, public FROM phase WHERE run = ? AND phase = ?", [run, phase]
            )
            each = np.full(len(class_of), rounds * steps)
            if public:
                query = "SELECT client, turns FROM turn WHERE run = ? AND phase = ?"
                turns = dict(self._read(query, [run, phase]))
                each *= np.array([turns.get(name, 0) for name in self.population.client])
            releases.append(each)
        return Steps(np.array(rates), np.array(multipliers), np.array(releases), *kind)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
