"""What a round on Flower takes: Discretion behind guards beside plain Flower, on the same links and records.

Run, with the extra flower installed: python benchmarks/flower.py --clients 5 --rounds 6 [--repeat 3]

Both are sent to one SuperLink with TLS and registered nodes on this machine, in turn. Every client trains the
same model on the same records in every round; plain Flower averages (its FedAvg strategy), Discretion checks,
charges, clips, adds noise and keeps what it hands out. A round's time is that of a run with 1 + `rounds`
rounds less that of a run with 1, over `rounds`: starting up is left out.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from discretion.flower import project

SETTINGS = """
seed = 1
[population]
clients = {clients}
budgets = "groups:8,16"
[data]
name = "fashion-mnist"
records = {records}
[model]
name = "{model}"
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
"""

SERVER = """
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

from discretion.tasks import datasets, models

app = ServerApp()


@app.main()
def main(grid, context):
    model = models.build(context.run_config["model"], datasets.load("fashion-mnist"), seed=1)
    count = context.run_config["clients"]
    few = {"min_train_nodes": count, "min_available_nodes": count}
    plain = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, **few)
    arrays = ArrayRecord(model.state_dict())
    plain.start(grid=grid, initial_arrays=arrays, num_rounds=context.run_config["rounds"])
"""

CLIENT = """
from pathlib import Path

import numpy as np
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from discretion.tasks import datasets, models

app = ClientApp()


@app.train()
def train(message, context):
    torch.set_num_threads(1)
    data = datasets.load("fashion-mnist")
    home = Path(context.node_config["guard"]).parent.parent
    mine = np.array([int(line) for line in (home / "records.txt").read_text().split()])
    model = models.build(context.run_config["model"], data, seed=1)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    inputs = torch.from_numpy(data.train.inputs[mine]).float() / 255
    labels = torch.from_numpy(data.train.labels[mine]).long()
    slow = torch.optim.SGD(model.parameters(), lr=0.1)
    for part in torch.randperm(len(labels)).split(10):
        slow.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs[part]), labels[part]).backward()
        slow.step()
    count = MetricRecord({"num-examples": len(labels)})
    answer = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": count})
    return Message(answer, reply_to=message)
"""


def write_plain(path: Path, options: argparse.Namespace) -> None:
    project.write(path)
    settings = f'rounds = 1\nclients = {options.clients}\nmodel = "{options.model}"\n'
    about = (path / "pyproject.toml").read_text().replace("discretion-run", "plain-run")
    (path / "pyproject.toml").write_text(about.replace('folder = ""\n', settings))
    (path / "discretion_run" / "server.py").write_text(SERVER)
    (path / "discretion_run" / "client.py").write_text(CLIENT)


def seconds(words: list[str]) -> float:
    start = time.perf_counter()
    done = subprocess.run(words, env=project.environment("net/flower"), capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stdout + done.stderr)
    return time.perf_counter() - start


def ours(rounds: int, name: str) -> float:
    words = [sys.executable, "-m", "discretion", "run", "config.toml", "--on", "flower", "--out", name]
    taken = seconds([*words, "--no-report", "-c", f"plan.rounds={rounds}", "-c", f"ledger={name}.sqlite"])
    heard = [json.loads(line) for line in Path(name, "answers.jsonl").read_text().splitlines()]
    if any(each["asked"] != each["answered"] for each in heard):
        sys.exit(f"not all answered: {heard}")
    return taken


def plain(rounds: int) -> float:
    words = [project.tool("flwr"), "run", "plain", "here", "--stream", "--run-config", f"rounds={rounds}"]
    return seconds(words)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--clients", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--records", type=int, default=600)
    parser.add_argument("--model", default="cnn_small")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = options.port or probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        most = 4 * (options.rounds + 2)
        Path("config.toml").write_text(SETTINGS.format(**(vars(options) | {"rounds": most})))
        write_plain(Path("plain"), options)
        own = [sys.executable, "-m", "discretion", "flower"]
        seconds([*own, "init", "config.toml", "--out", "net", "--port", str(port)])
        for policy in Path("net").glob("*/GUARD.toml"):  # budgets are not what is measured
            text = policy.read_text().splitlines()
            policy.write_text("\n".join("epsilon = inf" if t.startswith("epsilon") else t for t in text))
        try:
            seconds([*own, "up", "net"])
            found: dict[str, list[float]] = {"plain": [], "ours": []}
            for number in range(options.repeat):
                more = 1 + options.rounds
                found["plain"].append((plain(more) - plain(1)) / options.rounds)
                long, short = ours(more, f"long{number}"), ours(1, f"short{number}")
                found["ours"].append((long - short) / options.rounds)
                print({name: [round(each, 2) for each in times] for name, times in found.items()})
        finally:
            seconds([*own, "down", "net"])
            os.chdir("/")
    middle = {name: statistics.median(times) for name, times in found.items()}
    over = middle["ours"] / middle["plain"] - 1
    print(
        f"{options.clients} clients, {options.model}: a round takes {middle['plain']:.2f} s on plain Flower, "
    )
    print(f"{middle['ours']:.2f} s with guards: {over:+.0%}")


if __name__ == "__main__":
    main()
