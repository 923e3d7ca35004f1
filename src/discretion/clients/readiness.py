"""Readiness of each client for a run, as its guard says before anything is joined or charged."""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import TypeAdapter

from discretion.clients import messages
from discretion.clients.exchange import Exchange, Unanswered
from discretion.jsonfile import read

SHARED = frozenset({"data set", "labels", "features", "scaling", "model"})  # the same for all, or no model
MOST_REASONS, LONGEST = 20, 500  # of a guard; characters of each
NO_ANSWER = "did not answer: its guard is not running, or cannot be reached"
STRANGE = (
    "the answer is signed by {}…, which is not the client's identity key: somebody else answers in its name, "
    "or its owner made a new one. Ask the owner, and put the true contact into secure_sum.roster"
)
UNREADABLE = "answered what cannot be read: server and guards need the same version of Discretion"
_FOUND = TypeAdapter(messages.Differences)


@dataclass(frozen=True)
class Readiness:
    client: str
    answered: bool
    differs: tuple[tuple[str, str], ...]  # what, and why; empty: ready

    @property
    def ready(self) -> bool:
        return self.answered and not self.differs

    @property
    def shared(self) -> list[str]:
        """In what it differs of all that clients must share."""
        return [said for what, said in self.differs if what in SHARED]


def ask_all(
    exchange: Exchange, orders: Sequence[messages.Check], plan: bytes, timeout: float
) -> list[Readiness]:
    """Ask all guards side by side; return what each said, in the order of the orders."""
    failed, said = Unanswered(), dict[int, Readiness]()
    for place, body in exchange.send(orders, plan, failed, timeout) if orders else ():
        said[place] = Readiness(orders[place].client, True, _differs(body))
    for place, key in failed.strange.items():
        said[place] = Readiness(orders[place].client, False, (("key", STRANGE.format(key[:8])),))
    for place, reason in failed.refused.items():
        said[place] = Readiness(orders[place].client, True, (("refused", reason[:LONGEST]),))
    away = (("away", NO_ANSWER),)
    return [said.get(place, Readiness(order.client, False, away)) for place, order in enumerate(orders)]


def _differs(body: bytes) -> tuple[tuple[str, str], ...]:
    try:
        found = read(body, _FOUND).differs[:MOST_REASONS]
    except ValueError:
        return (("refused", UNREADABLE),)
    return tuple((each.what, each.said[:LONGEST]) for each in found)
