"""Signed statements of guards on what each has charged itself for a run."""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import TypeAdapter

from discretion.clients import messages
from discretion.clients.exchange import Exchange, Unanswered
from discretion.clients.messages import Declare
from discretion.jsonfile import read
from discretion.ledger.statement import SignedStatement

LONGEST = 500  # characters of a reason
_SIGNED = TypeAdapter(SignedStatement)


@dataclass(frozen=True)
class Stated:
    """What came back from one client's guard."""

    client: str
    signed: SignedStatement | None = None  # None: there is none, or none that counts
    refused: str = ""  # why the guard states nothing
    forged: str = ""  # why what it stated does not count


def ask_for_statements(
    exchange: Exchange, run: str, plan: str, clients: Sequence[str], timeout: float
) -> list[Stated]:
    """Ask all guards side by side; return what each said, in the order of the clients.

    Guarantees:
        A statement counts only if it is on this run, client and operator, and signed by the key that signed
        the head in it.
    """
    orders = [Declare(client=client, run=run, plan=plan) for client in clients]
    failed, said = Unanswered(), dict[int, Stated]()
    for place, body in exchange.send(orders, b"", failed, timeout):
        said[place] = _stated(orders[place], exchange.operator, body)
    for place, reason in failed.refused.items():
        said[place] = Stated(clients[place], refused=reason[:LONGEST])
    return [said.get(place, Stated(client)) for place, client in enumerate(clients)]


def _stated(order: messages.Declare, operator: str, body: bytes) -> Stated:
    try:
        signed = read(body, _SIGNED)
    except ValueError:
        return Stated(order.client, forged="its statement cannot be read")
    about = signed.statement
    if (about.client, about.run, about.operator) != (order.client, order.run, operator):
        return Stated(order.client, forged="its statement is on another run, client or operator")
    if about.plan not in ("", order.plan):
        return Stated(order.client, forged="its statement is on another plan")
    if not signed.is_genuine():
        return Stated(order.client, forged="its statement is not signed by the key of its ledger")
    return Stated(order.client, signed)
