"""Transport of orders and answers as Flower messages, to each client's own node."""

import time
from collections import Counter
from collections.abc import Iterator, Sequence

from flwr.app import Message
from flwr.serverapp import Grid

from discretion.flower.client_app import packed, unpacked

POLL = 0.2  # seconds between checks for answers


class FlowerTransport:
    """Finds nodes by the names under which the SuperLink registered their keys, which a node cannot choose.

    Nodes of a simulation have neither keys nor names: any of them plays the client that an order is for.
    """

    def __init__(self, grid: Grid, simulated: Sequence[str] = ()) -> None:
        self._grid, self._simulated = grid, simulated
        self._nodes: dict[str, int] = {}

    def wait_for(self, clients: Sequence[str], timeout: float) -> list[str]:
        """Wait for the clients' nodes; return the clients without a node after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while missing := [name for name in clients if name not in self._nodes]:
            self._look()
            if time.monotonic() > deadline:
                return missing
            time.sleep(POLL)
        return []

    def _look(self) -> None:
        if self._simulated:
            self._nodes = dict(zip(self._simulated, self._grid.get_node_ids(), strict=False))
            return
        nodes = [node for node in self._grid.get_nodes() if node.name]
        named = Counter(node.name for node in nodes)  # two nodes with one name: neither is trusted
        self._nodes = {node.name: node.node_id for node in nodes if named[node.name] == 1}

    def exchange(self, orders: Sequence[tuple[str, bytes]], timeout: float) -> Iterator[tuple[int, bytes]]:
        deadline = time.monotonic() + timeout
        self._look()
        messages = {
            number: Message(packed(order), self._nodes[client], "train", ttl=timeout)
            for number, (client, order) in enumerate(orders)
            if client in self._nodes
        }
        sent = self._grid.push_messages(list(messages.values())) if messages else ()
        waiting = {message: number for message, number in zip(sent, messages, strict=True) if message}
        while waiting and time.monotonic() < deadline:
            for answer in self._grid.pull_messages(list(waiting)):
                # matched by the order answered: the sender's own claim is not trusted
                number = waiting.pop(answer.metadata.reply_to_message_id, None)
                if number is not None and not answer.has_error() and (content := _readable(answer)):
                    yield number, content
            time.sleep(POLL)


def _readable(answer: Message) -> bytes:
    """Return the bytes of an answer; empty if the node sent anything but a relay's message."""
    try:
        return unpacked(answer)
    except (AttributeError, KeyError, TypeError, ValueError):
        return b""
