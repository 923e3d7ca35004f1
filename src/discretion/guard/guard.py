"""Answering orders: check, reserve, train, clip, add noise, keep, release; or refuse with a reason."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial

import numpy as np

from discretion.clients import messages
from discretion.clients.local_clients import LocalClients
from discretion.clients.messages import Answer, Finish, Join, Read, Train
from discretion.clients.training import LocalTraining, Schedule
from discretion.errors import (
    BudgetError,
    DiscretionError,
    LedgerError,
    MessageError,
    PlanError,
    Refusal,
    StorageError,
)
from discretion.guard import checks
from discretion.guard.data import held_by, own_records
from discretion.guard.own_ledger import open_ledger
from discretion.guard.plan_size import UNREADABLE, check_size
from discretion.guard.policy import Policy
from discretion.plan.plan import Plan
from discretion.randomness.sources import heads, run_source
from discretion.randomness.streams import Purpose, fingerprint
from discretion.tasks import models
from discretion.training.clip import layers_of
from discretion.training.orders import NoisySteps, Order
from discretion.training.release import hand_out, hand_out_statistic
from discretion.training.server_update import Vector

log = logging.getLogger("discretion.guard")

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
        joined it.
        A joined run that today's policy would refuse is refused from now on; a run can always be finished.
        A round is reserved in the client's ledger before its records are read. An answer is on disk before
        it leaves. A repeated order gets the same numbers; another order for the same turn is refused. An
        answer interrupted while it was made is not made again, and its round is charged.
        Rounds in which the client was not asked are charged as well: the coin that decided so was secret.
        A refusal costs nothing, and no order, whatever its content, ends the guard.
        Once an order names a head of its ledger that is not on record, everything is refused until the owner
        has said what was lost.
        An answer depends on the records only through clip and noise; the text of an error stays in the log.
    """

    def __init__(self, policy: Policy, now: Callable[[], datetime] = datetime.now) -> None:
        self._policy, self._now = policy, now
        self._data = own_records(policy.data)
        records = len(self._data.train.labels)
        self._ledger = open_ledger(policy)
        self._runs: dict[str, Pinned] = {}
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
        asked = messages.digest(signed)
        try:
            operator, message, heads = messages.verified(signed)
            asked = messages.digest(message)
            name = next((n for n, key in self._policy.operators.items() if key == operator), None)
            if name is None:
                raise Refusal("operator key not listed in this guard's [operators]")
            order, body = messages.decode_order(message)
            found = b""
            where = f" round {order.round}" if isinstance(order, Train | Read) else ""
            log.info("%s%s of run %s from %s", order.kind, where, order.run, name)
            if order.client != self._policy.client:
                raise Refusal("the order is addressed to another client")
            self._ledger.compare(heads)
            if self._ledger.is_lost:
                raise Refusal(LOST)
            if isinstance(order, Join):
                self._join(order, body, operator, message)
            elif isinstance(order, Finish):
                self._finish(self._pinned(order, operator), order)
            else:
                found = self._release(self._pinned(order, operator), order, body, asked)
            return messages.encode(Answer(kind="done", order=asked, head=self._ledger.head), found)
        except (Refusal, MessageError) as no:
            reason = str(no)
            log.info("refused: %s", reason)
        except StorageError as problem:
            log.error("refused: %s", problem)
            reason = FAULT.format(problem.fault)
        except DiscretionError as problem:
            log.warning("refused: %s", problem)
            reason = "the client's ledger refuses this order" if isinstance(problem, LedgerError) else INSIDE
        except Exception:
            log.exception("order failed")
            reason = INSIDE
        return messages.encode(Answer(kind="refused", order=asked, reason=reason))

    def _join(self, order: Join, body: bytes, operator: str, message: bytes) -> None:
        before = self._ledger.joined(order.run)
        if before is not None:
            if (operator, message) != before:
                raise Refusal(f"run {order.run} was joined with another order, which stays in force")
            return
        self._require_open()
        checks.check_join(self._policy, order)
        check_size(self._policy.ceilings, body)
        run = self._set_up(order, body, operator)
        checks.check_plan(self._policy, run.plan, run.me, run.parameters)
        try:
            with self._ledger.together():
                self._ledger.admit(order.run, run.plan, fingerprint(self._policy.test_seed))
                self._ledger.join(order.run, operator, message)
        except BudgetError as problem:
            log.info("%s", problem)
            raise Refusal("the client's budget does not allow this plan") from None
        self._runs[order.run] = run

    def _set_up(self, order: Join, body: bytes, operator: str) -> Pinned:
        try:
            plan = Plan.from_json(body.decode())
        except (PlanError, UnicodeDecodeError):
            raise Refusal(UNREADABLE) from None
        if plan.digest() != order.plan:
            raise Refusal("the plan's digest is not the one in the order")
        if order.client not in plan.clients:
            raise Refusal("the plan does not list this client")
        me = plan.clients.index(order.client)
        model = models.build(order.model, self._data, seed=0)
        shapes = models.shapes_digest(model)
        if shapes not in (self._policy.models.get(order.model) or shapes,) or order.shapes != shapes:
            raise Refusal(
                f"model {order.model!r} has other parameter shapes than this guard's [models] allows"
            )
        if (parameters := len(models.flatten(model))) > self._policy.ceilings.parameters:
            raise Refusal(f"the model has {parameters} parameters, more than the policy allows")
        holdings = held_by(me, len(plan.clients), len(self._data.train.labels))
        schedule = Schedule(**order.local.schedule.model_dump())
        training = LocalTraining(**order.local.model_dump(exclude={"schedule"}), schedule=schedule)
        clients = LocalClients(self._data, holdings, model, training)
        return Pinned(order, operator, plan, me, clients, parameters)

    def _pinned(self, order: Train | Read | Finish, operator: str) -> Pinned:
        if order.run not in self._runs:
            joined = self._ledger.joined(order.run)
            if joined is None:
                raise Refusal(f"this guard has not joined run {order.run}: send a join order first")
            join, body = _stored(order.run, joined.message)
            if not isinstance(order, Finish):  # before the model's code is imported
                checks.check_join(self._policy, join)
                check_size(self._policy.ceilings, body)
            self._runs[order.run] = self._set_up(join, body, joined.operator)
        run = self._runs[order.run]
        if run.operator != operator:
            raise Refusal(f"run {order.run} was joined with another operator key")
        if order.plan != run.join.plan:
            raise Refusal(f"run {order.run} was joined with another plan")
        if not isinstance(order, Finish):  # the policy may have changed since the run was joined
            checks.check_join(self._policy, run.join)
            checks.check_plan(self._policy, run.plan, run.me, run.parameters)
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
        answer = messages.to_bytes(numbers)
        with self._ledger.together():
            self._ledger.keep(name, order.round, kind, turn, answer)
            self._ledger.commit(name, order.round)
        return answer

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

    def _train(self, run: Pinned, order: Train, model: Vector) -> Vector:
        """Return (d,) the client's update, clipped and with its noise.

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
        layered = layers_of(plan.clipping.layers, run.parameters)
        sources = [source(Purpose.SHARES, me, order.turn)]
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
            raise Refusal(f"orders are accepted only from {self._policy.hours.replace('-', ' to ')}")


def _stored(run: str, message: bytes) -> tuple[Join, bytes]:
    """Return the join order that was stored, and its plan; name the fault where it cannot be read."""
    try:
        join, body = messages.decode_order(message)
        if not isinstance(join, Join):
            raise MessageError(f"it is a {join.kind} order")
        Plan.from_json(body.decode())
        return join, body
    except (MessageError, PlanError, UnicodeDecodeError) as found:
        problem = str(found)
    raise StorageError(
        f"the order by which run {run} was joined cannot be read from the ledger: {problem}. It is damaged, "
        "or of another version of Discretion: go back to that version, or end this run at the operator.",
        f"the order by which it joined run {run} is damaged, or of another version of Discretion",
    )
