"""Clients trained a second on text: roles of Shakespeare with 10 to 50 windows, one epoch in batches of 10.

Run: python benchmarks/sequence.py [--clients 24] [--repeats 5]

`compiled` and `torch` (only if asked for by --way: it is slow) are the two ways of LocalClients, in as many
threads as there are processes. `loop` is what one would write first: a client after the other by
torch.optim.SGD, the clients dealt to processes of one thread each; once with nn.LSTM and once with the layers
of the built-in model. All ways take the same clients in turn, so that a busy machine disturbs them alike.
Medians over the repeats; the last column is what one core does in a second of its own time.
"""

import argparse
import copy
import multiprocessing
import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from discretion import engine
from discretion.clients.local_clients import LocalClients
from discretion.clients.training import LocalTraining
from discretion.tasks import datasets, models
from discretion.tasks.datasets import Dataset
from discretion.tasks.partitions import Partition
from discretion.training.orders import Order

BATCH, RATE, FEWEST, MOST = 10, 0.5, 10, 50
USUAL = ("compiled", "loop nn.LSTM", "loop own layers")
WAYS = (*USUAL, "torch")

Way = Callable[[np.ndarray], float]  # trains these clients and says how many seconds of processors it took


class WithTorchsLayers(nn.Module):
    """The built-in model with the layers that torch has."""

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, 8)
        self.lstm = nn.LSTM(8, 256, 2, batch_first=True)
        self.output = nn.Linear(256, tokens)

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.output(self.lstm(self.embedding(ids))[0][:, -1])
        return logits


@cache
def data() -> tuple[Dataset, Partition]:
    dataset = datasets.load("shakespeare")
    assert dataset.owner is not None
    sizes = np.bincount(dataset.owner, minlength=len(dataset.owners))
    index = np.argsort(dataset.owner, kind="stable")
    keep = (sizes >= FEWEST) & (sizes <= MOST)
    index = index[keep[dataset.owner[index]]]
    return dataset, Partition(index, np.concatenate([[0], sizes[keep].cumsum()]))


@cache
def model_of(way: str) -> nn.Module:
    dataset, _ = data()
    torch.manual_seed(0)
    return WithTorchsLayers(dataset.classes) if "nn.LSTM" in way else models.build("lstm", dataset, 0)


def begin() -> None:
    torch.set_num_threads(1)
    for way in WAYS:
        model_of(way)


def loop(way: str, clients: np.ndarray) -> float:
    start = time.process_time()
    (dataset, partition), model = data(), model_of(way)
    before = models.flatten(model)
    total = np.zeros_like(before)
    for client in clients:
        own = copy.deepcopy(model)
        optimiser = torch.optim.SGD(own.parameters(), lr=RATE)
        records = np.random.default_rng(client).permutation(partition.of(int(client)))
        inputs = torch.from_numpy(dataset.train.inputs[records]).long()
        labels = torch.from_numpy(dataset.train.labels[records])
        for first in range(0, len(records), BATCH):
            batch = slice(first, first + BATCH)
            optimiser.zero_grad()
            functional.cross_entropy(own(inputs[batch]), labels[batch]).backward()
            optimiser.step()
        total += models.flatten(own) - before
    assert total.any()
    return time.process_time() - start


def ways(pool: ProcessPoolExecutor, processes: int) -> dict[str, Way]:
    dataset, partition = data()
    local = LocalTraining(batch_size=BATCH, learning_rate=RATE)
    compiled, general = (LocalClients(dataset, partition, model_of("compiled"), local) for _ in range(2))
    general._stack = None

    def ask(clients: LocalClients, who: np.ndarray) -> float:
        start = time.process_time()
        asked = Order(1, 0, clients.initial(), who, np.zeros_like(who))
        assert all(part.change.any() for part in clients.updates(asked))
        return time.process_time() - start

    def deal(way: str, who: np.ndarray) -> float:
        by_size = who[np.argsort(partition.sizes[who])]
        hands = [by_size[first::processes] for first in range(processes)]  # of nearly equal work
        return sum(pool.map(partial(loop, way), hands))

    found = {"compiled": partial(ask, compiled)} if engine.available() else {}
    return {**found, **{way: partial(deal, way) for way in USUAL[1:]}, "torch": partial(ask, general)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=24, help="in each repeat")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="or threads")
    parser.add_argument("--way", choices=WAYS, action="append")
    options = parser.parse_args()
    torch.set_num_threads(options.processes)
    sizes = data()[1].sizes
    windows = f"{len(sizes)} roles with {FEWEST} to {MOST} windows, {sizes.mean():.1f} on average"
    print(f"{windows}; {options.processes} threads or processes, load before {os.getloadavg()[0]:.1f}")
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.processes, context, begin) as pool:
        there = ways(pool, options.processes)
        chosen = {way: work for way, work in there.items() if way in (options.way or USUAL)}
        rng = np.random.default_rng(1)
        for work in chosen.values():  # not counted
            work(rng.permutation(len(sizes))[: 2 * options.processes])
        rates: dict[str, list[tuple[float, float]]] = {way: [] for way in chosen}
        for _ in range(options.repeats):
            who = rng.permutation(len(sizes))[: options.clients]
            for way, work in chosen.items():
                start = time.perf_counter()
                used = work(who)
                rates[way].append((len(who) / (time.perf_counter() - start), len(who) / used))
    print(f"{'way':18}{'clients/s':>12}{'slowest':>10}{'fastest':>10}{'each core':>12}")
    for way, found in rates.items():
        whole, own = np.array(found).T
        print(f"{way:18}{np.median(whole):12.2f}{whole.min():10.2f}{whole.max():10.2f}{np.median(own):12.2f}")
    print(f"load after {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
