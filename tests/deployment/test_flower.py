"""A real SuperLink, nodes and guards on loopback, with TLS and node keys: `make test-deployment`."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

pytest.importorskip("flwr", reason="Flower is an extra: make test-deployment")

from discretion.accounting import Certificate
from discretion.flower import local
from discretion.flower.keys import write_node_key
from discretion.flower.project import environment, tool
from discretion.ledger import Ledger

CLIENTS = 5
SETTINGS = """
seed = 5
[population]
clients = 5
budgets = "groups:8,16"
[data]
name = "digits"
records = 60
[model]
name = "linear"
[plan]
method = "spend_as_you_go"
rounds = 4
rate = 0.6
clip = 0.5
[train]
threads = 1
[clients]
key = "net/operator.key"
home = "net/flower"
timeout = 60
"""


def discretion(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "discretion", *words], check=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(params=["digits"])
def net(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    model = {"digits": "linear", "fashion-mnist": "cnn_small"}[request.param]
    settings = SETTINGS.replace("digits", request.param).replace("linear", model)
    (tmp_path / "config.toml").write_text(settings)
    discretion("flower", "init", "config.toml", "--out", "net", "--port", str(free_port()))
    try:
        discretion("flower", "up", "net")
        yield tmp_path / "net"
    finally:
        discretion("flower", "down", "net")


def check_models_and_ledgers(net: Path) -> None:
    discretion("run", "config.toml", "--out", "near", "--no-report")
    far, near = (safetensors.numpy.load_file(f"{name}/model.safetensors") for name in ("far", "near"))
    for name in near:
        np.testing.assert_allclose(far[name], near[name], atol=1e-5)
    certificate = Certificate.from_json(Path("far/certificate.json").read_text())
    for i, name in enumerate(certificate.clients):
        with Ledger.existing(net / name / "guard" / "ledger.sqlite") as ledger:
            assert ledger.spent()[0] == pytest.approx(certificate.spent[i], rel=1e-9)


@pytest.mark.parametrize("net", ["fashion-mnist"], indirect=True)
def test_a_run_on_flower_is_the_run_in_one_process(net: Path) -> None:
    discretion("run", "config.toml", "--on", "flower", "--out", "far", "--no-report")
    check_models_and_ledgers(net)
    heard = [json.loads(line) for line in Path("far/answers.jsonl").read_text().splitlines()]
    assert [each["round"] for each in heard] == [1, 2, 3, 4]
    assert all(each["asked"] == each["answered"] for each in heard)
    port = json.loads((net / "local.json").read_text())["port"]
    with socket.create_connection(("127.0.0.1", port)) as plain:  # no TLS, no answer in plain HTTP
        plain.settimeout(20)
        plain.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            assert b"200" not in plain.recv(100)
    write_node_key(net / "nodes" / "stranger")  # a key that nobody registered
    words = [tool("flower-supernode"), f"--superlink=127.0.0.1:{port}", f"--port={free_port()}"]
    words += [f"--root-certificates={net / 'certificates' / 'ca.crt'}"]
    words += [f"--auth-supernode-private-key={net / 'nodes' / 'stranger'}"]
    stranger = subprocess.Popen(
        words,
        env=environment(str(net / "flower")),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = stranger.communicate(timeout=30)
    except subprocess.TimeoutExpired:
        os.killpg(stranger.pid, signal.SIGKILL)
        said, _ = stranger.communicate()
    assert "SuperNode ID" not in said  # which a node that was let in says


def test_killed_superlink_and_guard_the_run_goes_on_with_the_same_model(net: Path) -> None:
    words = [sys.executable, "-m", "discretion", "run", "config.toml", "--on", "flower", "--out", "far"]
    running = subprocess.Popen([*words, "--no-report"])
    history = Path("far/history.jsonl")
    while not (history.exists() and history.read_text().count("\n") >= 1):
        assert running.poll() is None
        time.sleep(0.1)
    started = {entry["name"]: entry["pid"] for entry in local._recorded(net)}
    for name in ("superlink", "guard-c0", "node-c1"):
        os.killpg(int(started[name]), signal.SIGKILL)
    assert running.wait(120) != 0
    discretion("flower", "down", "net")
    discretion("flower", "up", "net")
    discretion("run", "far", "--resume", "--no-report")
    check_models_and_ledgers(net)
