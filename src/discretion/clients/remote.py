"""Remote clients, each behind its own guard: signed orders out, answers or refusals back."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from discretion.arrays import Ints
from discretion.clients import messages
from discretion.clients.exchange import Exchange, Unanswered
from discretion.clients.readiness import Readiness, ask_all
from discretion.clients.summing import Summing, contribution_of
from discretion.clients.training import LocalTraining
from discretion.clients.transport import Transport
from discretion.clients.turnout import MAJORITY, Absences, Turnout, expected_orders, needed
from discretion.errors import AnswersError, MessageError, PlanError
from discretion.ledger.heads import KnownHeads
from discretion.plan.phase import Phase
from discretion.plan.plan import Plan
from discretion.plan.population import Population
from discretion.plan.selection_rules import NUMBERS, Reading
from discretion.secure_sum.contribution import Contribution
from discretion.secure_sum.roster import Roster
from discretion.tasks.schema import Schema
from discretion.training.orders import Order, Statistics, Updates
from discretion.training.release import missing_noise
from discretion.training.server_update import Vector

AGAIN = 30.0  # seconds for a client that did not answer before
LONGEST_REASON = 200  # characters of a reason in an error

Found = TypeVar("Found")


@dataclass
class Heard:
    """Outcome of one round's orders."""

    round: int
    asked: int = 0
    answered: int = 0
    refused: dict[str, str] = field(default_factory=dict)  # reason by client
    lost: int = 0  # no answer, or an unreadable one
    missing: float = 0.0  # largest share of a pool's planned noise variance that answers lack
    expected: int = 0  # clients that the round may ask; 0: not counted
    answering: int = 0  # of these, clients that are not away
    enough: bool = True  # False: the run stopped here, before the model moved
    masked: dict[str, str] = field(
        default_factory=dict
    )  # why a pool's secure sum stayed masked, by its number

    @property
    def turnout(self) -> Turnout | None:
        """Who answered, as far as it tells nothing about coins; None where that was not counted."""
        return Turnout(self.answering, self.expected, self.round, self.enough) if self.expected else None


class RemoteClients:
    """The clients of a plan, reached by a transport.

    Guarantees:
        Each client gets a signed order with its own clip and noise; an answer counts once, and only if it
        names that order.
        If a client refuses or does not answer, the server adds its share of the noise; the divisor stays.
        In a round after whose orders fewer than `least_answers` of the clients that it may ask are left,
        nothing is released: `AnswersError`. Which clients are away depends on no coin of a client that
        answers (`Absences`).
        Of a plan for a secure sum that promises against the server, this process sees sums of pools alone:
        guards answer with contributions, and the committee takes the masks off (`Summing`). Where a pool's
        sum stays masked, nothing of it comes out, and why is on record. A plan for a secure sum that promises
        nothing against the server is answered client by client.
    """

    def __init__(
        self,
        transport: Transport,
        key: Ed25519PrivateKey,
        plan: Plan,
        population: Population,
        run: str,
        *,
        model: str,
        shapes: str,
        records: Schema,
        local: LocalTraining,
        timeout: float = 600.0,
        heads: KnownHeads | None = None,
        least_answers: float = MAJORITY,
        roster: Roster | None = None,
    ) -> None:
        if plan.sampling == "fixed_size" or plan.clipping.quantile is not None:
            raise PlanError(
                "guards accept no plan with quantile clipping or with a fixed number of clients in a round: "
                "plan with fixed clips and Poisson sampling (an independent coin for each client)"
            )
        contacts = roster.contacts if roster else {}
        identities = {name: contact.identity.hex() for name, contact in contacts.items()}
        self._exchange, self._least = Exchange(transport, key, timeout, heads, identities), least_answers
        self._summing = Summing(plan, roster, run, self._exchange) if plan.summed else None
        self._plan, self._population, self._run = plan, population, run
        self._model, self._shapes, self._records = model, shapes, records
        self._local = messages.Local(**asdict(local))
        self._text = plan.to_json().encode()
        self._number = {name: i for i, name in enumerate(population.client)}
        self._joined: set[int] = set()
        self._absences = Absences()
        self._away_before: set[int] = set()
        self.heard: list[Heard] = []
        self._taken = 0

    def taken(self) -> list[Heard]:
        """Return the rounds' outcomes since the last call."""
        new, self._taken = self.heard[self._taken :], len(self.heard)
        return new

    def join(self, clients: Ints | None = None) -> dict[str, str]:
        """Ask those of the clients (default: all) to join that have not; return reasons of refusal by name.

        Clients that do not answer are asked again in a later round.
        """
        asked = range(len(self._population)) if clients is None else np.unique(clients).tolist()
        return self._call([client for client in asked if client not in self._joined])[1]

    def check(self, timeout: float) -> list[Readiness]:
        """Ask every client that the plan may ask whether it would join, and why not; nothing is charged."""
        expected = np.sum([phase.expected for phase in self._plan.phases], axis=0)
        people, orders = self._population, []
        for client in np.flatnonzero(expected > 0).tolist():
            budget = {"epsilon": float(people.epsilon[client]), "delta": float(people.delta[client])}
            orders.append(messages.Check(**self._joining(client), **budget))
        return ask_all(self._exchange, orders, self._text, timeout)

    def begin(self, round_: int) -> None:
        """Ask all clients to join before the first of the rounds that are left; raise where too few do."""
        self.heard.append(Heard(round_))
        self._roll_call()
        self._away_before = self._absences.away
        self._require_enough()

    def updates(self, order: Order) -> Iterator[Updates]:
        phase, heard, asked = self._begin(order)
        own = self._plan.own_noise(phase)
        orders = [
            messages.Train(
                **self._about(client),
                round=order.round,
                turn=turn,
                key=order.key,
                clip=float(phase.clip[client]),
                noise=float(own[client]),
                local=self._local,
            )
            for client, turn in zip(order.clients[asked].tolist(), order.turn[asked].tolist(), strict=True)
        ]
        shares = np.zeros(len(phase.rate), dtype=np.int64)
        parts = self._summed if self._summing else self._one_by_one
        for part in parts(orders, order, phase):
            shares[part.clients] += 1
            yield part
        if self._plan.has_shares:
            heard.missing = float(missing_noise(self._plan, phase, shares).max())
        new = self._absences.away - self._away_before
        if (
            len(new) > (1 - self._least) * expected_orders(self._plan, phase).sum()
            or not self._turnout().enough
        ):
            self._roll_call()
        self._require_enough()

    def _one_by_one(self, orders: Sequence[messages.Train], order: Order, phase: Phase) -> Iterator[Updates]:
        """Yield each client's answer."""
        size = len(order.model)
        whole = self._plan.grid is not None and self._plan.has_shares

        def read(place: int, body: bytes) -> Vector | Ints:
            return messages.whole_from_bytes(body, size) if whole else _finite(body, size)

        for place, change in self._ask(orders, order.model, read):
            yield Updates(np.array([self._number[orders[place].client]]), change[None], handed_out=True)

    def _summed(self, orders: Sequence[messages.Train], order: Order, phase: Phase) -> Iterator[Updates]:
        """Yield each pool's secure sum; where one stays masked, note why."""
        assert self._summing is not None
        heard = self.heard[-1]
        pools = [int(phase.pool[self._number[each.client]]) for each in orders]
        terms = {pool: self._summing.terms(order.round, pool) for pool in sorted(set(pools))}
        came: dict[int, list[Contribution]] = {pool: [] for pool in terms}

        def read(place: int, body: bytes) -> Contribution:
            return contribution_of(orders[place].client, body, terms[pools[place]])

        for place, found in self._ask(orders, order.model, read):
            came[pools[place]].append(found)
        for pool, contributions in came.items():
            try:
                total = self._summing.unmasked(terms[pool], contributions)
            except AnswersError as problem:
                heard.masked[str(pool)] = str(problem)
                continue
            who = np.array(sorted(self._number[each.letter.sender] for each in contributions))
            yield Updates(who, total[None], handed_out=True, summed=True)

    def statistics(self, order: Order, reading: Reading) -> Statistics:
        phase, _, asked = self._begin(order)
        read = np.zeros(len(phase.rate)) if phase.read is None else phase.read
        orders = [
            messages.Read(
                **self._about(client),
                round=order.round,
                rule=reading.rule,
                bound=reading.bound,
                noise=float(read[client]) * reading.sensitivity,
            )
            for client in order.clients[asked].tolist()
        ]

        def some(place: int, body: bytes) -> Vector:
            return _finite(body, len(body) // 4)

        found = {
            int(asked[place]): numbers.astype(np.float64)
            for place, numbers in self._ask(orders, order.model, some)
        }
        wide = Counter(len(row) for row in found.values() if len(row) >= NUMBERS[reading.rule])
        width = wide.most_common(1)[0][0] if wide else 1
        rows = {place: row for place, row in sorted(found.items()) if len(row) == width}
        value = np.array(list(rows.values())).reshape(-1, width)
        return Statistics(np.array(list(rows), dtype=np.int64), value, handed_out=True)

    def finish(self, rounds: int) -> dict[str, str]:
        """Tell all clients that the run is finished; return reasons of refusal by client name."""
        failed, everybody = Unanswered(), range(len(self._population))
        orders = [messages.Finish(**self._about(client), rounds=rounds) for client in everybody]
        for _ in self._exchange.send(orders, b"", failed):
            pass
        return {orders[place].client: why for place, why in failed.refused.items()}

    def _begin(self, order: Order) -> tuple[Phase, Heard, Ints]:
        """Ask clients to join that have not; return phase, outcome, and (j,) places of clients in the run."""
        phase = self._plan.phases[self._plan.phase_of(order.round)]
        if not self.heard or self.heard[-1].round != order.round:
            self.heard.append(Heard(order.round))
            self._absences.next_round(expected_orders(self._plan, phase))
            self._call_again(sorted(self._absences.silent), min(AGAIN, self._exchange.timeout))
            self._away_before = self._absences.away
        heard, clients = self.heard[-1], order.clients
        refused = self.join(clients)
        heard.refused |= refused
        ready = np.isin(clients, list(self._joined))
        heard.asked += len(clients)
        declined = {self._number[name] for name in refused}
        silent = set(clients[~ready].tolist()) - declined
        heard.lost += len(silent)
        self._absences.failed(declined, silent)
        return phase, heard, np.flatnonzero(ready)

    def _about(self, client: int) -> dict[str, str]:
        names = self._population.client
        return {"client": names[client], "run": self._run, "plan": self._plan.digest()}

    def _joining(self, client: int) -> dict[str, Any]:
        """Return all that a client is to agree to, besides the plan."""
        return {
            **self._about(client),
            "size": int(self._population.size[client]),
            "model": self._model,
            "shapes": self._shapes,
            "records": self._records,
            "local": self._local,
            "roster": self._summing.roster if self._summing else "",
        }

    def _ask(
        self,
        orders: Sequence[messages.Train | messages.Read],
        model: Vector,
        read: Callable[[int, bytes], Found],
    ) -> Iterator[tuple[int, Found]]:
        """Send orders of a round; yield the place of each answer that `read` can read, and what it finds.

        An answer that cannot be read counts as lost.
        """
        heard, failed = self.heard[-1], Unanswered()
        for place, body in self._exchange.send(orders, messages.to_bytes(model), failed):
            try:
                found = read(place, body)
            except MessageError:
                failed.lost.add(place)
                continue
            heard.answered += 1
            yield place, found
        heard.refused |= {orders[place].client: why for place, why in failed.refused.items()}
        heard.lost += len(failed.lost)
        refused, lost = (
            [self._number[orders[place].client] for place in places]
            for places in (failed.refused, failed.lost)
        )
        self._absences.failed(refused, lost)

    def _call(self, clients: Sequence[int], timeout: float | None = None) -> tuple[set[int], dict[str, str]]:
        """Send join orders; return the clients that joined, and reasons of refusal by client name."""
        orders = [messages.Join(**self._joining(client)) for client in clients]
        failed = Unanswered()
        answers = self._exchange.send(orders, self._text, failed, timeout) if orders else ()
        joined = {clients[place] for place, _ in answers}
        self._joined |= joined
        return joined, {orders[place].client: why for place, why in failed.refused.items()}

    def _call_again(self, clients: Sequence[int], timeout: float | None = None) -> None:
        """Ask clients, whatever their coins, to join once more: those that do are not away."""
        joined, refused = self._call(clients, timeout)
        self._absences.called(clients, joined, {self._number[name] for name in refused})
        self.heard[-1].refused |= refused

    def _roll_call(self) -> None:
        """Ask all clients, so that no client is taken for present because its coin did not come up."""
        self._call_again(range(len(self._population)))

    def _turnout(self) -> Turnout:
        round_ = self.heard[-1].round
        phase = self._plan.phases[self._plan.phase_of(round_)]
        return self._absences.turnout(round_, np.flatnonzero(phase.expected > 0), self._least)

    def _require_enough(self) -> None:
        """Note who answered; raise where too few did."""
        heard, found = self.heard[-1], self._turnout()
        heard.expected, heard.answering, heard.enough = found.expected, found.answering, found.enough
        if found.enough:
            return
        reasons = Counter(heard.refused.values()).most_common(1)
        often = f" (most often: {reasons[0][0][:LONGEST_REASON]!r})" if reasons else ""
        raise AnswersError(
            f"{found.words} at round {found.round}, and {needed(self._least, found.expected)} must "
            f"(clients.least_answers = {self._least:g}): the run stopped before the model moved. "
            f"{len(heard.refused)} refused{often}. Start the guards, or settle with their owners why they "
            "refuse, and resume the run. If clients left for good, plan the rest without them (replan)."
        )


def _finite(body: bytes, size: int) -> Vector:
    """Return (size,) numbers; raise `MessageError` where one is not finite, which no guard hands out."""
    numbers = messages.from_bytes(body, size)
    if not np.isfinite(numbers).all():
        raise MessageError("found a number that is not finite")
    return numbers
