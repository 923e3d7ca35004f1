"""Compiled local training ends where torch's does, and where it cannot be used torch's is."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from discretion import engine
from discretion.clients.local_clients import LocalClients
from discretion.clients.training import LocalTraining, Schedule
from discretion.engine import Batches, RecordArrays, Stack, stack_of
from discretion.tasks import models
from discretion.tasks.partitions import Partition
from discretion.training.orders import Order
from support.compiled_training import LOOKUP, batches, by_torch, compiled_only, dataset


def cnn_small() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 10, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(10, 20, 5), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(320, 50), nn.ReLU(), nn.Linear(50, 4)),
    )


def relu_first() -> nn.Module:
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Sequential(nn.Conv2d(32, 16, 3, padding="same"), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Sequential(nn.Flatten(), nn.Linear(256, 24), nn.ReLU(), nn.Linear(24, 4)),
    )


def odd_shapes() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 5, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(5, 9, (3, 2), padding=(0, 1))),
        *(nn.ReLU(), nn.MaxPool2d(3, 2, 1), nn.MaxPool2d(2), nn.Identity(), nn.Flatten()),
        *(nn.Linear(36, 11, bias=False), nn.ReLU(), nn.Linear(11, 4)),
    )


def without_pooling() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(2, 40, 3, stride=(1, 2)), nn.ReLU(), nn.Conv2d(40, 7, 1, bias=False), nn.ReLU()),
        *(nn.Conv2d(7, 4, (5, 2), padding=(1, 0)), nn.MaxPool2d((4, 2)), nn.Flatten()),
    )


def pooled_first() -> nn.Module:
    return nn.Sequential(nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(27, 4))


def wide_window() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 17, (2, 9)), nn.ReLU(), nn.Conv2d(17, 3, 2), nn.Flatten(), nn.Linear(3, 4)
    )


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "cnn_small": (cnn_small, (1, 28, 28)),
    "relu_first": (relu_first, (1, 16, 16)),
    "odd_shapes": (odd_shapes, (3, 19, 18)),
    "without_pooling": (without_pooling, (2, 8, 9)),
    "pooled_first": (pooled_first, (2, 10, 11)),
    "wide_window": (wide_window, (2, 3, 10)),
    "mlp": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(90, 13), nn.ReLU(), nn.Linear(13, 4)), (1, 9, 10)),
    "table": (lambda: nn.Sequential(nn.Linear(13, 16), nn.ReLU(), nn.Linear(16, 4)), (13,)),
    "regression": (lambda: nn.Linear(8, 4), (8,)),
}


def made(name: str) -> tuple[nn.Module, Stack, RecordArrays]:
    build, shape = MODELS[name]
    torch.manual_seed(1)
    model, rng = build(), np.random.default_rng(2)
    stack = stack_of(model, shape)
    assert stack is not None
    labels = rng.integers(0, 4, 50)
    if len(shape) == 3:
        return model, stack, RecordArrays(rng.integers(0, 256, (50, *shape), dtype=np.uint8), labels, LOOKUP)
    return model, stack, RecordArrays(rng.standard_normal((50, *shape)).astype(np.float32), labels)


@compiled_only
@pytest.mark.parametrize("how", [{}, {"momentum": 0.8, "weight_decay": 0.02}], ids=["plain", "momentum"])
@pytest.mark.parametrize("batch", [1, 4, 11])
@pytest.mark.parametrize("name", MODELS)
def test_updates_are_those_of_torch(name: str, batch: int, how: dict[str, float]) -> None:
    _, stack, records = made(name)
    steps = batches(3, 4, batch, **how)
    found = engine.train(stack, records, steps, models.flatten(made(name)[0]), threads=1)
    for client in range(3):
        expected = by_torch(made(name)[0], records, steps, client)
        error = np.linalg.norm(found[client] - expected) / np.linalg.norm(expected)
        assert error < 1e-5, (client, error)


@compiled_only
@pytest.mark.parametrize("name", ["cnn_small", "odd_shapes", "mlp"])
def test_a_row_depends_neither_on_threads_nor_on_the_others(name: str) -> None:
    model, stack, records = made(name)
    steps, start = batches(5, 3, 6, momentum=0.5), models.flatten(model)
    alone = engine.train(stack, records, steps, start, threads=1)
    for threads in (2, 3, 8):
        np.testing.assert_array_equal(engine.train(stack, records, steps, start, threads), alone)
    some = np.array([4, 1])
    few = replace(steps, records=steps.records[some], real=steps.real[some])
    np.testing.assert_array_equal(engine.train(stack, records, few, start, threads=2), alone[some])


@compiled_only
def test_steps_without_records_move_nothing_and_nobody_is_a_round() -> None:
    model, stack, records = made("cnn_small")
    steps = batches(2, 3, 4, momentum=0.5, weight_decay=0.1)
    idle = replace(steps, real=np.zeros_like(steps.real))
    assert not engine.train(stack, records, idle, models.flatten(model), threads=2).any()
    nobody = replace(steps, records=steps.records[:0], real=steps.real[:0])
    assert engine.train(stack, records, nobody, models.flatten(model), threads=2).shape == (0, stack.size)


@compiled_only
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["table", "cnn_small", "odd_shapes", "without_pooling", "pooled_first"])
def test_what_is_not_finite_stays_so_and_harms_no_other_client(name: str, bad: float) -> None:
    model, stack, records = made(name)
    if records.lookup is None:
        inputs = records.inputs.copy()
        inputs[0, 3] = bad
        broken = replace(records, inputs=inputs)
    else:  # byte 255 stands for it, and only record 0 has one
        inputs = np.minimum(records.inputs, 254)
        records = replace(records, inputs=inputs.copy())
        inputs[0, :, 3, [3, -1]] = 255  # not the first of a pooling window; and next to the margin
        lookup = LOOKUP.copy()
        lookup[255] = bad
        broken = replace(records, inputs=inputs, lookup=lookup)
    steps = batches(3, 2, 5)
    others = np.where(steps.records == 0, 1, steps.records)
    others[1, 0, 0] = 0
    steps = replace(steps, records=others)
    found = engine.train(stack, broken, steps, models.flatten(model), threads=1)
    fine = engine.train(stack, records, steps, models.flatten(model), threads=1)
    assert not np.isfinite(found[1]).all()
    np.testing.assert_array_equal(found[[0, 2]], fine[[0, 2]])


@compiled_only
def test_steps_that_leave_floating_point_are_not_finite() -> None:
    model, stack, records = made("cnn_small")
    steps = replace(batches(2, 4, 5), rates=np.full(4, 1e30, np.float32))
    assert not np.isfinite(engine.train(stack, records, steps, models.flatten(model), threads=1)).all(1).any()


@compiled_only
def test_numbers_that_do_not_fit_never_reach_the_compiled_code() -> None:
    model, stack, records = made("cnn_small")
    steps, start = batches(2, 3, 4), models.flatten(model)
    outside = steps.records.copy()
    outside[0, 0, 0] = 50
    wrong: list[tuple[RecordArrays, Batches, np.ndarray, str]] = [
        (records, steps, start[1:], "21534 parameters"),
        (records, replace(steps, records=outside), start, "records that exist"),
        (records, replace(steps, records=-outside), start, "records that exist"),
        (records, replace(steps, real=steps.real[:1]), start, "batches"),
        (records, replace(steps, rates=steps.rates[:1]), start, "one rate"),
        (replace(records, labels=records.labels[1:]), steps, start, "one label"),
        (replace(records, labels=records.labels + 100), steps, start, "labels from 0"),
        (replace(records, lookup=LOOKUP[1:]), steps, start, "256"),
        (replace(records, lookup=None), steps, start, "float32"),
        (replace(records, inputs=records.inputs[:, :, 1:]), steps, start, "inputs of"),
    ]
    for odd, how, vector, message in wrong:
        with pytest.raises(ValueError, match=message):
            engine.train(stack, odd, how, vector, threads=1)


class Twice(nn.Sequential):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        for layer in self:
            inputs = layer(inputs)
        return 2 * inputs


def frozen() -> nn.Module:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
    model[1].bias.requires_grad_(False)
    return model


def hooked() -> nn.Module:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
    model[1].register_forward_hook(lambda module, inputs, output: 2 * output)
    return model


def doubled(module: nn.Module, slopes: Any) -> tuple[torch.Tensor]:
    return (2 * slopes[0],)


def hooked_backward() -> nn.Module:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
    model[1].register_full_backward_pre_hook(doubled)
    return model


def with_a_forward_of_its_own() -> nn.Module:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
    model[0].forward = lambda inputs: 2 * inputs.flatten(1)
    return model


def tied() -> nn.Module:
    same = nn.Linear(64, 64)
    return nn.Sequential(nn.Flatten(), same, nn.ReLU(), same)


UNKNOWN: list[Callable[[], nn.Module]] = [
    lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.Tanh(), nn.Linear(9, 4)),
    lambda: nn.Sequential(nn.Conv2d(1, 4, 3, dilation=2), nn.Flatten(), nn.Linear(64, 4)),
    lambda: nn.Sequential(nn.Conv2d(1, 4, 3, padding=1, padding_mode="reflect"), nn.Flatten()),
    lambda: nn.Sequential(nn.Conv2d(1, 2, 1), nn.Conv2d(2, 2, 3, groups=2), nn.Flatten(), nn.Linear(72, 4)),
    lambda: nn.Sequential(nn.MaxPool2d(3, ceil_mode=True), nn.Flatten(), nn.Linear(9, 4)),
    lambda: nn.Sequential(nn.Linear(8, 4), nn.Flatten(), nn.Linear(32, 4)),
    lambda: nn.Sequential(nn.Flatten(0), nn.Linear(64, 4)),
    lambda: nn.Sequential(nn.Flatten(), nn.Linear(63, 4)),
    lambda: nn.Sequential(nn.Conv2d(1, 4, 9), nn.Flatten()),
    lambda: nn.Sequential(nn.Conv2d(1, 4, 8)),
    lambda: Twice(nn.Flatten(), nn.Linear(64, 4)),
    lambda: nn.Sequential(nn.Flatten(), nn.ReLU(), nn.Linear(64, 4)),
    lambda: nn.Sequential(nn.Flatten()),
    *(frozen, hooked, hooked_backward, with_a_forward_of_its_own, tied),
]


@pytest.mark.parametrize("number", range(len(UNKNOWN)))
def test_what_is_not_known_is_left_to_torch(number: int) -> None:
    assert stack_of(UNKNOWN[number](), (1, 8, 8)) is None


@compiled_only
@pytest.mark.parametrize("name", MODELS)
def test_scores_are_the_logits_of_torch(name: str) -> None:
    model, stack, records = made(name)
    start = models.flatten(model)
    found = engine.scores(stack, records, start, threads=1)
    inputs = torch.from_numpy(records.inputs)
    if records.lookup is not None:
        inputs = torch.from_numpy(records.lookup)[inputs.long()]
    with torch.no_grad():
        expected = model(inputs).numpy()
    np.testing.assert_allclose(found, expected, atol=2e-5 * np.abs(expected).max())
    np.testing.assert_array_equal(engine.scores(stack, records, start, threads=3), found)
    few = replace(records, inputs=records.inputs[5:7], labels=records.labels[5:7])
    np.testing.assert_array_equal(engine.scores(stack, few, start, threads=2), found[5:7])
    none = replace(records, inputs=records.inputs[:0], labels=records.labels[:0])
    assert engine.scores(stack, none, start, threads=2).shape == (0, stack.classes)
    with pytest.raises(ValueError, match="parameters"):
        engine.scores(stack, records, start[1:], threads=1)
    with pytest.raises(ValueError, match="expected inputs"):
        engine.scores(stack, replace(records, inputs=records.inputs[..., :1]), start, threads=1)


# behind LocalClients

SIZES = np.array([7, 1, 12, 5, 12, 9])
LOCAL = LocalTraining(3, 5, 0.05, momentum=0.5, weight_decay=0.01, schedule=Schedule("decay", 0.9))


def clients(local: LocalTraining = LOCAL, model: nn.Module | None = None) -> LocalClients:
    data = dataset()
    holdings = Partition(np.random.default_rng(2).permutation(60)[:46], np.concatenate([[0], SIZES.cumsum()]))
    return LocalClients(data, holdings, model or models.build("cnn_small", data, 0), local, workers=1)


def rows(made: LocalClients, who: list[int], round_: int = 4) -> dict[int, np.ndarray]:
    asked = Order(round_, 9, made.initial(), np.array(who), np.zeros(len(who), np.int64))
    parts = list(made.updates(asked))
    return {int(c): row for part in parts for c, row in zip(part.clients, part.change, strict=True)}


@compiled_only
@pytest.mark.parametrize("local", [LOCAL, LocalTraining(2, 5, 0.1)], ids=["momentum", "plain"])
def test_both_ways_give_the_same_updates(local: LocalTraining) -> None:
    fast, slow = clients(local), clients(local)
    assert fast._stack is not None
    slow._stack = None
    everybody = [0, 1, 2, 3, 4, 5]
    found, expected = (rows(one, everybody) for one in (fast, slow))
    for client in everybody:
        size = np.linalg.norm(expected[client])
        assert np.linalg.norm(found[client] - expected[client]) < 2e-5 * size


@compiled_only
def test_a_client_is_trained_alike_in_whatever_company() -> None:
    one = clients()
    many, few = rows(one, [0, 1, 2, 3, 4, 5]), rows(one, [1, 3])
    for client in (1, 3):
        np.testing.assert_array_equal(many[client], few[client])


def test_padding_moves_nobody_by_torch_either() -> None:
    """With momentum and weight decay a step on nothing would still move a short client."""
    one = clients()
    one._stack = None
    many, few = rows(one, [0, 1, 2, 3, 4, 5]), rows(one, [1])
    np.testing.assert_array_equal(many[1], few[1])


def test_without_the_compiled_code_torch_trains(without_compiled: None) -> None:
    assert not engine.available()
    one = clients()
    assert one._stack is None and all(row.any() for row in rows(one, [0, 2]).values())
    model, stack, records = made("table")
    with pytest.raises(RuntimeError, match="available"):
        engine.train(stack, records, batches(2, 2, 3), models.flatten(model), threads=1)


def test_labels_that_the_model_has_no_place_for_are_left_to_torch() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(256, 2))
    assert clients(model=model)._stack is None


def test_the_learning_rate_decays_by_the_round() -> None:
    plain = clients(LocalTraining(1, 20, 0.08, schedule=Schedule("decay", 0.5)))
    first, third = rows(plain, [0], round_=1)[0], rows(plain, [0], round_=3)[0]
    np.testing.assert_allclose(third, first / 4, rtol=1e-3, atol=1e-7)  # one step each, on all records


@compiled_only
def test_memory_is_bounded_by_the_chunk() -> None:
    one, least = clients(), torch.get_num_threads()
    size, epochs = len(one.initial()), LOCAL.epochs
    assert 2**24 < one._at_once(10) * size <= 2**25
    assert one._at_once(10**5) * epochs * 10**5 < 2**25 and one._at_once(10**9) == least
