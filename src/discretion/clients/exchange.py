"""Exchange of signed orders for guards' signed answers, with the heads of guards' ledgers."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from discretion.clients import messages
from discretion.clients.transport import Transport
from discretion.errors import MessageError
from discretion.ledger.heads import KnownHeads
from discretion.ledger.keys import Head


@dataclass
class Unanswered:
    """What came of orders that were not answered with what was asked for, by their places."""

    refused: dict[int, str] = field(default_factory=dict)  # reason
    lost: set[int] = field(default_factory=set)
    strange: dict[int, str] = field(default_factory=dict)  # of these, answered by this other key


class Exchange:
    """An operator's line to guards.

    Guarantees:
        An answer counts once, and only if it names its order and the client's identity key signed it: the one
        that `identities` has, or else the one that answered first.
        Every order carries the last heads that are known of the guard's ledger: a guard whose ledger went
        back in time sees it, and refuses.
    """

    def __init__(
        self,
        transport: Transport,
        key: Ed25519PrivateKey,
        timeout: float,
        heads: KnownHeads | None = None,
        identities: Mapping[str, str] | None = None,
    ) -> None:
        self._transport, self._key = transport, key
        self.timeout, self.operator = timeout, messages.public_bytes(key).hex()
        self._heads = heads or KnownHeads()
        self._identities = dict(identities or {})

    def send(
        self,
        orders: Sequence[messages.AnyOrder],
        body: bytes,
        unanswered: Unanswered,
        timeout: float | None = None,
    ) -> Iterator[tuple[int, bytes]]:
        """Send orders; yield the place and body of each answer, and note refusals and lost orders."""
        encoded = [messages.encode(order, body) for order in orders]
        heads = [self._heads.of(order.client) for order in orders]
        signed = (
            messages.sign(message, self._key, known) for message, known in zip(encoded, heads, strict=True)
        )
        sent = list(zip((order.client for order in orders), signed, strict=True))
        waiting = {place: messages.digest(message) for place, message in enumerate(encoded)}
        learned: list[tuple[str, list[Head], Head]] = []
        met: dict[str, str] = {}
        try:
            for place, content in self._transport.exchange(sent, timeout or self.timeout):
                try:
                    answer, found = messages.decode_answer(content)
                except MessageError:
                    continue
                if waiting.get(place) != answer.order:
                    continue
                client, key = orders[place].client, messages.signer(content)
                known = self._identities.get(client) or self._heads.identity(client)
                if key != (known or met.setdefault(client, key)):
                    unanswered.strange[place] = key
                    continue
                del waiting[place]
                unanswered.strange.pop(place, None)
                if answer.head is not None and answer.head.is_genuine():
                    learned.append((client, heads[place], answer.head))
                if answer.kind == "refused":
                    unanswered.refused[place] = answer.reason
                else:
                    yield place, found
        finally:
            self._heads.meet(met)
            self._heads.learn(learned)
        unanswered.lost |= set(waiting)
