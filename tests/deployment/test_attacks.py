"""Who is not let in, and what code that was not meant to run at clients gets from their guards: nothing."""

import contextlib
import json
import socket
import struct
import subprocess
from collections.abc import Iterator

from discretion.flower import project
from discretion.flower.keys import write_certificates, write_node_key
from discretion.messages import decode_answer
from network import Command, Network, free_port, until

# nodes that have no business here, and what they say when they are not let in
STRANGERS = {
    "an unregistered key": (["--root-certificates={ca}", "--auth-supernode-private-key={stranger}"], "2004"),
    "the key of a node that is there": (
        ["--root-certificates={ca}", "--auth-supernode-private-key={c0}"],
        "2004",
    ),
    "no key": (["--root-certificates={ca}"], "2001"),
    "no TLS": (["--insecure"], "Connection attempt failed"),
    "the wrong certificate": (["--root-certificates={other}"], "Connection attempt failed"),
}


def test_strangers_are_not_let_in(network: Network) -> None:
    net, other = network.net, network.folder / "other"
    write_node_key(net / "nodes" / "stranger")
    write_certificates(other)
    files = {"ca": net / "certificates" / "ca.crt", "stranger": net / "nodes" / "stranger"}
    files |= {"c0": net / "nodes" / "c0", "other": other / "ca.crt"}
    tried = {}
    for name, (words, _) in STRANGERS.items():
        where = network.folder / name.replace(" ", "-")
        where.mkdir()
        node = [project.tool("flower-supernode"), f"--superlink=127.0.0.1:{network.port}"]
        node += [f"--port={free_port()}", *(word.format(**files) for word in words)]
        tried[name] = Command(node, where, network.environment)
    try:
        for name, (_, reason) in STRANGERS.items():
            until(lambda: reason in tried[name].said(), f"{reason} from a node with {name}")  # noqa: B023
            assert "SuperNode ID" not in tried[name].said()  # which a node that was let in says
    finally:
        for command in tried.values():
            command.kill()
    words = [project.tool("flwr"), "supernode", "list", "here", "--format", "json"]
    found = subprocess.run(words, env=network.environment, capture_output=True, check=True).stdout
    states = [node["status"] for node in json.loads(found)["nodes"]]
    assert len(states) == 5 and "online" in states


def test_the_port_speaks_nothing_but_tls(network: Network) -> None:
    with socket.create_connection(("127.0.0.1", network.port)) as plain:
        plain.settimeout(60)
        plain.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            assert b"HTTP/1.1 200" not in plain.recv(100)


ASKING = """
import json
from pathlib import Path

from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()


@app.main()
def main(grid, context):
    nodes, asked = list(grid.get_node_ids()), RecordDict()
    answers = grid.send_and_receive([Message(asked, node, "train") for node in nodes], timeout=120)
    found = [answer.content["got"]["got"].data.hex() for answer in answers if not answer.has_error()]
    Path(context.run_config["folder"]).write_text(json.dumps(found))
"""
TAKING = """
import json
import socket
import struct

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


def signed(header):
    key, text = Ed25519PrivateKey.generate(), json.dumps(header).encode()
    message = struct.pack(">I", len(text)) + text + bytes(4 * 4810)
    return key.public_key().public_bytes_raw() + key.sign(b"discretion order 1\\n" + message) + message


@app.train()
def take(message, context):
    got = b""
    wanted = [b"data", b"GET /ledger.sqlite HTTP/1.1\\r\\n\\r\\n", b"\\x80\\x04cos\\nsystem\\n"]
    for kind in ("raw", "data", "file", "train", "read"):
        order = {"kind": kind, "client": "c0", "run": "r", "plan": "0" * 64, "path": "records.txt"}
        wanted += [signed(order), json.dumps(order).encode()]
    for order in wanted:
        with socket.socket(socket.AF_UNIX) as guard:
            guard.settimeout(60)
            guard.connect(context.node_config["guard"])
            guard.sendall(struct.pack(">Q", len(order)) + order)
            with guard.makefile("rb") as stream:
                (length,) = struct.unpack(">Q", stream.read(8))
                got += struct.pack(">Q", length) + stream.read(length)
    array = Array("uint8", (len(got),), "raw", got)
    return Message(RecordDict({"got": ArrayRecord({"got": array})}), reply_to=message)
"""


def divided(got: bytes) -> Iterator[bytes]:
    while got:
        (length,) = struct.unpack(">Q", got[:8])
        yield got[8 : 8 + length]
        got = got[8 + length :]


def record_of(network: Network, name: str) -> str:
    """All that is on record in a guard's ledger."""
    with network.ledger(name) as ledger:
        return "\n".join(ledger._db.iterdump())


def test_a_changed_client_app_gets_refusals_only(network: Network) -> None:
    before = {name: record_of(network, name) for name in network.names}
    path = network.folder / "taking"
    project.write(path)
    (path / "discretion_run" / "server.py").write_text(ASKING)
    (path / "discretion_run" / "client.py").write_text(TAKING)
    words = [project.tool("flwr"), "run", str(path), "here", "--stream", "--run-config"]
    Command([*words, f'folder="{network.folder}/got.json"'], network.folder, network.environment).require()
    got = [bytes.fromhex(each) for each in json.loads((network.folder / "got.json").read_text())]
    assert len(got) == 5
    for answers in map(divided, got):
        found = [decode_answer(answer) for answer in answers]
        assert [(said.kind, body) for said, body in found] == [("refused", b"")] * 13
    assert {name: record_of(network, name) for name in network.names} == before
