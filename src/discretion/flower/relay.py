"""The ClientApp: bytes from Flower to the guard's socket, and back. It sees nothing that it could not drop.

The node's configuration has `guard`, the path of the socket.
"""

import socket

from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from discretion import frames

LONGEST_ANSWER = 2**31
SENDING, ANSWERING = 60.0, 3600.0  # seconds


def packed(content: bytes) -> RecordDict:
    """Bytes as Flower carries large ones, without any serialisation of its own."""
    return RecordDict({"bytes": ArrayRecord({"bytes": Array("uint8", (len(content),), "raw", content)})})


def unpacked(message: Message) -> bytes:
    return bytes(message.content["bytes"]["bytes"].data)


def relay(message: Message, context: Context) -> Message:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(SENDING)
        connection.connect(str(context.node_config["guard"]))
        frames.send(connection, unpacked(message), SENDING)
        answer = frames.receive(connection, LONGEST_ANSWER, ANSWERING)
    return Message(packed(answer), reply_to=message)


app = ClientApp()
app.train()(relay)
