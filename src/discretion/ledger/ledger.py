"""The ledger: rounds are reserved before data is touched, committed after the release, or refused."""

import json
import math
from typing import NamedTuple

import numpy as np

from discretion.accounting import filter, renyi
from discretion.accounting.accountant import TIGHT
from discretion.accounting.filter import Taken
from discretion.arrays import Floats, Ints
from discretion.errors import BudgetError, LedgerError
from discretion.ledger.entries import Accounts, record
from discretion.ledger.store import Book, now
from discretion.ledger.turns import Mask, Turns
from discretion.plan.plan import Plan
from discretion.plan.population import Population
from discretion.plan.steps import Steps


class LedgerRun(NamedTuple):
    """A run on record. `refusals` counts refusals of single clients in single rounds."""

    id: str
    method: str
    clients: int
    rounds: int
    reserved: int  # those that are committed included
    committed: int
    refusals: int
    unprotected: bool
    admitted: str
    closed: str | None


class Ledger(Book):
    """What each client has spent, over all runs that share this file, by one of two rules.

    Planned: a run's whole plan is admitted or refused before its first round, by tight accounting.
    Adaptive: a plan is admitted if any client can pay for its first turn, the first round that costs it
    anything, and each client refuses, round by round, what would exceed its budget, by filters
    (`accounting.filter`): tight for a client's first plan and for steps without sampling, looser for sampled
    steps of later plans.

    Guarantees:
        A round is on record before any data is touched, and a record is never taken back: a crash can
        make the ledger count a round that released nothing, never the other way round.
        Planned: a plan is admitted only if, for every client, all that is on record and all that other
        admitted plans may still spend and the whole new plan together stay within the budget. This is a
        proof for plans that were not chosen in the light of what earlier runs released.
        Adaptive: however plans were chosen, a client takes part in no round that its filters do not allow.
        A client whose budget was lowered takes part in no round that would exceed it, by either rule.
        A plan that protects nobody must be accepted explicitly, and costs an infinite epsilon: a client with
        a finite budget then takes part in nothing more that costs anything.
        A ledger counts for its own clients only: others of a plan may have ledgers of their own.
        A ledger whose file was damaged, in whatever bit, counts no less than before, or is not opened.
        What is on record when a call returns survives a loss of power. Processes that share a ledger run on
        one machine, as file locks keep them apart. Between transactions it is one file.
        All runs of a ledger protect the same unit under the same adjacency, from the same adversary.
        Who took part in a round is not recorded: the coins are secret. Who refused is: budgets are not.
    """

    def _begin(self, population: Population) -> None:
        super()._begin(population)
        self._accounts = Accounts(self._read, self._place)
        self._divergences: dict[bytes, Floats] = {}  # (N, rungs) of a step, by its rates and multipliers
        self._renyi_delta: Floats = np.zeros(0)  # (N,) of the Rényi filter, by which its orders are chosen
        self._ladder: Ints

    @property
    def runs(self) -> list[LedgerRun]:
        """Return every run on record, the first one first."""
        rows = self._read(
            "SELECT id, method, (SELECT COUNT(*) FROM member WHERE run = id), rounds, COUNT(round), "
            "COALESCE(SUM(state = 'committed'), 0), COALESCE(SUM(json_array_length(refused)), 0), "
            "unprotected, admitted, closed FROM run LEFT JOIN round ON run = id GROUP BY id "
            "ORDER BY run.rowid"
        )
        return [LedgerRun(*row)._replace(unprotected=bool(row[7])) for row in rows]

    @property
    def takes_part_in(self) -> Ints:
        """(N,) number of admitted runs that each client is in."""
        counts = dict(self._read("SELECT client, COUNT(*) FROM member GROUP BY client"))
        return np.array([counts.get(name, 0) for name in self.population.client])

    def admit(self, run: str, plan: Plan, noise: str = "", accept_no_privacy: bool = False) -> None:
        """Let `run` spend what `plan` says, or raise BudgetError. Admitting it again changes nothing.

        `noise` says where the noise comes from. A run keeps it as it keeps its plan: a round that is done
        again after a crash must be the same release, not a second one with other noise.
        """
        with self._transaction():
            for digest, source in self._read("SELECT plan, noise FROM run WHERE id = ?", [run]):
                if digest != plan.digest():
                    raise LedgerError(
                        f"run {run} was admitted with plan {digest[:12]}…, not {plan.digest()[:12]}…. "
                        "A run keeps its plan: start a new run for another one."
                    )
                if source != noise:
                    raise LedgerError(
                        f"run {run} was admitted with noise from {source}, not from {noise}. A run keeps "
                        "its noise: start a new run for another one."
                    )
                return
            unprotected = self._consider(plan, accept_no_privacy)
            about = [run, plan.digest(), noise, plan.method, plan.unit, plan.adjacency, plan.promise]
            self._insert("run", *about, plan.rounds, unprotected, self._last_change(), now(), None)
            with self._entering("member", "price", "phase"):
                record(self._db, run, plan, self._own(plan))

    def consider(self, plan: Plan, accept_no_privacy: bool = False) -> None:
        """Raise BudgetError if the plan would not be admitted now; record nothing."""
        with self._transaction("DEFERRED"):
            self._consider(plan, accept_no_privacy)

    def _consider(self, plan: Plan, accept_no_privacy: bool) -> bool:
        """Raise unless the plan may be admitted; return whether it is one that protects nobody."""
        own = self._own(plan)
        kind = self._accounts.kind()
        if kind not in ((), (plan.unit, plan.adjacency)):
            raise LedgerError(
                f"the ledger {self._path} protects a {kind[0]} ({kind[1]}), this plan a "
                f"{plan.unit} ({plan.adjacency}): costs do not add up. Use a ledger of its own."
            )
        promises = [name for (name,) in self._read("SELECT DISTINCT promise FROM run")]
        if promises not in ([], [plan.promise]):
            raise LedgerError(
                f"budgets in the ledger {self._path} hold against {promises[0]}, in this plan against "
                f"{plan.promise}: what is spent would mean neither. Use a ledger of its own."
            )
        budget = self.budget
        if accept_no_privacy and np.isinf(TIGHT.epsilon(plan.steps().of(own), self.population.delta)).all():
            return True
        if self.rule == "adaptive":
            if not self._begins(self._accounts.taken(), Turns.of(plan, own), budget):
                raise BudgetError(
                    "nobody has enough left of its budget for its first turn in this plan. Plan with more "
                    "noise or lower rates, or top budgets up with `discretion ledger`."
                )
            return False
        total = self._total(plan)
        over = np.flatnonzero(~(total <= budget))
        if len(over) and accept_no_privacy and plan.accounting == "paper":
            return True
        if len(over):
            worst = over[int(np.argmax(total[over] - budget[over]))]
            already = self._cost(self._accounts.taken(whole_plans=True), np.array([worst]))[0]
            raise BudgetError(
                f"{len(over)} of {len(total)} clients refuse this plan; worst is client "
                f"{self.population.client[worst]}: epsilon {already:.4g} is spent or promised "
                f"already and would become {total[worst]:.4g} > budget {budget[worst]:.4g}. Plan this run "
                "for a smaller share of the budgets, such as plan.share = 0.5 in its settings, if enough is "
                "left."
            )
        return False

    def turns(self, plan: Plan) -> tuple[Ints, Ints]:
        """(N,) how many of its first turns in a plan each client's budget allows now, and (N,) of how many.

        By the planned rule that is all of them or none.
        """
        with self._transaction("DEFERRED"):
            turns, budget = Turns.of(plan, self._own(plan)), self.budget
            taken = self._accounts.taken(whole_plans=self.rule == "planned")
        return self._allowed(taken, turns, budget), turns.count

    def _allowed(self, taken: Taken, turns: Turns, budget: Floats) -> Ints:
        """(N,) how many turns of a further plan the budgets allow after what was taken."""
        if self.rule == "planned":
            return np.where(self._fits(taken, turns.whole, turns, budget), turns.count, 0)
        return turns.allowed(lambda steps: self._fits(taken, steps, turns, budget))

    def _fits(self, taken: Taken, steps: Steps, turns: Turns, budget: Floats) -> Mask:
        """(N,) whose budget allows these steps of a further plan."""
        everybody = np.arange(len(self.population))
        return self._within(taken.then(steps, turns.whole), steps, everybody, budget)

    def _begins(self, taken: Taken, turns: Turns, budget: Floats) -> bool:
        """Return whether any client can pay for its first turn in a further plan, or none pays anything."""
        pays = turns.count > 0
        fits = self._fits(taken, turns.first(np.ones_like(turns.count)), turns, budget)
        return bool(fits[pays].any() or not pays.any())

    def total(self, plan: Plan | None = None) -> Floats:
        """(N,) epsilon of all rounds on record, all that open runs may still spend, and this whole plan."""
        with self._transaction("DEFERRED"):
            return self._total(plan)

    def _total(self, plan: Plan | None) -> Floats:
        taken = self._accounts.taken(whole_plans=True)
        if plan is not None:
            steps = plan.steps().of(self._own(plan))
            taken = taken.then(steps, steps)
        return self._cost(taken, np.arange(len(self.population)))

    def _own(self, plan: Plan) -> Ints:
        """(N,) numbers, in the plan, of the clients of this ledger."""
        place = {name: i for i, name in enumerate(plan.clients)}
        missing = [name for name in self.population.client if name not in place]
        if missing:
            raise LedgerError(
                f"the plan names other clients than the population of this ledger: it lacks {missing[0]!r}"
            )
        return np.array([place[name] for name in self.population.client])

    def reserve(self, run: str, round_: int, kept: int | None = None) -> Mask:
        """Charge the round to all clients but those that refuse; return (N,) which take part if asked.

        A round reserved before a crash may be reserved again: the same clients refuse. `kept` is an earlier
        round whose release is durable by now: it is committed in the same transaction.
        """
        with self._transaction():
            if kept is not None:
                self._commit(run, kept)
            unprotected, changes = self._open_run(run, round_)
            query = "SELECT state, refused FROM round WHERE run = ? AND round = ?"
            for state, refused in self._read(query, [run, round_]):
                if state == "committed":
                    raise LedgerError(f"round {round_} of run {run} was released already")
                return ~np.isin(np.arange(len(self.population)), json.loads(refused))
            return self._enter(run, round_, unprotected, changes, self._last_change())

    def pass_over(self, run: str, round_: int) -> None:
        """Charge a round in which none of these clients was asked.

        It is charged because the coin that decided so is secret, unless the client would have refused. A
        budget lowered after the last round on record counts as it was: this round may have come earlier.
        """
        with self._transaction():
            unprotected, changes = self._open_run(run, round_)
            query = "SELECT changes FROM round WHERE run = ? ORDER BY round DESC LIMIT 1"
            last = next((number for (number,) in self._read(query, [run])), changes)
            self._enter(run, round_, unprotected, changes, last)
            self._commit(run, round_)

    def _open_run(self, run: str, round_: int) -> tuple[bool, int]:
        """Check that the run is open and has this round; return if it is unprotected, and its `changes`."""
        query = "SELECT rounds, closed, unprotected, changes FROM run WHERE id = ?"
        row = self._db.execute(query, [run]).fetchone()
        if row is None:
            raise LedgerError(f"run {run} has no plan in this ledger: admit one first")
        rounds, closed, unprotected, changes = row
        if closed is not None:
            raise LedgerError(f"run {run} is closed since {closed}: it may spend nothing more")
        if round_ > rounds:
            raise LedgerError(f"round {round_} is beyond the {rounds} rounds that were admitted")
        account = self._accounts.of(run)
        if not (account.here.all() and np.array_equal(account.clients, np.arange(len(self.population)))):
            raise LedgerError(f"run {run} has other clients than the population of this ledger")
        return bool(unprotected), changes

    def _enter(self, run: str, round_: int, unprotected: bool, changes: int, last: int) -> Mask:
        """Put the next round on record; return (N,) who takes part, by budgets after change `last`."""
        query = "SELECT COUNT(*), COALESCE(SUM(state = 'reserved'), 0) FROM round WHERE run = ?"
        ((done, waiting),) = self._read(query, [run])
        if round_ != done + 1 or waiting:
            raise LedgerError(f"expected round {done + 1 - bool(waiting)} of run {run} next, got {round_}")
        query = "SELECT rounds FROM phase WHERE run = ? AND part = 0 ORDER BY phase"
        phases = self._read(query, [run])
        phase = int(np.searchsorted(np.cumsum(phases), round_))
        everybody = self.rule == "adaptive" and not unprotected
        willing = self._willing(run, phase, changes, last, everybody)
        refused = json.dumps(np.flatnonzero(~willing).tolist())
        self._insert("round", None, run, round_, phase, "reserved", refused, now(), None, last)
        return willing

    def _willing(self, run: str, phase: int, changes: int, last: int, everybody: bool) -> Mask:
        """(N,) whose budget allows one more round of this phase; only budgets that may not are computed.

        By the planned rule a plan stays within budgets once admitted, unless something is withdrawn. A later
        top-up does not undo that: another plan may have been promised it in the meantime.
        """
        query = "SELECT DISTINCT client FROM change WHERE number > ? AND number <= ? AND epsilon < 0"
        rows = self._read(query, [changes, last])
        lowered = [self._place[name] for (name,) in rows if name in self._place]
        looking = np.arange(len(self.population)) if everybody else np.array(sorted(lowered), dtype=np.int64)
        willing = np.ones(len(self.population), dtype=bool)
        if len(looking):
            more, after = self._accounts.round_of(run, phase), self._accounts.taken(more=(run, phase))
            willing[looking] = self._within(after, more, looking, self._budget(last))
        return willing

    def _within(self, after: Taken, more: Steps, clients: Ints, budget: Floats) -> Mask:
        """(k,) which clients stay within their budget after all steps, or pay nothing for `more` of them."""
        within = np.all((more.rate == 0) | np.isinf(more.multiplier) | (more.count == 0), axis=0)[clients]
        # a first plan that fits as a whole fits in part, and is computed once, not anew in every round
        for taken in (after.finished(), after) if self.rule == "adaptive" else (after,):
            rest = np.flatnonzero(~within)
            if len(rest):
                within[rest] = self._cost(taken, clients[rest]) <= budget[clients[rest]]
        return np.asarray(within)

    def commit(self, run: str, round_: int) -> None:
        """Record that the round's release is durable."""
        with self._transaction():
            self._commit(run, round_)

    def _commit(self, run: str, round_: int) -> None:
        if not self._read("SELECT state FROM round WHERE run = ? AND round = ?", [run, round_]):
            raise LedgerError(f"round {round_} of run {run} was never reserved")
        query = (
            "UPDATE round SET state = 'committed', committed = ? "
            "WHERE run = ? AND round = ? AND state = 'reserved'"
        )
        self._update("commit", query, now(), run, round_)

    def finish(self, run: str, kept: int | None = None) -> None:
        """Close the run, which frees what its plan allowed and did not use; `kept` as for `reserve`."""
        with self._transaction():
            if kept is not None:
                self._commit(run, kept)
            query = "UPDATE run SET closed = ? WHERE id = ? AND closed IS NULL"
            self._update("close", query, now(), run)

    def states(self, run: str) -> list[tuple[int, str]]:
        """Return each round of the run that is on record, with 'reserved' or 'committed'."""
        return self._read("SELECT round, state FROM round WHERE run = ? ORDER BY round", [run])

    def refusals(self, run: str, round_: int) -> Mask:
        """(N,) which clients refused a round that is on record."""
        rows = self._read("SELECT refused FROM round WHERE run = ? AND round = ?", [run, round_])
        return np.isin(np.arange(len(self.population)), [i for (row,) in rows for i in json.loads(row)])

    def spent(self) -> Floats:
        """(N,) epsilon of all rounds on record, reserved ones included, by this ledger's rule."""
        with self._transaction("DEFERRED"):
            taken = self._accounts.taken()
        return self._cost(taken, np.arange(len(self.population)))

    def _cost(self, taken: Taken, clients: Ints) -> Floats:
        """(k,) epsilon of these clients by this ledger's rule; `taken` is of the whole population."""
        if self.rule == "planned":
            return TIGHT.epsilon(taken.steps.of(clients), self.population.delta[clients])
        share = filter.shares(taken, self._first, self.population.delta)
        by_tight = filter.tight(taken.of(clients), (share * self.population.delta)[clients])
        return np.minimum(by_tight, self._cost_by_renyi(taken.steps, 1 - share)[clients])

    def _cost_by_renyi(self, steps: Steps, share: Floats) -> Floats:
        """(N,) epsilon by the Rényi filter with (N,) these shares of delta."""
        delta = share * self.population.delta
        if not np.array_equal(delta, self._renyi_delta):
            self._ladder, self._renyi_delta = filter.ladder(self._first, delta), delta
            self._divergences.clear()
        total = np.zeros(self._ladder.shape)
        for rate, multiplier, count in zip(steps.rate, steps.multiplier, steps.count, strict=True):
            key = rate.tobytes() + multiplier.tobytes()
            if key not in self._divergences:
                curve = renyi.curve(rate, multiplier)
                self._divergences[key] = np.take_along_axis(curve, self._ladder, axis=1)
            some = count > 0  # nothing times infinity is not nothing
            total[some] += count[some, None] * self._divergences[key][some]
        divergence = np.full((len(delta), len(renyi.ORDERS)), math.inf)
        np.put_along_axis(divergence, self._ladder, total, axis=1)
        return filter.renyi_mixture(divergence, delta, self._ladder)
