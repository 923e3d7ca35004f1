"""The ClientApp: bytes from Flower to the guard's socket, and back. It sees nothing that it could not drop.

Its text is what Flower ships to nodes, so it needs nothing but Flower there; the guard alone has Discretion.
The node's configuration has `guard`, the path of the socket.
"""

import socket
import struct

from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

ANSWERING = 3600.0  # seconds


def packed(content: bytes) -> RecordDict:
    """Bytes as Flower carries large ones, without any serialisation of its own."""
    return RecordDict({"bytes": ArrayRecord({"bytes": Array("uint8", (len(content),), "raw", content)})})


def unpacked(message: Message) -> bytes:
    return bytes(message.content["bytes"]["bytes"].data)


def relay(message: Message, context: Context) -> Message:
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
        raise ConnectionError(f"an answer of the guard broke off after {len(answer)} of {length} bytes")
    return Message(packed(answer), reply_to=message)


app = ClientApp()
app.train()(relay)
