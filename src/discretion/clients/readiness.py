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
UNREADABLE = "answered what cannot be read: server and guards need the same version of Discretion"
_FOUND = TypeAdapter(messages.Differences)


@dataclass(frozen=True)
class Readiness:
    client: str
    answered: bool
    differs: tuple[tuple[str, str], ...]  # what, and why; empty: ready
    turns: tuple[int, int] | None = None  # that its budget allows, and of how many; None: not counted

    @property
    def ready(self) -> bool:
        return self.answered and not self.differs

    @property
    def cut_short(self) -> bool:
        """Whether it is ready, but not for all of its turns."""
        return self.ready and self.turns is not None and self.turns[0] < self.turns[1]

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
        said[place] = _read(orders[place].client, body)
    for place, reason in failed.refused.items():
        said[place] = Readiness(orders[place].client, True, (("refused", reason[:LONGEST]),))
    away = (("away", NO_ANSWER),)
    return [said.get(place, Readiness(order.client, False, away)) for place, order in enumerate(orders)]


def _read(client: str, body: bytes) -> Readiness:
    try:
        found = read(body, _FOUND)
    except ValueError:
        return Readiness(client, True, (("refused", UNREADABLE),))
    differs = tuple((each.what, each.said[:LONGEST]) for each in found.differs[:MOST_REASONS])
    if found.turns is None or found.turns_planned is None:
        return Readiness(client, True, differs)
    return Readiness(client, True, differs, (found.turns, found.turns_planned))
