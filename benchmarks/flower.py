"""What a round on Flower takes: Discretion behind guards beside plain Flower, on the same links and records.

Run, on an idle machine, with the extra flower installed: python benchmarks/flower.py [--clients 5 20]

Both are sent in turn to one SuperLink with TLS and registered nodes on this machine. In every round every
client trains the same model on the same records; plain Flower averages (its FedAvg strategy, its own way to
wait for replies), Discretion checks, charges, clips, adds noise and keeps what it hands out. A round's time
is that between the ends of two rounds of one run, so that starting up and joining are left out; the medians
are over those rounds of all runs in which everybody answered. On a busy machine a SuperLink now and then
loses a reply ("database is locked"), and a round then lasts until the deadline, which is the same for both.
"""

import argparse
import math
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from discretion.flower import project
from discretion.runs.folder import RunFolder
from discretion.runs.history import read_answers
from discretion.tasks import datasets

SETTINGS = """
seed = 1
[population]
clients = {clients}
budgets = "groups:8,16"
[data]
name = "fashion-mnist"
records = {records}
[model]
name = "cnn_small"
[plan]
method = "concert"
rounds = {rounds}
rate = 1.0
clip = 0.5
[train]
threads = 1
evaluate_every = 1000
[clients]
key = "net/operator.key"
home = "net/flower"
timeout = 90
"""

MODEL = """
from torch import nn


def small():
    first, second = nn.Conv2d(1, 10, 5), nn.Conv2d(10, 20, 5)
    head = (nn.Flatten(), nn.Linear(320, 50), nn.ReLU(), nn.Linear(50, 10))
    return nn.Sequential(first, nn.MaxPool2d(2), nn.ReLU(), second, nn.MaxPool2d(2), nn.ReLU(), *head)
"""

SERVER = """
from pathlib import Path

from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

from discretion_run.model import small

app = ServerApp()


class Saying(FedAvg):
    def aggregate_train(self, server_round, replies):
        replies = list(replies)
        found = super().aggregate_train(server_round, replies)
        with Path(self.path).open("a") as file:
            file.write(f"{sum(reply.has_content() for reply in replies)}\\n")
        return found


@app.main()
def main(grid, context):
    count = context.run_config["clients"]
    few = {"min_train_nodes": count, "min_available_nodes": count}
    plain = Saying(fraction_train=1.0, fraction_evaluate=0.0, **few)
    plain.path = context.run_config["path"]
    arrays = ArrayRecord(small().state_dict())
    rounds = context.run_config["rounds"]
    plain.start(grid=grid, initial_arrays=arrays, num_rounds=rounds, timeout=90)
"""

CLIENT = """
from pathlib import Path

import numpy as np
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from discretion_run.model import small

app = ClientApp()


@app.train()
def train(message, context):
    torch.set_num_threads(1)
    mine = np.load(Path(context.node_config["guard"]).parent.parent / "mine.npz")
    inputs, labels = torch.from_numpy(mine["inputs"]), torch.from_numpy(mine["labels"])
    model = small()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    slow = torch.optim.SGD(model.parameters(), lr=0.1)
    for part in torch.randperm(len(labels)).split(10):
        slow.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs[part]), labels[part]).backward()
        slow.step()
    count = MetricRecord({"num-examples": len(labels)})
    answer = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": count})
    return Message(answer, reply_to=message)
"""


def write_plain(path: Path) -> None:
    project.write(path)
    about = (path / "pyproject.toml").read_text().replace("discretion-run", "plain-run")
    settings = 'rounds = 1\nclients = 1\npath = ""\n'
    (path / "pyproject.toml").write_text(about.replace('folder = ""\n', settings))
    for name, text in (("server", SERVER), ("client", CLIENT), ("model", MODEL)):
        (path / "discretion_run" / f"{name}.py").write_text(text)


def write_records(net: Path) -> None:
    """Each client's own records in a file of their own, as a plain app would have them."""
    data = datasets.load("fashion-mnist").train
    for policy in net.glob("*/GUARD.toml"):
        mine = np.array([int(line) for line in policy.with_name("records.txt").read_text().split()])
        inputs = data.inputs[mine].astype(np.float32) / 255
        labels = data.labels[mine].astype(np.int64)
        np.savez(policy.with_name("mine.npz"), inputs=inputs.reshape(-1, 1, 28, 28), labels=labels)
        text = policy.read_text().splitlines()  # budgets are not what is measured
        policy.write_text("\n".join("epsilon = inf" if t.startswith("epsilon") else t for t in text))


def do(words: list[str]) -> None:
    done = subprocess.run(words, env=project.environment("net/flower"), capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stdout + done.stderr)


def between_lines(words: list[str], path: Path) -> list[float]:
    """Seconds between the lines that a program adds to a file, one for each line but the first."""
    log = Path("said.log")
    with log.open("w") as file:
        running = subprocess.Popen(
            words, env=project.environment("net/flower"), stdout=file, stderr=subprocess.STDOUT
        )
    at: list[float] = []
    while running.poll() is None:
        lines = path.read_text().count("\n") if path.exists() else 0
        at += [time.perf_counter()] * (lines - len(at))
        time.sleep(0.02)
    if running.returncode != 0:
        sys.exit(log.read_text())
    return [later - earlier for earlier, later in zip(at, at[1:], strict=False)]


def ours(clients: int, rounds: int, number: int) -> list[float]:
    name = f"ours{number}"
    words = [sys.executable, "-m", "discretion", "run", "config.toml", "--on", "flower", "--out", name]
    words += ["--no-report", "-c", f"ledger={name}.sqlite", "-c", f"seed={number}"]
    took = between_lines([*words, "-c", f"plan.rounds={rounds}"], Path(name, "history.jsonl"))
    answers = read_answers(RunFolder(Path(name)).answers)
    return whole(took, [each.answered for each in answers], clients)


def plain(clients: int, rounds: int, number: int) -> list[float]:
    path = Path(f"plain{number}.txt").absolute()
    settings = f'rounds={rounds} clients={clients} path="{path}"'
    words = [project.tool("flwr"), "run", "plain", "here", "--stream", "--run-config", settings]
    took = between_lines(words, path)
    return whole(took, [int(line) for line in path.read_text().split()], clients)


def whole(took: list[float], answered: list[int], clients: int) -> list[float]:
    """The times of those rounds, but the first, in which everybody answered."""
    print(f"of {clients} answered: {answered}", file=sys.stderr)
    return [t for t, count in zip(took, answered[1:], strict=False) if count == clients]


def measured(clients: int, rounds: int, repeat: int, records: int) -> dict[str, list[float]]:
    """Seconds of all rounds of both, on one network, in a folder of its own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    own = [sys.executable, "-m", "discretion", "flower"]
    found: dict[str, list[float]] = {"plain": [], "ours": []}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            Path("config.toml").write_text(
                SETTINGS.format(clients=clients, records=records, rounds=rounds + 1)
            )
            write_plain(Path("plain"))
            do([*own, "init", "config.toml", "--out", "net", "--port", str(port)])
            write_records(Path("net"))
            do([*own, "up", "net"])
            for number in range(repeat):
                found["ours"] += ours(clients, rounds + 1, number)
                found["plain"] += plain(clients, rounds + 1, number)
        finally:
            do([*own, "down", "net"])
            os.chdir("/")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[5, 20])
    parser.add_argument("--rounds", type=int, default=4, help="that are measured, of each run")
    parser.add_argument("--records", type=int, default=600, help="of each client")
    parser.add_argument("--repeat", type=int, default=2, help="runs of each, in turn")
    options = parser.parse_args()
    print("| clients | plain Flower, s a round | with guards, s a round | overhead |")
    print("|---|---|---|---|")
    for clients in options.clients:
        found = measured(clients, options.rounds, options.repeat, options.records)
        for name, times in found.items():
            print(clients, name, [round(each, 2) for each in times], file=sys.stderr)
        usual = {name: statistics.median(times or [math.nan]) for name, times in found.items()}
        over = usual["ours"] / usual["plain"] - 1
        print(f"| {clients} | {usual['plain']:.2f} | {usual['ours']:.2f} | {over:+.0%} |", flush=True)


if __name__ == "__main__":
    main()
