"""Five small clients with images, their orders, and models that compiled code cannot train."""

from dataclasses import replace

import numpy as np
import torch
from torch import nn

from discretion.clients.local_clients import LocalClients
from discretion.randomness.sources import Seeded
from discretion.randomness.streams import Purpose, stream
from discretion.tasks.datasets import Dataset, Split
from discretion.tasks.partitions import Partition
from discretion.training.orders import NoisySteps, Order

SIZES = np.array([7, 1, 12, 5, 12])


def images(count: int, seed: int) -> Split:
    rng = np.random.default_rng(seed)
    return Split(rng.integers(0, 256, (count, 1, 16, 16), dtype=np.uint8), rng.integers(0, 3, count))


DATASET = Dataset("made", images(40, 0), images(30, 1), 3, "image", "made", mean=0.5, std=0.3)
PARTITION = Partition(np.random.default_rng(2).permutation(40)[:37], np.concatenate([[0], np.cumsum(SIZES)]))


def changes(made: LocalClients, order: Order) -> dict[int, np.ndarray]:
    return {
        int(client): row
        for part in made.updates(order)
        for client, row in zip(part.clients, part.change, strict=True)
    }


def order(who: list[int], made: LocalClients) -> Order:
    clients = np.array(who, dtype=np.int64)
    return Order(4, 9, made.initial(), clients, np.zeros_like(clients))


def noisy(
    made: LocalClients,
    who: list[int],
    steps: int = 1,
    batch: float = 1.0,
    clip: float = np.inf,
    noise: float = 0.0,
    layers: tuple[int, ...] = (),
    seed: int = 0,
) -> Order:
    each = np.ones(len(who))
    told = NoisySteps(
        steps,
        batch * each,
        clip * each,
        noise * each,
        layers,
        lambda i: Seeded(stream(seed, Purpose.STEPS, who[i])),
    )
    return replace(order(who, made), noisy=told)


class Stubborn(nn.Module):
    """Looks at its numbers, which cannot be done for many clients at once."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(256, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        logits = self.inner(inputs.flatten(1))
        result: torch.Tensor = logits if float(logits.detach().sum()) < 1e9 else -logits
        return result


class Net(nn.Module):
    """A model that compiled code does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 6, 5, stride=2)
        self.norm = nn.GroupNorm(2, 6)
        self.last = nn.Linear(6 * 6 * 6, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.last(torch.tanh(self.norm(self.first(inputs))).flatten(1))
        return result


def processes(made: LocalClients) -> list[int]:
    assert made._workers is not None
    return list(made._workers._processes.values())
