"""Clients trained a second: 6,000 clients of ten pictures, 120 a round, five steps each on all ten.

Run: python benchmarks/engine.py --seconds 10 [--pfl ENVIRONMENT] [--flower ENVIRONMENT]

`compiled`, `torch` (in this process) and `workers` (by torch in several) are the ways of LocalClients; `loop`
is what one would write first: a client after the other, by torch.optim.SGD. Medians over rounds; the last
column is what one core does in a second of its own time, which a busy machine disturbs less. Peers are run in
environments of their own, made by `pip install torch==2.13.0`, then pfl or flwr[simulation]==1.41.0 under
that constraint: two processes, channels_last, and beside that as shipped.
"""

import argparse
import copy
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from discretion import engine
from discretion.clients.local_clients import LocalClients
from discretion.clients.training import LocalTraining
from discretion.tasks import datasets, models
from discretion.tasks.datasets import Dataset
from discretion.tasks.partitions import even_sizes, iid
from discretion.training.orders import Order

CLIENTS, STEPS, RATE = 6000, 5, 0.1
WORKLOADS = {"A_small": ("cnn_small", 120), "A_big": ("cnn", 20)}  # model, clients of a round that is timed
WAYS = ("compiled", "torch", "workers", "loop")
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "OMP_NUM_THREADS": "1"}

Round = Callable[[np.ndarray], object]


def used(processes: list[int]) -> float:
    """Seconds of processor time of this process and of those."""
    own = time.process_time()
    for number in processes:
        fields = Path(f"/proc/{number}/stat").read_text().rsplit(")", 1)[1].split()
        own += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return own


def ways(dataset: Dataset, name: str, workers: int) -> dict[str, tuple[Round, LocalClients | None]]:
    rng = np.random.default_rng(0)
    partition = iid(dataset.train.labels, even_sizes(len(dataset.train.labels), CLIENTS), rng)
    model = models.build(name, dataset, 0)
    local = LocalTraining(epochs=STEPS, batch_size=10, learning_rate=RATE)
    counts = {"compiled": 1, "torch": 1, "workers": workers}
    made = {
        way: LocalClients(dataset, partition, model, local, device="cpu", workers=count)
        for way, count in counts.items()
    }
    made["torch"]._stack = made["workers"]._stack = None

    def asking(clients: LocalClients) -> Round:
        start = clients.initial()
        return lambda who: [
            part.change.shape for part in clients.updates(Order(1, 0, start, who, np.zeros_like(who)))
        ]

    def loop(who: np.ndarray) -> None:
        start = models.flatten(model)
        for client in who:
            own = copy.deepcopy(model)
            optimiser = torch.optim.SGD(own.parameters(), lr=RATE)
            records = partition.of(int(client))
            inputs = torch.from_numpy(dataset.train.inputs[records]).float() / 255
            inputs = (inputs - dataset.mean) / dataset.std
            labels = torch.from_numpy(dataset.train.labels[records])
            for _ in range(STEPS):
                optimiser.zero_grad()
                functional.cross_entropy(own(inputs), labels).backward()
                optimiser.step()
            models.flatten(own) - start

    return {**{way: (asking(one), one) for way, one in made.items()}, "loop": (loop, None)}


def measure(work: Round, made: LocalClients | None, clients: int, seconds: float) -> tuple[float, float]:
    """Clients a second, and clients a second of processor time: medians, the first round not counted."""
    rng = np.random.default_rng(1)
    work(rng.integers(0, CLIENTS, min(clients, 8)))
    pool = None if made is None else made._workers
    processes = [] if pool is None else list(pool._processes.values())
    rates, own, end = list[float](), list[float](), time.perf_counter() + seconds
    while len(rates) < 3 or time.perf_counter() < end:
        who = rng.permutation(CLIENTS)[:clients]
        start, before = time.perf_counter(), used(processes)
        work(who)
        rates.append(clients / (time.perf_counter() - start))
        own.append(clients / (used(processes) - before))
    return float(np.median(rates)), float(np.median(own))


def peer(command: list[str]) -> float:
    """Clients a second that a peer says on its last line of JSON."""
    here = Path(__file__).parent / "peers"
    done = subprocess.run(command, cwd=here, capture_output=True, text=True, env={**os.environ, **QUIET})
    found = [line for line in done.stdout.splitlines() if line.startswith('{"clients_per_second"')]
    if not found:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return float(json.loads(found[-1])["clients_per_second"])


def peers(options: argparse.Namespace, workload: str, data: str) -> None:
    rounds = "12" if workload == "A_small" else "5"
    for tuned in (["channels_last"], []):
        name = "" if tuned else " as shipped"
        if options.pfl:
            torchrun = [f"{options.pfl}/bin/torchrun", "--nproc_per_node", "2", "--"]
            found = peer([*torchrun, "pfl_clients.py", data, workload, rounds, *tuned])
            print(f"{workload:10}{'pfl' + name:18}{found:12.1f}", flush=True)
        if options.flower:
            python = f"{options.flower}/bin/python"
            found = peer([python, "flower_clients.py", data, workload, "4", *tuned])
            print(f"{workload:10}{'Flower' + name:18}{found:12.1f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="for each row")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--workload", choices=list(WORKLOADS), action="append")
    parser.add_argument("--way", choices=WAYS, action="append")
    parser.add_argument("--pfl", help="an environment with pfl-research")
    parser.add_argument("--flower", help="an environment with Flower's simulation")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    dataset = datasets.load("fashion-mnist")
    print(f"{options.threads} threads, load before {os.getloadavg()[0]:.1f}")
    print(f"{'workload':10}{'way':18}{'clients/s':>12}{'each core':>12}")
    for workload in options.workload or WORKLOADS:
        name, clients = WORKLOADS[workload]
        for way, (work, made) in ways(dataset, name, options.workers).items():
            if way not in (options.way or WAYS) or (way == "compiled" and not engine.available()):
                continue
            few = clients if way == "compiled" else clients // 5
            rate, own = measure(work, made, few, options.seconds)
            print(f"{workload:10}{way:18}{rate:12.1f}{own:12.1f}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            data = f"{folder}/data.npz"
            np.savez(data, images=dataset.train.inputs.reshape(-1, 28, 28), labels=dataset.train.labels)
            peers(options, workload, data)


if __name__ == "__main__":
    main()
