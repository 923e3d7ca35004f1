"""Remote clients, each behind its own guard: signed orders out, answers or refusals back."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from discretion.arrays import Floats, Ints
from discretion.clients import messages
from discretion.clients.training import LocalTraining
from discretion.clients.transport import Transport
from discretion.errors import MessageError, PlanError
from discretion.ledger.heads import KnownHeads
from discretion.ledger.keys import Head
from discretion.plan.phase import Phase
from discretion.plan.plan import Plan
from discretion.plan.population import Population
from discretion.plan.selection_rules import NUMBERS, Reading
from discretion.training.orders import Order, Statistics, Updates
from discretion.training.release import missing_noise


@dataclass
class Heard:
    """Outcome of one round's orders."""

    round: int
    asked: int = 0
    answered: int = 0
    refused: dict[str, str] = field(default_factory=dict)  # reason by client
    lost: int = 0  # no answer, or an unreadable one
    missing: float = 0.0  # largest share of a pool's planned noise variance that answers lack

    def unreadable(self) -> None:
        """Reclassify an unreadable answer as lost."""
        self.answered, self.lost = self.answered - 1, self.lost + 1


class RemoteClients:
    """The clients of a plan, reached by a transport.

    Guarantees:
        Each client gets a signed order with its own clip and noise; an answer counts once, and only if it
        names that order.
        If a client refuses or does not answer, the server adds its share of the noise; the divisor stays.
        This is not a secure sum: the server sees each answer to a plan for a secure sum alone, and nothing is
        promised against the server. Guards join such plans only if their policy trusts the server, or says
        that a secure sum is provided by other means.
        Every order carries the last head that is known of the guard's ledger: a guard whose ledger went back
        in time sees it, and refuses.
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
        local: LocalTraining,
        timeout: float = 600.0,
        heads: KnownHeads | None = None,
    ) -> None:
        if plan.sampling == "fixed_size" or plan.clipping.quantile is not None:
            raise PlanError(
                "guards accept no plan with quantile clipping or with a fixed number of clients in a round: "
                "plan with fixed clips and Poisson sampling (an independent coin for each client)"
            )
        self._transport, self._key, self._timeout = transport, key, timeout
        self._plan, self._population, self._run = plan, population, run
        self._model, self._shapes, self._local = model, shapes, messages.Local(**asdict(local))
        self._text = plan.to_json().encode()
        self._joined: set[int] = set()
        self._heads = heads or KnownHeads()
        self.heard: list[Heard] = []
        self._taken = 0

    def taken(self) -> list[dict[str, Any]]:
        """Return the rounds' outcomes since the last call."""
        new = [asdict(heard) for heard in self.heard[self._taken :]]
        self._taken = len(self.heard)
        return new

    def join(self, clients: Ints | None = None) -> dict[str, str]:
        """Ask clients (default: all) to join the run; return reasons of refusal by client name.

        Clients that do not answer are asked again in a later round.
        """
        asked = range(len(self._population)) if clients is None else np.unique(clients).tolist()
        wanted = [client for client in asked if client not in self._joined]
        orders = [
            messages.Join(
                **self._about(client),
                size=int(self._population.size[client]),
                model=self._model,
                shapes=self._shapes,
                local=self._local,
            )
            for client in wanted
        ]
        heard = Heard(0)
        for place, _ in self._exchange(orders, self._text, heard):
            self._joined.add(wanted[place])
        return heard.refused

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
        for place, body in self._exchange(orders, messages.to_bytes(order.model), heard):
            try:
                change = messages.from_bytes(body, len(order.model))
            except MessageError:
                heard.unreadable()
                continue
            shares[order.clients[asked[place]]] += 1
            yield Updates(order.clients[asked[place : place + 1]], change[None], handed_out=True)
        if self._plan.noise_at in ("clients", "secure_sum"):
            heard.missing = float(missing_noise(self._plan, phase, shares).max())

    def statistics(self, order: Order, reading: Reading) -> Statistics:
        phase, heard, asked = self._begin(order)
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
        found: dict[int, Floats] = {}
        for place, body in self._exchange(orders, messages.to_bytes(order.model), heard):
            try:
                numbers = messages.from_bytes(body, len(body) // 4)
                found[int(asked[place])] = numbers.astype(np.float64)
            except MessageError:
                heard.unreadable()
        wide = Counter(len(row) for row in found.values() if len(row) >= NUMBERS[reading.rule])
        width = wide.most_common(1)[0][0] if wide else 1
        rows = {place: row for place, row in sorted(found.items()) if len(row) == width}
        value = np.array(list(rows.values())).reshape(-1, width)
        return Statistics(np.array(list(rows), dtype=np.int64), value, handed_out=True)

    def finish(self, rounds: int) -> dict[str, str]:
        """Tell all joined clients that the run is finished; return reasons of refusal by client name."""
        heard = Heard(rounds)
        orders = [messages.Finish(**self._about(client), rounds=rounds) for client in sorted(self._joined)]
        for _ in self._exchange(orders, b"", heard):
            pass
        return heard.refused

    def _begin(self, order: Order) -> tuple[Phase, Heard, Ints]:
        """Ask clients to join that have not; return phase, outcome, and (j,) places of clients in the run."""
        if not self.heard or self.heard[-1].round != order.round:
            self.heard.append(Heard(order.round))
        heard, clients = self.heard[-1], order.clients
        heard.refused |= self.join(clients)
        ready = np.isin(clients, list(self._joined))
        heard.asked += len(clients)
        silent = {self._population.client[c] for c in clients[~ready].tolist()} - set(heard.refused)
        heard.lost += len(silent)
        return self._plan.phases[self._plan.phase_of(order.round)], heard, np.flatnonzero(ready)

    def _about(self, client: int) -> dict[str, str]:
        names = self._population.client
        return {"client": names[client], "run": self._run, "plan": self._plan.digest()}

    def _exchange(
        self, orders: Sequence[messages.AnyOrder], body: bytes, heard: Heard
    ) -> Iterator[tuple[int, bytes]]:
        """Send orders; yield the place and body of each answer, and count refusals and lost orders."""
        encoded = [messages.encode(order, body) for order in orders]
        heads = [self._heads.of(order.client) for order in orders]
        signed = (
            messages.sign(message, self._key, known) for message, known in zip(encoded, heads, strict=True)
        )
        sent = list(zip((order.client for order in orders), signed, strict=True))
        waiting = {place: messages.digest(message) for place, message in enumerate(encoded)}
        learned: list[tuple[str, list[Head], Head]] = []
        try:
            for place, content in self._transport.exchange(sent, self._timeout):
                try:
                    answer, found = messages.decode_answer(content)
                except MessageError:
                    continue
                if waiting.get(place) != answer.order:
                    continue
                del waiting[place]
                if answer.head is not None and answer.head.is_genuine():
                    learned.append((orders[place].client, heads[place], answer.head))
                if answer.kind == "refused":
                    heard.refused[orders[place].client] = answer.reason
                else:
                    heard.answered += 1
                    yield place, found
        finally:
            self._heads.learn(learned)
        heard.lost += len(waiting)
