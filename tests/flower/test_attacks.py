"""Who is not let in, and what greedy servers, or code not meant for clients, get from guards: nothing."""

import contextlib
import json
import socket
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from discretion.clients.messages import (
    Answer,
    AnyOrder,
    Join,
    Local,
    Train,
    decode_answer,
    encode,
    read_key,
    sign,
    to_bytes,
)
from discretion.flower import project
from discretion.flower.cluster import write_certificates, write_node_key
from discretion.runs import config
from discretion.runs.build import fitted, load_data, local_training, plan_of
from discretion.runs.prepare import build_task
from support.network import Command, Network, free_port, until

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
    files |= {"c0": net / "nodes" / "c0" / "key", "other": other / "ca.crt"}
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


SENDING = """
import json
from pathlib import Path

from flwr.serverapp import ServerApp

from discretion.flower.flower_transport import FlowerTransport

app = ServerApp()


@app.main()
def main(grid, context):
    transport, folder = FlowerTransport(grid), Path(context.run_config["folder"])
    transport.wait_for(["c0"], 120)
    heard = []
    for batch in json.loads((folder / "orders.json").read_text()):
        orders = [("c0", bytes.fromhex(order)) for order in batch]
        answers = dict(transport.exchange(orders, 300))
        heard.append([answers[number].hex() for number in range(len(orders))])
    (folder / "heard.json").write_text(json.dumps(heard))
"""


def sent(network: Network, *batches: list[tuple[AnyOrder, bytes]]) -> list[list[Answer]]:
    """What c0's guard answers to orders that its operator signed, over Flower; those of a batch at once."""
    key, path = read_key(network.net / "operator.key"), network.folder / "sending"
    orders = [[sign(encode(*order), key).hex() for order in batch] for batch in batches]
    project.write(path)
    (path / "orders.json").write_text(json.dumps(orders))
    (path / "flower" / "discretion_run" / "server.py").write_text(SENDING)
    submitted(network, path / "flower", path)
    heard = json.loads((path / "heard.json").read_text())
    return [[decode_answer(bytes.fromhex(answer))[0] for answer in batch] for batch in heard]


def submitted(network: Network, path: Path, folder: Path) -> None:
    words = [project.tool("flwr"), "run", str(path), "here", "--stream", "--run-config"]
    Command([*words, f'folder="{folder}"'], network.folder, network.environment).require()


def test_a_server_that_asks_for_more_than_was_agreed_on_is_refused(network: Network) -> None:
    network.renew(5)
    settings = config.read(network.folder / "config.toml", ["plan.rounds=4", "plan.rate=1.0"])
    task = build_task(settings, load_data(settings))
    plan = fitted(plan_of(settings, task.population), settings, task.clients.layers)
    other = replace(plan, phases=plan.phases[:2])
    local = Local(**asdict(local_training(settings)))
    text, model = plan.to_json().encode(), to_bytes(task.clients.initial())
    about: dict[str, Any] = {"client": "c0", "run": "greedy", "plan": plan.digest()}

    def join(**more: Any) -> Join:
        fields = {"size": 60, "model": "mlp", "shapes": task.clients.shapes, "local": local}
        fields |= {"records": task.records}
        return Join(**(about | fields | more))

    def train(round_: int, **more: Any) -> Train:
        phase = plan.phases[plan.phase_of(min(round_, 4))]
        fields = {"clip": float(phase.clip[0]), "noise": float(plan.own_noise(phase)[0]), "local": local}
        return Train(**(about | fields | {"round": round_, "turn": 0, "key": 3} | more))

    agreed = sent(network, [(join(), text)], [(train(1), model)], [(train(3), model)])
    assert [answer.kind for (answer,) in agreed] == ["done"] * 3
    before = record_of(network, "c0")
    attacks: dict[str, tuple[AnyOrder, bytes]] = {
        "the order has noise": (train(4, noise=0.01), model),
        "the order has clip": (train(4, clip=50.0), model),
        "joined with another plan": (train(4, plan=other.digest()), model),
        "joined with another order": (join(plan=other.digest()), other.to_json().encode()),
        "model 'cnn_small' not listed": (join(run="s", model="cnn_small"), text),
        "before, by another order": (train(3, key=4), model),
        "expected round 3 or later": (train(2), model),
        "is not in the plan of 4 rounds": (train(8), model),
        "turn 2 of round 4": (train(4, turn=1), model),
        "local training is not the one agreed on": (
            train(4, local=local.model_copy(update={"epochs": 9})),
            model,
        ),
        "addressed to another client": (train(4, client="c1"), model),
    }
    (refused,) = sent(network, list(attacks.values()))
    for reason, answer in zip(attacks, refused, strict=True):
        assert answer.kind == "refused" and reason in answer.reason
    assert record_of(network, "c0") == before


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
    content = struct.pack(">I", 2) + b"[]" + struct.pack(">I", len(text)) + text + bytes(4 * 4810)
    return key.public_key().public_bytes_raw() + key.sign(b"discretion order 2\\n" + content) + content


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
    (path / "flower" / "discretion_run" / "server.py").write_text(ASKING)
    (path / "flower" / "discretion_run" / "client.py").write_text(TAKING)
    submitted(network, path / "flower", network.folder / "got.json")
    got = [bytes.fromhex(each) for each in json.loads((network.folder / "got.json").read_text())]
    assert len(got) == 5
    for answers in map(divided, got):
        found = [decode_answer(answer) for answer in answers]
        assert [(said.kind, body) for said, body in found] == [("refused", b"")] * 13
    assert {name: record_of(network, name) for name in network.names} == before
