"""Compiled training beside torch's: the same records and batches, trained by torch's own optimiser."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from discretion import engine
from discretion.engine import Batches, RecordArrays
from discretion.tasks.datasets import Dataset, Split

compiled_only = pytest.mark.skipif(not engine.available(), reason="the compiled code was not built")
LOOKUP = ((np.arange(256) / 255 - 0.4) / 0.3).astype(np.float32)


def batches(clients: int, steps: int, batch: int, **how: float) -> Batches:
    """The last steps of some clients are short, and one client has none at all there."""
    rng = np.random.default_rng(3)
    real = np.ones((clients, steps, batch), bool)
    for client in range(clients):
        real[client, -1, max(0, batch - 2 * client) :] = False
    real[clients - 1, -1] = False
    rates = (0.05 * 0.9 ** np.arange(steps)).astype(np.float32)
    return Batches(rng.integers(0, 50, real.shape), real, rates, **how)


def by_torch(
    model: nn.Module, records: RecordArrays, steps: Batches, client: int, kind: torch.dtype = torch.float64
) -> np.ndarray:
    """With torch's own optimiser; it trains the model that is given."""
    own = nn.Sequential(model).to(kind)
    before = torch.cat([p.detach().reshape(-1).clone() for p in own.parameters()])
    how: dict[str, Any] = {"momentum": steps.momentum, "weight_decay": steps.weight_decay}
    optimiser = torch.optim.SGD(own.parameters(), lr=1.0, **how)
    for number, (drawn, real) in enumerate(zip(steps.records[client], steps.real[client], strict=True)):
        batch = drawn[real]
        if len(batch) == 0:
            continue
        inputs = records.inputs[batch] if records.lookup is None else records.lookup[records.inputs[batch]]
        optimiser.param_groups[0]["lr"] = float(steps.rates[number])
        optimiser.zero_grad()
        functional.cross_entropy(
            own(torch.from_numpy(inputs).to(kind)), torch.from_numpy(records.labels[batch])
        ).backward()
        optimiser.step()
    moved = torch.cat([p.detach().reshape(-1) for p in own.parameters()]) - before
    return moved.numpy()


def dataset() -> Dataset:
    rng = np.random.default_rng(0)
    split = Split(rng.integers(0, 256, (60, 1, 16, 16), dtype=np.uint8), rng.integers(0, 3, 60))
    return Dataset("made", split, split, 3, "image", "made", mean=0.5, std=0.3)
