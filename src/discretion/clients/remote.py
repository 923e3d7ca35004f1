"""Clients elsewhere, each behind its own guard: signed orders go out, answers or refusals come back."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from discretion.clients.training import LocalTraining
from discretion.clients.transport import Transport
from discretion.errors import MessageError, PlanError
from discretion.messages import (
    Answer,
    AnyOrder,
    Finish,
    Join,
    Local,
    Read,
    Train,
    decode_answer,
    digest,
    encode,
    from_bytes,
    sign,
    to_bytes,
)
from discretion.orders import Order, Statistics, Updates
from discretion.pick import NUMBERS, Reading
from discretion.plan import Plan
from discretion.population import Floats, Ints, Population
from discretion.release import missing_noise


@dataclass
class Heard:
    """What became of the orders of one round."""

    round: int
    asked: int = 0
    answered: int = 0
    refused: dict[str, str] = field(default_factory=dict)  # by client: why
    lost: int = 0  # nothing came, or nothing that could be read
    missing: float = 0.0  # the most of a pool's planned noise, as variance, that answers did not bring along

    def unreadable(self) -> None:
        """An answer that was counted turns out to say nothing: it is lost."""
        self.answered, self.lost = self.answered - 1, self.lost + 1


class RemoteClients:
    """The clients of a plan, by a transport.

    Guarantees:
        A client gets its own order, with its own clip and noise, signed; an answer counts only if it names
        that order, and once.
        Who refuses or does not answer leaves its share of the noise to the server, and the divisor as it is.
        This is no secure sum: what clients hand out for one is seen one by one, and promised nothing against
        the server. Guards take part only if their policies say that this is so, or that it is not.
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
    ) -> None:
        if plan.sampling == "fixed_size" or plan.clipping.quantile is not None:
            raise PlanError(
                "guards take no plan whose clips follow a quantile, or that draws a fixed number of clients: "
                "plan with fixed clips, and an independent coin for each client"
            )
        self._transport, self._key, self._timeout = transport, key, timeout
        self._plan, self._population, self._run = plan, population, run
        self._model, self._shapes, self._local = model, shapes, Local(**asdict(local))
        self._text = plan.to_json().encode()
        self._joined: set[int] = set()
        self.heard: list[Heard] = []
        self._taken = 0

    def taken(self) -> list[dict[str, Any]]:
        """What was heard since this was last asked for."""
        new = [asdict(heard) for heard in self.heard[self._taken :]]
        self._taken = len(self.heard)
        return new

    def join(self, clients: Ints | None = None) -> dict[str, str]:
        """Ask clients, all unless said, into the run; who refuses, and why. Who is silent is asked later."""
        wanted = np.arange(len(self._population)) if clients is None else clients
        wanted = np.array([c for c in np.unique(wanted).tolist() if c not in self._joined], dtype=np.int64)
        orders = [
            Join(
                **self._about(client),
                size=int(self._population.size[client]),
                model=self._model,
                shapes=self._shapes,
                local=self._local,
            )
            for client in wanted.tolist()
        ]
        heard = Heard(0)
        for place, _ in self._exchange(wanted, orders, self._text, heard):
            self._joined.add(int(wanted[place]))
        return heard.refused

    def updates(self, order: Order) -> Iterator[Updates]:
        heard = self._listen(order.round)
        asked = self._ready(order.clients, heard)
        phase = self._plan.phases[self._plan.phase_of(order.round)]
        own = self._plan.own_noise(phase)
        orders = [
            Train(
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
        for place, body in self._exchange(order.clients[asked], orders, to_bytes(order.model), heard):
            try:
                change = from_bytes(body, len(order.model))
            except MessageError:
                heard.unreadable()
                continue
            shares[order.clients[asked[place]]] += 1
            yield Updates(order.clients[asked[place : place + 1]], change[None], handed_out=True)
        if self._plan.noise_at in ("clients", "secure_sum"):
            heard.missing = float(missing_noise(self._plan, phase, shares).max())

    def statistics(self, order: Order, reading: Reading) -> Statistics:
        heard = self._listen(order.round)
        asked = self._ready(order.clients, heard)
        phase = self._plan.phases[self._plan.phase_of(order.round)]
        read = np.zeros(len(phase.rate)) if phase.read is None else phase.read
        orders = [
            Read(
                **self._about(client),
                round=order.round,
                rule=reading.rule,
                bound=reading.bound,
                noise=float(read[client]) * reading.sensitivity,
            )
            for client in order.clients[asked].tolist()
        ]
        found: dict[int, Floats] = {}
        for place, body in self._exchange(order.clients[asked], orders, to_bytes(order.model), heard):
            try:
                found[int(asked[place])] = from_bytes(body, len(body) // 4).astype(np.float64)
            except MessageError:
                heard.unreadable()
        wide = Counter(len(row) for row in found.values() if len(row) >= NUMBERS[reading.rule])
        width = wide.most_common(1)[0][0] if wide else 1
        rows = {place: row for place, row in sorted(found.items()) if len(row) == width}
        value = np.array(list(rows.values())).reshape(-1, width)
        return Statistics(np.array(list(rows), dtype=np.int64), value, handed_out=True)

    def finish(self, rounds: int) -> dict[str, str]:
        """Tell all that joined that the run is over after so many rounds."""
        joined = np.array(sorted(self._joined), dtype=np.int64)
        heard = Heard(rounds)
        orders = [Finish(**self._about(client), rounds=rounds) for client in joined.tolist()]
        for _ in self._exchange(joined, orders, b"", heard):
            pass
        return heard.refused

    def _listen(self, round_: int) -> Heard:
        if not self.heard or self.heard[-1].round != round_:
            self.heard.append(Heard(round_))
        return self.heard[-1]

    def _ready(self, clients: Ints, heard: Heard) -> Ints:
        """(j,) which of the clients asked are in the run, after those that are not were asked to join."""
        heard.refused |= self.join(clients)
        ready = np.isin(clients, list(self._joined))
        heard.asked += len(clients)
        silent = {self._population.client[c] for c in clients[~ready].tolist()} - set(heard.refused)
        heard.lost += len(silent)
        return np.flatnonzero(ready)

    def _about(self, client: int) -> dict[str, str]:
        names = self._population.client
        return {"client": names[client], "run": self._run, "plan": self._plan.digest()}

    def _exchange(
        self, clients: Ints, orders: Sequence[AnyOrder], body: bytes, heard: Heard
    ) -> Iterator[tuple[int, bytes]]:
        """Which order was answered, and what with; refusals and silence are counted."""
        messages = [encode(order, body) for order in orders]
        names = [self._population.client[client] for client in clients.tolist()]
        sent = [(name, sign(message, self._key)) for name, message in zip(names, messages, strict=True)]
        waiting = {place: digest(message) for place, message in enumerate(messages)}
        for place, content in self._transport.exchange(sent, self._timeout):
            answer, found = _answered(content)
            if answer is None or waiting.get(place) != answer.order:
                continue
            del waiting[place]
            if answer.kind == "refused":
                heard.refused[names[place]] = answer.reason
            else:
                heard.answered += 1
                yield place, found
        heard.lost += len(waiting)


def _answered(content: bytes) -> tuple[Answer | None, bytes]:
    try:
        return decode_answer(content)
    except MessageError:
        return None, b""
