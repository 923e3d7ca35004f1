"""Answering orders: check, reserve, train, clip, add noise, keep, release; or refuse with a reason."""

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
from torch import nn

from discretion.arrays import Ints
from discretion.clients import messages
from discretion.clients.local_clients import LocalClients
from discretion.clients.messages import (
    Answer,
    Check,
    Declare,
    Differences,
    Differs,
    Finish,
    Join,
    Read,
    Survivors,
    Train,
)
from discretion.clients.training import LocalTraining, Schedule
from discretion.errors import (
    BudgetError,
    DiscretionError,
    LedgerError,
    MessageError,
    Refusal,
    StorageError,
)
from discretion.guard import checks
from discretion.guard.data import held_by, own_records
from discretion.guard.identity import own_keys
from discretion.guard.join_orders import plan_in, stored
from discretion.guard.metrics import OrderTally
from discretion.guard.own_ledger import open_ledger, statement_of
from discretion.guard.own_sums import OwnSums
from discretion.guard.plan_size import check_size
from discretion.guard.policy import Policy
from discretion.guard.refusal_reasons import code_of
from discretion.jsonfile import dump
from discretion.ledger.guard_ledger import Joined
from discretion.plan.plan import Plan
from discretion.randomness.sources import heads, run_source
from discretion.randomness.streams import Purpose, fingerprint
from discretion.tasks import models
from discretion.tasks.schema import schema_of
from discretion.training.clip import layers_of
from discretion.training.integer_release import hand_out_on_grid
from discretion.training.orders import NoisySteps, Order
from discretion.training.release import hand_out, hand_out_statistic
from discretion.training.server_update import Vector

log = logging.getLogger("discretion.guard")

NO_BUDGET = "the client's budget does not allow this plan"
INSIDE = "internal error; the guard's log has the details"
FAULT = "fault at the guard: {}. Nothing was sent; the guard's log has the details"
LOST = (
    "the guard's ledger is not the one that answered before: it was restored from an older copy, or lost. "
    "Its owner has to say what was lost: discretion guard GUARD.toml --recover"
)


@dataclass(frozen=True)
class Pinned:
    """A run this guard joined: its join order, plan and model, fixed from then on."""

    join: Join
    operator: str
    plan: Plan
    me: int  # this client's number in the plan
    clients: LocalClients
    parameters: int


class Guard:
    """One client's guard. Only `answer` returns anything computed from the client's records.

    Guarantees:
        Only orders signed by an operator of the policy are read; orders of a run only from the key that
        joined it, or the one that replaced it in the policy.
        A joined run that today's policy would refuse is refused from now on; a run can always be finished.
        A round is reserved in the client's ledger before its records are read. An answer is on disk before
        it leaves. A repeated order gets the same numbers; another order for the same turn is refused. An
        answer interrupted while it was made is not made again, and its round is charged.
        To a plan for a secure sum that promises against the server, no order is answered with the client's
        own numbers: only with a contribution to the sum or, as one of its committee, with a sum of masks.
        Every answer, a refusal, too, is signed by the guard's identity key.
        Rounds in which the client was not asked are charged as well: the coin that decided so was secret.
        A refusal costs nothing, and no order, whatever its content, ends the guard.
        Once an order names a head of its ledger that is not on record, everything is refused until the owner
        has said what was lost.
        An answer depends on the records only through clip and noise; the text of an error stays in the log.
    """

    def __init__(self, policy: Policy, now: Callable[[], datetime] = datetime.now) -> None:
        self._policy, self._now = policy, now
        self.tally = OrderTally()
        self._data = own_records(policy.data)
        self._schema = schema_of(self._data)
        records = len(self._data.train.labels)
        self._keys = own_keys(Path(policy.folder))
        self._ledger = open_ledger(policy)
        try:
            self._sums = OwnSums(policy, self._keys, self._ledger)
        except DiscretionError:
            self._ledger.close()
            raise
        self._runs: dict[str, Pinned] = {}
        if self._ledger.is_lost:
            log.error("%s refuses every order: %s", policy.client, LOST)
        if policy.size not in (None, records):
            log.warning("%s: the policy says %d records, found %d", policy.client, policy.size, records)
        if policy.test_seed is not None:
            log.warning(
                "TEST SEED IN USE: the noise of %s can be computed and removed. NO PRIVACY.", policy.client
            )

    def close(self) -> None:
        self._ledger.close()

    def answer(self, signed: bytes) -> bytes:
        """Return the encoded answer to a signed order: what was asked for, or a refusal with its reason."""
        asked, kind, began = messages.digest(signed), "unreadable", time.perf_counter()
        try:
            operator, message, heads = messages.verified(signed)
            asked = messages.digest(message)
            name = next((n for n, key in self._policy.operators.items() if key == operator), None)
            if name is None:
                raise Refusal("operator key not listed in this guard's [operators]")
            order, body = messages.decode_order(message)
            kind, found = order.kind, b""
            where = f" round {order.round}" if isinstance(order, Train | Read | Survivors) else ""
            log.info("%s%s of run %s from %s", order.kind, where, order.run, name)
            if order.client != self._policy.client:
                raise Refusal("the order is addressed to another client")
            self._ledger.compare(heads)
            if self._ledger.is_lost:
                raise Refusal(LOST)
            if isinstance(order, Join):
                self._join(order, body, operator, message)
            elif isinstance(order, Check):
                found = self._check(order, body, operator)
            elif isinstance(order, Declare):
                statement = statement_of(self._policy, self._ledger, order.run, operator)
                found = dump(statement.model_dump()).encode()
            elif isinstance(order, Finish):
                self._finish(self._pinned(order, operator), order)
            elif isinstance(order, Survivors):
                found = self._masks(self._pinned(order, operator), order, body)
            else:
                found = self._release(self._pinned(order, operator), order, body, asked)
            answer = messages.encode(Answer(kind="done", order=asked, head=self._ledger.head), found)
            self.tally.count(kind, "", began)
            return messages.sign_answer(answer, self._keys.identity)
        except (Refusal, MessageError) as no:
            reason = str(no)
            log.warning("refused: %s", reason)
        except StorageError as problem:
            log.error("refused: %s", problem)
            reason = FAULT.format(problem.fault)
        except DiscretionError as problem:
            log.warning("refused: %s", problem)
            reason = "the client's ledger refuses this order" if isinstance(problem, LedgerError) else INSIDE
        except Exception:
            log.exception("order failed")
            reason = INSIDE
        self.tally.count(kind, code_of(reason), began)
        answer = messages.encode(Answer(kind="refused", order=asked, reason=reason))
        return messages.sign_answer(answer, self._keys.identity)

    def _join(self, order: Join, body: bytes, operator: str, message: bytes) -> None:
        before = self._ledger.joined(order.run)
        if before is not None:
            if not self._is_same(before, operator, message):
                raise Refusal(f"run {order.run} was joined with another order, which stays in force")
            if not self._closed(order.run):  # whoever asks again wants to know whether rounds are answered
                self._require_open()
                self._pinned(order, operator)
            return
        self._require_open()
        run = self._agreed(order, body, operator)
        try:
            with self._ledger.together():
                self._ledger.admit(order.run, run.plan, fingerprint(self._policy.test_seed))
                self._ledger.join(order.run, operator, message)
        except BudgetError as problem:
            log.info("%s", problem)
            raise Refusal(NO_BUDGET) from None
        self._runs[order.run] = run

    def _is_same(self, before: Joined, operator: str, message: bytes) -> bool:
        """Return whether a join order is the one on record, from the same operator, whose key may be new."""
        return (operator, message) == (self._policy.key_now(before.operator), before.message)

    def _check(self, order: Check, body: bytes, operator: str) -> bytes:
        """Return all that keeps this guard from answering such a run, as a `Differences` in JSON.

        Guarantees:
            Nothing is joined, charged or put on record, and no record of the client is read.
        """
        found = [Differs(what=no.what, said=str(no)) for no in self._problems(order, body, operator)]
        return dump(Differences(differs=found).model_dump()).encode()

    def _problems(self, order: Check, body: bytes, operator: str) -> Iterator[Refusal]:
        join = order.joining()
        before = self._ledger.joined(order.run)
        if before is not None and not self._is_same(before, operator, messages.encode(join, body)):
            yield Refusal(f"run {order.run} was joined with another order, which stays in force", "run")
        if before is not None and self._closed(order.run):
            yield Refusal(f"run {order.run} is finished", "run")
        try:
            self._require_open()
        except Refusal as no:
            yield no
        differs = list(checks.join_problems(self._policy, self._schema, join))
        yield from differs
        yield from checks.budget_problems(self._policy, float(self._ledger.budget[0]), order)
        try:
            check_size(self._policy.ceilings, body)
            plan, me = plan_in(join, body)
            yield from checks.plan_problems(self._policy, plan, me)
            yield from self._sums.problems(plan, me, join.roster)
            if not differs:  # a model that is not allowed is not built, and one of other records not compared
                yield from checks.size_problems(plan, self._model(join)[1])
            if before is None:
                self._ledger.consider(plan)
        except Refusal as no:
            yield no
        except BudgetError:
            yield Refusal(NO_BUDGET, "budget")

    def _agreed(self, order: Join, body: bytes, operator: str) -> Pinned:
        """Return the run of a join order that today's policy allows; else raise a Refusal."""
        checks.require(
            checks.join_problems(self._policy, self._schema, order)
        )  # before the model is imported
        check_size(self._policy.ceilings, body)
        run = self._set_up(order, body, operator)
        self._require_allowed(run)
        return run

    def _require_allowed(self, run: Pinned) -> None:
        checks.require(checks.join_problems(self._policy, self._schema, run.join))
        checks.require(checks.plan_problems(self._policy, run.plan, run.me))
        checks.require(checks.size_problems(run.plan, run.parameters))
        checks.require(self._sums.problems(run.plan, run.me, run.join.roster))

    def _set_up(self, order: Join, body: bytes, operator: str) -> Pinned:
        plan, me = plan_in(order, body)
        model, parameters = self._model(order)
        holdings = held_by(me, len(plan.clients), len(self._data.train.labels))
        schedule = Schedule(**order.local.schedule.model_dump())
        training = LocalTraining(**order.local.model_dump(exclude={"schedule"}), schedule=schedule)
        clients = LocalClients(self._data, holdings, model, training)
        return Pinned(order, operator, plan, me, clients, parameters)

    def _model(self, order: Join) -> tuple[nn.Module, int]:
        """Return the order's model and its number of parameters; raise a Refusal if it is not as allowed."""
        model = models.build(order.model, self._data, seed=0)
        shapes = models.shapes_digest(model)
        if shapes not in (self._policy.models.get(order.model) or shapes,) or order.shapes != shapes:
            raise Refusal(
                f"model {order.model!r} has other parameter shapes than this guard's [models] allows", "model"
            )
        if (parameters := len(models.flatten(model))) > self._policy.ceilings.parameters:
            raise Refusal(f"the model has {parameters} parameters, more than the policy allows", "model")
        return model, parameters

    def _pinned(self, order: messages.AnyOrder, operator: str) -> Pinned:
        if order.run not in self._runs:
            joined = self._ledger.joined(order.run)
            if joined is None:
                raise Refusal(f"this guard has not joined run {order.run}: send a join order first")
            join, body = stored(order.run, joined.message)
            set_up = self._set_up if isinstance(order, Finish) else self._agreed
            self._runs[order.run] = set_up(join, body, joined.operator)
        run = self._runs[order.run]
        if self._policy.key_now(run.operator) != operator:
            raise Refusal(f"run {order.run} was joined with another operator key")
        if order.plan != run.join.plan:
            raise Refusal(f"run {order.run} was joined with another plan")
        if not isinstance(order, Finish):  # the policy may have changed since the run was joined
            self._require_allowed(run)
        return run

    def _finish(self, run: Pinned, order: Finish) -> None:
        name = order.run
        if self._closed(name):
            return
        done = len(self._ledger.states(name))
        if not done <= order.rounds <= run.plan.rounds:
            raise Refusal(
                f"run {name} cannot finish after round {order.rounds}: expected {done} to {run.plan.rounds}"
            )
        self._catch_up(name, order.rounds + 1)
        self._ledger.finish(name)

    def _closed(self, run: str) -> bool:
        return any(known.closed is not None for known in self._ledger.runs if known.id == run)

    def _release(self, run: Pinned, order: Train | Read, body: bytes, asked: str) -> bytes:
        """Return the numbers kept for this order, or make, keep and return them."""
        name, kind = order.run, order.kind
        turn = order.turn if isinstance(order, Train) else 0
        done = len(self._ledger.states(name))
        kept = self._ledger.release(name, order.round, kind, turn)
        if kept is not None:
            if kept.asked != asked:
                raise Refusal(f"round {order.round} was requested before, by another order")
            if kept.answer is not None:
                return kept.answer
            if self._policy.test_seed is None or order.round != done:
                raise Refusal(f"round {order.round} is over or was interrupted: its answer is not made again")
        self._require_open()
        if self._closed(name):
            raise Refusal(f"run {name} is finished")
        if not 1 <= order.round <= run.plan.rounds:
            raise Refusal(f"round {order.round} is not in the plan of {run.plan.rounds} rounds")
        if order.round < done:
            raise Refusal(f"expected round {done} or later of run {name}, got {order.round}")
        if isinstance(order, Train):
            checks.check_train(run.plan, run.me, run.join, order)
        else:
            checks.check_read(self._policy, run.plan, run.me, order)
        model = messages.from_bytes(body, run.parameters)
        checks.check_round(run.plan, run.me, order.round, self._ledger.rounds_asked(name))
        if kept is None:
            self._take(order, turn, asked)
        numbers = (
            self._train(run, order, model) if isinstance(order, Train) else self._read(run, order, model)
        )
        answer = self._message(run, order.round, numbers)
        with self._ledger.together():
            self._ledger.keep(name, order.round, kind, turn, answer)
            self._ledger.commit(name, order.round)
        return answer

    def _message(self, run: Pinned, round_: int, numbers: Vector | Ints) -> bytes:
        """Return the numbers as they leave: for a secure sum, under masks that a committee takes off."""
        if not run.plan.summed:
            return messages.to_bytes(numbers)
        pool = int(run.plan.phases[run.plan.phase_of(round_)].pool[run.me])
        return self._sums.contribution(run.plan, run.join.run, round_, pool, cast(Ints, numbers))

    def _masks(self, run: Pinned, order: Survivors, body: bytes) -> bytes:
        """Return this member's masks of survivors, at any hour: no record is read, and nothing charged."""
        if not run.plan.summed:
            raise Refusal("this plan has no secure sum")
        about = order.run, order.round, order.pool
        return self._sums.masks(run.plan, *about, body, self._closed(order.run))

    def _take(self, order: Train | Read, turn: int, asked: str) -> None:
        """Reserve the round and record that an answer is begun, after charging all rounds before; or refuse.

        Guarantees:
            A round that is on record without anything released in it is over: it was passed over, or what was
            released in it is not on record any more.
        """
        run, round_ = order.run, order.round
        new = len(self._ledger.states(run)) < round_
        if new:
            self._catch_up(run, round_)
        with self._ledger.together():
            willing = self._ledger.reserve(run, round_) if new else ~self._ledger.refusals(run, round_)
            if willing.all() and not new and round_ not in self._ledger.rounds_asked(run):
                raise Refusal(f"round {round_} is over: nothing more is released in it")
            if willing.all():
                self._ledger.begin(run, round_, order.kind, turn, asked)
            else:
                self._ledger.commit(run, round_)
        if not willing.all():
            raise Refusal(f"the client's budget does not allow round {round_}")

    def _catch_up(self, run: str, round_: int) -> None:
        """Charge all rounds before this one, including interrupted ones and those not asked for."""
        states = self._ledger.states(run)
        for number, state in states:
            if state == "reserved":
                self._ledger.commit(run, number)
        for number in range(len(states) + 1, round_):
            self._ledger.pass_over(run, number)

    def _train(self, run: Pinned, order: Train, model: Vector) -> Vector | Ints:
        """Return (d,) the client's update, clipped and with its noise; on a grid, in whole steps.

        Guarantees:
            For a secure sum the update is noise alone unless the client's own coin says that it takes part.
            The work is the same either way, so that the time of an answer does not reveal the coin.
        """
        plan, me = run.plan, run.me
        phase = plan.phases[plan.phase_of(order.round)]
        source = partial(run_source, self._policy.test_seed, run.join.run, run.join.plan, order.round)
        own, clip = plan.own_noise(phase)[[me]], phase.clip[[me]]
        if plan.noise_at == "secure_sum" and phase.turns is None:
            coins = source(Purpose.COINS).uniform(len(phase.rate))
            clip = np.where(heads(coins[[me]], phase.rate[[me]]), clip, 0.0)
        noisy = None
        if phase.batch is not None:
            steps, layers = source(Purpose.STEPS, me, order.turn), plan.clipping.layers
            batch, size = phase.batch[[me]], np.array([run.join.size])
            noisy = NoisySteps(phase.steps, batch, clip, own, layers, lambda _: steps, declared=size)
        asked = Order(
            order.round, order.key, model, np.array([me]), np.array([order.turn]), noisy, plan.rounds
        )
        (part,) = run.clients.updates(asked)
        if noisy is not None:
            return np.asarray(part.change[0])
        sources = [source(Purpose.SHARES, me, order.turn)]
        if plan.grid is not None and plan.has_shares:
            return np.asarray(hand_out_on_grid(plan.grid, part.change, clip, own, sources)[0])
        layered = layers_of(plan.clipping.layers, run.parameters)
        return np.asarray(hand_out(part.change, clip, layered, own, sources)[0])

    def _read(self, run: Pinned, order: Read, model: Vector) -> Vector:
        """Return (m,) the requested statistic with its noise."""
        reading, me = run.plan.reading, run.me
        assert reading is not None
        asked = Order(order.round, 0, model, np.array([me]), np.array([0]))
        source = partial(run_source, self._policy.test_seed, run.join.run, run.join.plan, order.round)
        value = run.clients.statistics(asked, reading).value[0]
        return hand_out_statistic(value, order.noise, source(Purpose.STATISTICS, me)).astype(np.float32)

    def _require_open(self) -> None:
        if not self._policy.open_at(self._now()):
            hours = self._policy.hours.replace("-", " to ")
            raise Refusal(f"orders are accepted only from {hours}", "hours")
