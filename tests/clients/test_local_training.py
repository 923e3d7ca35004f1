"""What clients do in a round: batches, steps, epochs and learning rates, held against torch's optimiser."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim.lr_scheduler import ConstantLR, CosineAnnealingLR, ExponentialLR, LRScheduler

from discretion import engine
from discretion.clients.local_clients import LocalClients
from discretion.clients.torch_training import RecordTensors, TorchTraining
from discretion.clients.training import LocalTraining, Schedule, batches
from discretion.errors import InputError
from discretion.tasks import models
from discretion.tasks.partitions import Partition
from discretion.training.orders import Order
from support.local_clients import DATASET, PARTITION, SIZES, Stubborn, changes

CPU = torch.device("cpu")
ROUNDS = 6


def taken(client: int, local: LocalTraining, key: int = 9, turn: int = 0) -> list[list[int]]:
    """The client's real batches, in company of all others."""
    records, real = batches(PARTITION, local, key, np.arange(len(SIZES)), np.full(len(SIZES), turn))
    pairs = zip(records[client], real[client], strict=True)
    return [drawn[some].tolist() for drawn, some in pairs if some.any()]


def test_every_record_is_used_once_in_an_epoch_and_in_another_order_in_the_next() -> None:
    local = LocalTraining(epochs=2, batch_size=5)
    for client, size in enumerate(SIZES.tolist()):
        found, each = taken(client, local), -(-size // 5)
        assert [len(batch) for batch in found] == ([5] * (size // 5) + [size % 5] * (size % 5 > 0)) * 2
        for epoch in (found[:each], found[each:]):
            assert sorted(sum(epoch, [])) == sorted(PARTITION.of(client))
    first, second = taken(2, local)[:3], taken(2, local)[3:]
    assert first != second
    assert taken(2, local, key=10)[:3] != first and taken(2, local, turn=1)[:3] != first


@pytest.mark.parametrize("order", ["shuffled", "sequential"])
def test_steps_are_as_many_for_everybody_and_go_through_epochs(order: str) -> None:
    by_steps = LocalTraining(epochs=0, steps=7, batch_size=5, order=order)  # type: ignore[arg-type]
    by_epochs = LocalTraining(epochs=7, batch_size=5, order=order)  # type: ignore[arg-type]
    for client in range(len(SIZES)):
        assert len(taken(client, by_steps)) == 7
        assert taken(client, by_steps) == taken(client, by_epochs)[:7]


def test_sequential_is_as_the_client_holds_them() -> None:
    found = taken(2, LocalTraining(epochs=2, batch_size=5, order="sequential"))
    assert sum(found, []) == PARTITION.of(2).tolist() * 2


def test_batches_do_not_depend_on_the_company() -> None:
    for local in (LocalTraining(epochs=3, batch_size=5), LocalTraining(epochs=0, steps=9, batch_size=5)):
        for client in range(len(SIZES)):
            records, real = batches(PARTITION, local, 9, np.array([client]), np.array([0]))
            alone = [r[s].tolist() for r, s in zip(records[0], real[0], strict=True)]
            assert alone == taken(client, local)


@pytest.mark.parametrize("local", [LocalTraining(), LocalTraining(epochs=0, steps=4)])
@pytest.mark.parametrize("compiled", [True, False])
def test_a_client_without_records_moves_nothing(local: LocalTraining, compiled: bool) -> None:
    holdings = Partition(np.arange(3), np.array([0, 0, 3, 3]))
    for who in ([0, 1, 2], [0, 2]):
        made = LocalClients(DATASET, holdings, models.build("linear", DATASET, 0), local, workers=1)
        made._stack = made._stack if compiled else None
        asked = Order(1, 0, made.initial(), np.array(who), np.zeros(len(who), np.int64))
        found = changes(made, asked)
        assert not found[0].any() and not found[2].any()
        assert 1 not in who or found[1].any()


@pytest.mark.parametrize(("epochs", "steps"), [(0, 0), (1, 1), (-1, 0), (0, -2), (2, -1)])
def test_training_is_for_epochs_or_for_steps(epochs: int, steps: int) -> None:
    with pytest.raises(InputError, match=f"epochs {epochs} and steps {steps}"):
        LocalTraining(epochs=epochs, steps=steps)
    with pytest.raises(InputError, match="batch_size of at least 1, found 0"):
        LocalTraining(batch_size=0)


SCHEDULES: dict[str, Callable[[torch.optim.SGD], LRScheduler]] = {
    "constant": lambda optimiser: ConstantLR(optimiser, factor=1.0),
    "decay:0.8": lambda optimiser: ExponentialLR(optimiser, 0.8),
    "cosine": lambda optimiser: CosineAnnealingLR(optimiser, T_max=ROUNDS),
}


@pytest.mark.parametrize("text", SCHEDULES)
def test_rates_over_rounds_are_those_of_torch(text: str) -> None:
    optimiser = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.3)
    scheduler = SCHEDULES[text](optimiser)
    local = LocalTraining(learning_rate=0.3, schedule=Schedule.parse(text))
    for round_ in range(1, ROUNDS + 1):
        assert local.rate(round_, ROUNDS) == pytest.approx(scheduler.get_last_lr()[0], rel=1e-12)
        optimiser.step()
        scheduler.step()
    assert local.rate(1, ROUNDS) == 0.3


@pytest.mark.parametrize("text", ["cosin", "decay", "decay:", "decay:0", "decay:1.1", "decay:x", "cosine:2"])
def test_schedules_that_make_no_sense(text: str) -> None:
    with pytest.raises(InputError, match=f"unknown schedule '{text}': expected constant, cosine, or decay"):
        Schedule.parse(text)


def test_a_cosine_needs_the_number_of_rounds() -> None:
    with pytest.raises(InputError, match="number of rounds"):
        LocalTraining(schedule=Schedule("cosine")).rate(1)
    assert math.isclose(LocalTraining(schedule=Schedule("cosine")).rate(4, 6), 0.05)


def by_optimiser(
    model: nn.Module, start: np.ndarray, client: int, local: LocalTraining, round_: int
) -> np.ndarray:
    """(d,) the same training by torch.optim.SGD and torch's scheduler."""
    torch.nn.utils.vector_to_parameters(torch.from_numpy(start.copy()), model.parameters())
    optimiser = torch.optim.SGD(
        model.parameters(), local.learning_rate, local.momentum, weight_decay=local.weight_decay
    )
    scheduler = CosineAnnealingLR(optimiser, T_max=ROUNDS)
    for _ in range(round_ - 1):
        optimiser.step()
        scheduler.step()
    for batch in taken(client, local):
        inputs = (torch.from_numpy(DATASET.train.inputs)[batch].float() / 255 - 0.5) / 0.3
        optimiser.zero_grad()
        functional.cross_entropy(model(inputs), torch.from_numpy(DATASET.train.labels)[batch]).backward()
        optimiser.step()
    moved: np.ndarray = models.flatten(model) - start
    return moved


HOW = [
    {"epochs": 0, "steps": 5, "order": "sequential"},
    {"epochs": 2, "momentum": 0.6, "weight_decay": 0.05},
    {"epochs": 0, "steps": 4, "momentum": 0.6},
]


@pytest.mark.parametrize("how", HOW, ids=["steps", "momentum", "both"])
@pytest.mark.parametrize("way", ["compiled", "one after the other", "together"])
def test_every_way_ends_where_torch_ends(how: dict[str, Any], way: str) -> None:
    local = LocalTraining(**how, batch_size=5, learning_rate=0.05, schedule=Schedule("cosine"))
    made = LocalClients(DATASET, PARTITION, models.build("cnn_small", DATASET, 0), local, workers=1)
    if way == "compiled" and not engine.available():
        pytest.skip("no compiled code")
    start, everybody = made.initial(), np.arange(len(SIZES))
    if way == "together":
        records, real = batches(PARTITION, local, 9, everybody, 0 * everybody)
        rows = made._torch.train_many(start, records, real, local.rate(3, ROUNDS))
        assert made._torch._vmap_works
    else:
        made._stack = made._stack if way == "compiled" else None
        found = changes(made, Order(3, 9, start, everybody, 0 * everybody, rounds=ROUNDS))
        rows = np.array([found[client] for client in everybody.tolist()])
    for client in everybody.tolist():
        expected = by_optimiser(models.build("cnn_small", DATASET, 0), start, client, local, round_=3)
        np.testing.assert_allclose(rows[client], expected, atol=1e-5)
        assert np.abs(expected).max() > 1e-3


def test_where_torch_cannot_vectorise_clients_are_trained_one_after_the_other() -> None:
    torch.manual_seed(0)
    local, model, data = LocalTraining(), Stubborn(), RecordTensors(DATASET, DATASET.train, CPU)
    records, real = batches(PARTITION, local, 9, np.arange(3), np.zeros(3, np.int64))
    many, single = TorchTraining(model, data, local), TorchTraining(model, data, local)
    start = models.flatten(model)
    rows = many.train_many(start, records, real, 0.1)
    assert not many._vmap_works
    for client in range(3):
        row = single.train(start, records[client], real[client], 0.1)
        np.testing.assert_array_equal(rows[client], row)


class Viewing(nn.Module):
    """Flattens by `view`, which convolutions with channels last do not allow."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3))
        self.linear = nn.Linear(4 * 12 * 12, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        found = self.convolutions(inputs)
        result: torch.Tensor = self.linear(found.view(len(inputs), -1))
        return result


def test_a_model_that_cannot_have_its_channels_last_trains_all_the_same() -> None:
    torch.manual_seed(0)
    viewing = Viewing()
    plain = nn.Sequential(viewing.convolutions, nn.Flatten(), viewing.linear)
    local, data = LocalTraining(epochs=2), RecordTensors(DATASET, DATASET.train, CPU)
    records, real = batches(PARTITION, local, 9, np.array([2]), np.array([0]))
    ways = [TorchTraining(model, data, local) for model in (viewing, plain)]
    assert [way._laid._channels_last for way in ways] == [False, True]
    one, other = (way.train(models.flatten(viewing), records[0], real[0], 0.1) for way in ways)
    np.testing.assert_allclose(one, other, atol=1e-6)
    assert np.abs(one).max() > 1e-3


class Spare(nn.Module):
    """Has a layer that is not used, and one of which only the bias is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.spare = nn.Linear(256, 4), nn.Linear(4, 3), nn.Linear(2, 2)
        self.first.weight.requires_grad_(False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.last(torch.tanh(self.first(inputs.flatten(1))))
        return result


def test_parameters_that_are_frozen_or_unused_stay() -> None:
    torch.manual_seed(0)
    made = LocalClients(DATASET, PARTITION, Spare(), LocalTraining(), workers=1)
    row = changes(made, Order(1, 9, made.initial(), np.array([2]), np.array([0])))[2]
    assert len(row) == 4 + 12 + 3 + 6 and row[:4].any()
    assert not row[-6:].any()
