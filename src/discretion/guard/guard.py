"""The guard: for each order it checks, reserves, trains, clips, adds noise, keeps and answers, or refuses."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np

from discretion.clients.local import LocalClients
from discretion.clients.training import LocalTraining, Schedule
from discretion.clip import layers_of
from discretion.errors import BudgetError, DiscretionError, LedgerError, MessageError, PlanError, Refusal
from discretion.guard import checks
from discretion.guard.data import held_by, own_records
from discretion.guard.policy import Policy
from discretion.guard.releases import Kind, Releases
from discretion.ledger import Ledger
from discretion.messages import (
    Answer,
    AnyOrder,
    Finish,
    Join,
    Local,
    Read,
    Train,
    decode_order,
    digest,
    encode,
    from_bytes,
    to_bytes,
    verified,
)
from discretion.noise import Cryptographic, Seeded, Source
from discretion.orders import NoisySteps, Order
from discretion.plan import Plan
from discretion.population import Population
from discretion.release import hand_out, hand_out_statistic
from discretion.server import Vector
from discretion.streams import Purpose, fingerprint, run_stream
from discretion.tasks import models

log = logging.getLogger("discretion.guard")

INSIDE = "something went wrong inside the guard; its owner's log says what"


@dataclass(frozen=True)
class Pinned:
    """What was agreed on when joining a run."""

    join: Join
    operator: str
    plan: Plan
    me: int  # its number in the plan
    clients: LocalClients
    parameters: int


class Guard:
    """Of one client. Nothing but `answer` hands anything out.

    Guarantees:
        Only orders that an approved operator signed are looked at, and only by the key that joined the run.
        What the policy of today would not let in is refused, whenever it joined; a run can always be ended.
        A round is on record in the client's ledger, reserved, before its data is touched; what is handed out
        is on disk before it leaves; the same order gets the same bytes again, and another order for the same
        turn is refused. An answer whose making was interrupted is not made again: the round counts.
        Rounds in which it was not asked count as well: the coin that decided so was secret.
        A refusal costs nothing, and no order, whatever is in it, ends the guard.
        What leaves says nothing of the data but through clip and noise: errors are told without their words.
    """

    def __init__(self, policy: Policy, now: Callable[[], datetime] = datetime.now) -> None:
        self._policy, self._now = policy, now
        folder = Path(policy.folder)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._data = own_records(policy.data)
        records = len(self._data.train.labels)
        name, (epsilon, delta) = (policy.client,), np.array([[policy.epsilon], [policy.delta]])
        population = Population(name, epsilon, delta, np.array([records]))
        self._ledger = Ledger(folder / "ledger.sqlite", population, policy.rule)
        self._releases = Releases(folder / "releases.sqlite")
        self._runs: dict[str, Pinned] = {}
        if policy.size not in (None, records):
            log.warning("%s says that it has %d records, and has %d", policy.client, policy.size, records)
        if policy.test_seed is not None:
            log.warning(
                "TEST SEED IN USE: the noise of %s can be taken off again. NO PRIVACY.", policy.client
            )

    def close(self) -> None:
        self._ledger.close()
        self._releases.close()

    def answer(self, signed: bytes) -> bytes:
        """The answer to an order: what was asked for, or a refusal with its reason."""
        asked = digest(signed)
        try:
            operator, message = verified(signed)
            asked = digest(message)
            name = next((n for n, key in self._policy.operators.items() if key == operator), None)
            if name is None:
                raise Refusal("this key is not one of an operator that is approved here")
            order, body = decode_order(message)
            log.info("%s of run %s from %s", _named(order), order.run, name)
            return self._answer(order, body, operator, message)
        except (Refusal, MessageError) as no:
            reason = str(no)
            log.info("refused: %s", reason)
        except DiscretionError as problem:
            log.warning("refused: %s", problem)
            reason = "its ledger does not allow it" if isinstance(problem, LedgerError) else INSIDE
        except Exception:
            log.exception("an order failed")
            reason = INSIDE
        return encode(Answer(kind="refused", order=asked, reason=reason))

    def _answer(self, order: AnyOrder, body: bytes, operator: str, message: bytes) -> bytes:
        asked = digest(message)
        if order.client != self._policy.client:
            raise Refusal("this order is for another client")
        if isinstance(order, Join):
            self._join(order, body, operator, message)
            return encode(Answer(kind="done", order=asked))
        run = self._pinned(order, operator)
        if isinstance(order, Finish):
            self._finish(run, order)
            return encode(Answer(kind="done", order=asked))
        return self._release(run, order, body, asked)

    def _join(self, order: Join, body: bytes, operator: str, message: bytes) -> None:
        before = self._releases.joined(order.run)
        if before is not None:
            if (operator, message) != before:
                raise Refusal(f"run {order.run} was joined by another order: a run keeps its own")
            return
        self._require_open()
        checks.check_join(self._policy, order)
        run = self._set_up(order, body, operator)
        checks.check_plan(self._policy, run.plan, run.me, run.parameters)
        try:
            self._ledger.admit(order.run, run.plan, fingerprint(self._policy.test_seed))
        except BudgetError as problem:
            log.info("%s", problem)
            raise Refusal("its budget does not allow this plan") from None
        self._releases.join(order.run, operator, message)
        self._runs[order.run] = run

    def _set_up(self, order: Join, body: bytes, operator: str) -> Pinned:
        try:
            plan = Plan.from_json(body.decode())
        except (PlanError, UnicodeDecodeError):
            raise Refusal("this is not a plan that this version of Discretion reads") from None
        if plan.digest() != order.plan:
            raise Refusal("the plan is another one than the order names")
        if order.client not in plan.clients:
            raise Refusal("the plan does not have this client")
        me = plan.clients.index(order.client)
        model = models.build(order.model, self._data, seed=0)
        shapes = models.shapes_digest(model)
        if shapes not in (self._policy.models.get(order.model) or shapes,) or order.shapes != shapes:
            raise Refusal(f"the model {order.model!r} has other parameters than are approved here")
        if (parameters := len(models.flatten(model))) > self._policy.ceilings.parameters:
            raise Refusal(f"the model has {parameters} parameters, too many")
        holdings = held_by(me, len(plan.clients), len(self._data.train.labels))
        clients = LocalClients(self._data, holdings, model, _training(order.local))
        return Pinned(order, operator, plan, me, clients, parameters)

    def _pinned(self, order: Train | Read | Finish, operator: str) -> Pinned:
        if order.run not in self._runs:
            joined = self._releases.joined(order.run)
            if joined is None:
                raise Refusal(f"it has not joined run {order.run}")
            join, body = decode_order(joined.message)
            assert isinstance(join, Join)
            self._runs[order.run] = self._set_up(join, body, joined.operator)
        run = self._runs[order.run]
        if run.operator != operator:
            raise Refusal(f"run {order.run} was joined by another key")
        if order.plan != run.join.plan:
            raise Refusal(f"run {order.run} was joined with another plan")
        if not isinstance(order, Finish):  # its owner may have changed the policy since it joined
            checks.check_join(self._policy, run.join)
            checks.check_plan(self._policy, run.plan, run.me, run.parameters)
        return run

    def _finish(self, run: Pinned, order: Finish) -> None:
        name = order.run
        if self._closed(name):
            return
        done = len(self._ledger.states(name))
        if not done <= order.rounds <= run.plan.rounds:
            raise Refusal(f"run {name} cannot end after round {order.rounds}: {done} are on record")
        self._catch_up(name, order.rounds + 1)
        self._ledger.finish(name)

    def _closed(self, run: str) -> bool:
        return any(known.closed is not None for known in self._ledger.runs if known.id == run)

    def _release(self, run: Pinned, order: Train | Read, body: bytes, asked: str) -> bytes:
        """The bytes that were handed out for this order, or are now."""
        name, kind = order.run, order.kind
        turn = order.turn if isinstance(order, Train) else 0
        done = len(self._ledger.states(name))
        kept = self._releases.find(name, order.round, kind, turn)
        if kept is not None:
            if kept.asked != asked:
                raise Refusal(f"round {order.round} was asked for before, by another order")
            if kept.answer is not None:
                self._ledger.commit(name, order.round)
                return kept.answer
            if self._policy.test_seed is None or order.round != done:
                raise Refusal(f"round {order.round} is over, or was interrupted: it is not done again")
        self._require_open()
        if self._closed(name):
            raise Refusal(f"run {name} is over")
        if not 1 <= order.round <= run.plan.rounds:
            raise Refusal(f"round {order.round} is not in the plan of {run.plan.rounds} rounds")
        if order.round < done:
            raise Refusal(f"round {order.round} is out of order: {done} are on record")
        if isinstance(order, Train):
            checks.check_train(run.plan, run.me, run.join, order)
        else:
            checks.check_read(self._policy, run.plan, run.me, order)
        model = from_bytes(body, run.parameters)
        checks.check_round(run.plan, run.me, order.round, self._releases.rounds(name))
        self._take(name, order.round)
        if kept is None:
            self._releases.begin(name, order.round, kind, turn, asked)
        numbers = (
            self._train(run, order, model) if isinstance(order, Train) else self._read(run, order, model)
        )
        answer = encode(Answer(kind="done", order=asked), to_bytes(numbers))
        self._keep(name, order.round, kind, turn, answer)
        return answer

    def _keep(self, run: str, round_: int, kind: Kind, turn: int, answer: bytes) -> None:
        self._releases.keep(run, round_, kind, turn, answer)
        self._ledger.commit(run, round_)

    def _take(self, run: str, round_: int) -> None:
        """Put the round on record, with those before it in which it was not asked; or refuse."""
        if len(self._ledger.states(run)) < round_:
            self._catch_up(run, round_)
            self._ledger.reserve(run, round_)
        if self._ledger.refusals(run, round_).any():
            self._ledger.commit(run, round_)
            raise Refusal(f"its budget does not allow round {round_}")

    def _catch_up(self, run: str, round_: int) -> None:
        """Put all rounds before this one on record: those that were interrupted count, too."""
        states = self._ledger.states(run)
        for number, state in states:
            if state == "reserved":
                self._ledger.commit(run, number)
        for number in range(len(states) + 1, round_):
            self._ledger.pass_over(run, number)

    def _train(self, run: Pinned, order: Train, model: Vector) -> Vector:
        """(d,) its update, within its clip and with its noise.

        Guarantees:
            For a secure sum it is the noise alone, unless the client's own coin says that it takes part.
            The work is the same either way: how long an answer takes does not tell the coin.
        """
        plan, me = run.plan, run.me
        phase = plan.phases[plan.phase_of(order.round)]
        own = plan.own_noise(phase)[[me]]
        clip = phase.clip[[me]]
        if plan.noise_at == "secure_sum" and phase.turns is None:
            coins = self._source(run, Purpose.COINS, order.round).uniform(len(phase.rate))
            clip = np.where(coins[[me]] < phase.rate[[me]], clip, 0.0)
        noisy = None
        if phase.batch is not None:
            steps = self._source(run, Purpose.STEPS, order.round, me, order.turn)
            layers = plan.clipping.layers
            batch, size = phase.batch[[me]], np.array([run.join.size])
            noisy = NoisySteps(
                phase.steps, batch, phase.clip[[me]], own, layers, lambda _: steps, declared=size
            )
        asked = Order(
            order.round, order.key, model, np.array([me]), np.array([order.turn]), noisy, plan.rounds
        )
        (part,) = run.clients.updates(asked)
        if noisy is not None:
            return np.asarray(part.change[0])
        source = self._source(run, Purpose.SHARES, order.round, me, order.turn)
        layered = layers_of(plan.clipping.layers, run.parameters)
        return np.asarray(hand_out(part.change, clip, layered, own, [source])[0])

    def _read(self, run: Pinned, order: Read, model: Vector) -> Vector:
        """(m,) the statistic with its noise."""
        reading, me = run.plan.reading, run.me
        assert reading is not None
        asked = Order(order.round, 0, model, np.array([me]), np.array([0]))
        source = self._source(run, Purpose.STATISTICS, order.round, me)
        value = run.clients.statistics(asked, reading).value[0]
        return hand_out_statistic(value, order.noise, source).astype(np.float32)

    def _source(self, run: Pinned, purpose: Purpose, round_: int, *counter: int) -> Source:
        seed = self._policy.test_seed
        if seed is None:
            return Cryptographic()
        return Seeded(run_stream(seed, purpose, run.join.run, run.join.plan, round_, *counter))

    def _require_open(self) -> None:
        if not self._policy.open_at(self._now()):
            raise Refusal(f"it may be asked from {self._policy.hours.replace('-', ' to ')} only")


def _training(said: Local) -> LocalTraining:
    schedule = Schedule(**said.schedule.model_dump())
    return LocalTraining(**said.model_dump(exclude={"schedule"}), schedule=schedule)


def _named(order: AnyOrder) -> str:
    return f"{order.kind} round {order.round}" if isinstance(order, Train | Read) else order.kind
