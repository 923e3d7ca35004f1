"""ClientApp that relays bytes from Flower to the guard's socket and back.

Flower ships the text of this file to nodes, so it imports nothing but Flower; only the guard needs Discretion
there. The node's configuration has `guard`, the path of the socket.
"""

import socket
import struct

from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

ANSWERING = 3600.0  # seconds


def packed(content: bytes) -> RecordDict:
    """Pack bytes into a Flower record without further serialisation."""
    return RecordDict({"bytes": ArrayRecord({"bytes": Array("uint8", (len(content),), "raw", content)})})


def unpacked(message: Message) -> bytes:
    """Return the bytes that a message of `packed` carries."""
    return bytes(message.content["bytes"]["bytes"].data)


def relay(message: Message, context: Context) -> Message:
    """Send an order to the node's guard; return its answer."""
    order = unpacked(message)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(ANSWERING)
        connection.connect(str(context.node_config["guard"]))
        connection.sendall(struct.pack(">Q", len(order)))
        connection.sendall(order)
        with connection.makefile("rb") as stream:
            (length,) = struct.unpack(">Q", stream.read(8))
            answer = stream.read(length)
    if len(answer) < length:
        raise ConnectionError(f"the guard closed the connection after {len(answer)} of {length} bytes")
    return Message(packed(answer), reply_to=message)


app = ClientApp()
app.train()(relay)
