"""Training elsewhere than on the CPU. Without a GPU here: torch's "meta" device, which has shapes and no
numbers and refuses to mix with tensors of the CPU, stands in, and shows that nothing is left behind."""

import os

import numpy as np
import pytest
import torch
from torch import nn

from discretion import engine
from discretion.clients import devices
from discretion.clients.local_clients import LocalClients
from discretion.clients.training import LocalTraining
from discretion.errors import InputError
from discretion.plan.selection_rules import READS, Reading, Rule
from discretion.tasks import models
from discretion.tasks.datasets import Dataset, Split
from discretion.tasks.partitions import Partition
from support.local_clients import DATASET, PARTITION, Net, changes, noisy, order

META = torch.device("meta")


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes back from the device is zeros."""
    here = torch.Tensor.cpu

    def back(tensor: torch.Tensor) -> torch.Tensor:
        return here(tensor) if tensor.device != META else torch.zeros(tensor.shape, dtype=tensor.dtype)

    monkeypatch.setattr(devices, "find", lambda name, compiled: META)
    monkeypatch.setattr(torch.Tensor, "cpu", back)


def test_the_stand_in_refuses_what_was_left_behind() -> None:
    with pytest.raises(RuntimeError, match="device"):
        torch.zeros(2, 3, device="meta") @ torch.zeros(3)
    with pytest.raises(RuntimeError, match="device"):
        nn.Linear(3, 2, device="meta")(torch.zeros(1, 3))


def text() -> Dataset:
    rng = np.random.default_rng(0)
    split = Split(rng.integers(0, 9, (40, 5), dtype=np.uint8), rng.integers(0, 9, 40))
    return Dataset("made", split, split, 9, "text", "made")


@pytest.mark.parametrize("name", ["cnn_small", "mlp", "lstm", "own"])
def test_everything_goes_to_the_device(name: str, elsewhere: None) -> None:
    data = text() if name == "lstm" else DATASET
    model = Net() if name == "own" else models.build(name, data, 0)
    local = LocalTraining(epochs=2, batch_size=5, momentum=0.5, weight_decay=0.1)
    made = LocalClients(data, PARTITION, model, local)
    size = sum(p.numel() for p in model.parameters())
    assert made.device == META and {p.device for p in model.parameters()} == {META}
    found = changes(made, order([0, 1, 2], made))
    assert made._stack is None and made._torch._vmap_works  # by vmap, in this process
    assert [row.shape for row in found.values()] == [(size,)] * 3
    records, real = made._batches(order([2], made), np.array([0]))
    single = made._torch.train(made.initial(), records[0], real[0], 0.1)
    assert single.shape == (size,)
    for layers in ((), made.layers):
        steps = changes(made, noisy(made, [0, 2], steps=2, clip=1.0, noise=0.1, layers=layers))
        assert [row.shape for row in steps.values()] == [(size,)] * 2 and steps[0].any()  # the noise
    assert made.evaluate(made.initial()).loss == 0.0
    columns: dict[Rule, int] = {"norm": 1, "diversity": 2, "largest_loss": 1, "class_balance": data.classes}
    for rule in READS:
        assert made.statistics(order([0, 2], made), Reading(rule, 1, 1.0)).value.shape == (2, columns[rule])
    assert {v.device.type for v in map(torch.from_numpy, made.named(made.initial()).values())} == {"cpu"}


def test_unknown_devices_are_refused_with_those_that_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for name in ("cuda", "cuda:0", "gpu", "meta", "cpu:1"):
        with pytest.raises(InputError, match=f"no device '{name}' on this machine: choose one of auto, cpu$"):
            devices.find(name, compiled=False)
    assert devices.find("auto", compiled=False) == devices.find("cpu", compiled=True) == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(InputError, match="one of auto, cpu, cuda, cuda:0, cuda:1$"):
        devices.find("cuda:2", compiled=False)
    assert devices.find("cuda", compiled=True) == devices.find("auto", compiled=False)
    assert devices.find("cuda:1", compiled=False) == torch.device("cuda:1")
    assert devices.find("auto", compiled=True) == torch.device("cpu")


@pytest.mark.skipif(not engine.available(), reason="no compiled code")
def test_compiled_code_trains_on_the_cpu_only(elsewhere: None, monkeypatch: pytest.MonkeyPatch) -> None:
    made = LocalClients(DATASET, PARTITION, models.build("cnn_small", DATASET, 0))
    assert made._stack is None
    monkeypatch.undo()
    asked: list[bool] = []

    def find(name: str, compiled: bool) -> torch.device:
        asked.append(compiled)
        return torch.device("cpu")

    monkeypatch.setattr(devices, "find", find)
    assert LocalClients(DATASET, PARTITION, models.build("cnn_small", DATASET, 0))._stack is not None
    assert LocalClients(DATASET, PARTITION, Net())._stack is None
    assert asked == [True, False]


def test_cores_are_those_that_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5, 7}, raising=False)
    assert devices.cores() == 3
    holdings = Partition(np.arange(3), np.array([0, 3]))
    assert LocalClients(DATASET, holdings, Net())._count == 3
    assert LocalClients(DATASET, holdings, Net(), workers=2)._count == 2
