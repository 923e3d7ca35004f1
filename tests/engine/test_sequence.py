"""Compiled local training of models that read text ends where torch's does, or torch's is used."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from discretion import engine
from discretion.clients.local_clients import LocalClients
from discretion.clients.training import LocalTraining, Schedule
from discretion.engine import Batches, RecordArrays, Sequence, sequence_of
from discretion.tasks import models
from discretion.tasks.datasets import Dataset, Split
from discretion.tasks.partitions import Partition
from discretion.training.orders import Order

compiled_only = pytest.mark.skipif(not engine.available(), reason="the compiled code was not built")

TOKENS = 11


class Reader(nn.Module):
    """What a user might write; `end` is what it does with the output of nn.LSTM."""

    def __init__(
        self,
        embedding: nn.Module,
        lstm: nn.Module,
        output: nn.Module,
        end: Callable[[Any], Any] = lambda given: given[0][:, -1],
    ) -> None:
        super().__init__()
        self.output, self.embedding, self.lstm = output, embedding, lstm  # an order of its own
        self.end = end

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.output(self.end(self.lstm(self.embedding(ids))))
        return logits


def reader(
    width: int = 6, hidden: int = 9, classes: int = 5, end: Callable[[Any], Any] | None = None, **how: Any
) -> nn.Module:
    lstm = nn.LSTM(width, hidden, **({"batch_first": True} | how))
    parts = (nn.Embedding(TOKENS, width), lstm, nn.Linear(hidden, classes, bias=how.get("bias", True)))
    return Reader(*parts, *([end] if end else []))


def built_in(width: int, hidden: list[int], classes: int) -> models._LSTM:
    model = models._LSTM(TOKENS, width, hidden[-1])
    layers = zip([width, *hidden], hidden, strict=False)
    model.layers = nn.Sequential(*(models.LSTMLayer(*sizes) for sizes in layers))
    model.output = nn.Linear(hidden[-1], classes)
    return model


MODELS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "built_in": (lambda: models._LSTM(TOKENS, hidden=16), 6),
    "odd_sizes": (lambda: built_in(5, [13, 1, 35], 40), 7),
    "long_window": (lambda: built_in(3, [10], TOKENS), 50),
    "one_token": (lambda: built_in(8, [16, 16], TOKENS), 1),
    "wide": (lambda: built_in(40, [270, 70], 65), 3),
    "torchs_layers": (lambda: reader(num_layers=3), 6),
    "without_bias": (lambda: reader(bias=False, num_layers=2), 6),
    "last_output": (lambda: reader(end=lambda given: given[1][0][-1]), 6),
}


def made(name: str) -> tuple[nn.Module, Sequence, RecordArrays]:
    build, window = MODELS[name]
    torch.manual_seed(1)
    model, rng = build(), np.random.default_rng(2)
    sequence = sequence_of(model, window)
    assert sequence is not None
    inputs = rng.integers(0, TOKENS, (50, window), dtype=np.uint8)
    inputs[:20] = inputs[:20, :1]  # one token over and over
    return model, sequence, RecordArrays(inputs, rng.integers(0, sequence.classes, 50))


def batches(clients: int, steps: int, batch: int, **how: float) -> Batches:
    """The last steps of some clients are short, and one client has none at all there."""
    rng = np.random.default_rng(3)
    real = rng.random((clients, steps, batch)) < 0.8
    real[:, 0] = True
    real[clients - 1, -1] = False
    rates = (0.5 * 0.9 ** np.arange(steps)).astype(np.float32)
    return Batches(rng.integers(0, 50, real.shape), real, rates, **how)


def by_torch(model: nn.Module, records: RecordArrays, steps: Batches, client: int) -> np.ndarray:
    """With torch's own optimiser, in float64."""
    own = copy.deepcopy(model).double()
    before = torch.cat([p.detach().reshape(-1).clone() for p in own.parameters()])
    how: dict[str, Any] = {"momentum": steps.momentum, "weight_decay": steps.weight_decay}
    optimiser = torch.optim.SGD(own.parameters(), lr=1.0, **how)
    for number, (drawn, real) in enumerate(zip(steps.records[client], steps.real[client], strict=True)):
        if not real.any():
            continue
        batch = drawn[real]
        optimiser.param_groups[0]["lr"] = float(steps.rates[number])
        optimiser.zero_grad()
        logits = own(torch.from_numpy(records.inputs[batch].astype(np.int64)))
        functional.cross_entropy(logits, torch.from_numpy(records.labels[batch])).backward()
        optimiser.step()
    moved = torch.cat([p.detach().reshape(-1) for p in own.parameters()]) - before
    return moved.numpy()


@compiled_only
@pytest.mark.parametrize("how", [{}, {"momentum": 0.8, "weight_decay": 0.02}], ids=["plain", "momentum"])
@pytest.mark.parametrize("batch", [1, 11, 30])
@pytest.mark.parametrize("name", MODELS)
def test_updates_are_those_of_torch(name: str, batch: int, how: dict[str, float]) -> None:
    model, sequence, records = made(name)
    steps = batches(2, 4, batch, **how)
    start = models.flatten(model)
    found = engine.train(sequence, records, steps, start, threads=1)
    rounded = 4 * np.finfo(np.float32).eps / 2 * np.linalg.norm(start)  # the weights, in each step
    for client in range(2):
        expected = by_torch(model, records, steps, client)
        error = np.linalg.norm(found[client] - expected)
        assert error < 5e-6 * np.linalg.norm(expected) + rounded, (client, error)


@compiled_only
def test_gates_are_right_near_zero_and_far_out() -> None:
    """One unit, one token: an update is a product of sigmoids and hyperbolic tangents, and their slopes."""
    model = built_in(1, [1], 2)
    reach = np.concatenate([10.0 ** np.arange(-6, 3), np.linspace(0.1, 30, 60)]).astype(np.float32)
    values = np.concatenate([-reach, reach, [0]]).astype(np.float32)
    model.embedding = nn.Embedding(len(values), 1)
    with torch.no_grad():
        model.embedding.weight.copy_(torch.from_numpy(values)[:, None])
        for number, parameter in enumerate(model.layers.parameters()):
            parameter.copy_(torch.linspace(-1, 2, parameter.numel()).reshape(parameter.shape) + number / 9)
    sequence = sequence_of(model, 2)
    assert sequence is not None
    tokens = np.arange(len(values), dtype=np.uint8)
    records = RecordArrays(np.stack([tokens, tokens[::-1]], axis=1), tokens.astype(np.int64) % 2)
    each = Batches(
        tokens.astype(np.int64)[:, None, None], np.ones((len(tokens), 1, 1), bool), np.ones(1, np.float32)
    )
    found = engine.train(sequence, records, each, models.flatten(model), threads=1)
    expected = np.array([by_torch(model, records, each, client) for client in range(len(tokens))])
    near = np.abs(models.flatten(model)) < 10  # a small step from a large number is rounded away
    np.testing.assert_allclose(found[:, near], expected[:, near], rtol=2e-6, atol=1e-6)


@compiled_only
@pytest.mark.parametrize("name", ["built_in", "odd_sizes", "torchs_layers"])
def test_a_row_depends_neither_on_threads_nor_on_the_others(name: str) -> None:
    model, sequence, records = made(name)
    steps, start = batches(5, 3, 6, momentum=0.5), models.flatten(model)
    alone = engine.train(sequence, records, steps, start, threads=1)
    for threads in (2, 3, 8):
        np.testing.assert_array_equal(engine.train(sequence, records, steps, start, threads), alone)
    some = np.array([4, 1])
    few = replace(steps, records=steps.records[some], real=steps.real[some])
    np.testing.assert_array_equal(engine.train(sequence, records, few, start, threads=2), alone[some])
    wide = replace(records, inputs=records.inputs.astype(np.int64))
    np.testing.assert_array_equal(engine.train(sequence, wide, steps, start, threads=1), alone)


@compiled_only
def test_padding_is_as_if_it_were_not_there() -> None:
    model, sequence, records = made("odd_sizes")
    steps, start = batches(1, 1, 9, momentum=0.5), models.flatten(model)
    steps = replace(steps, real=np.arange(9)[None, None] % 2 == 0)
    bare = replace(steps, records=steps.records[:, :, ::2], real=steps.real[:, :, ::2])
    np.testing.assert_array_equal(
        engine.train(sequence, records, steps, start, 1), engine.train(sequence, records, bare, start, 1)
    )


@compiled_only
def test_steps_without_records_move_nothing_and_nobody_is_a_round() -> None:
    model, sequence, records = made("built_in")
    steps, start = batches(2, 3, 4, momentum=0.5, weight_decay=0.1), models.flatten(model)
    idle = replace(steps, real=np.zeros_like(steps.real))
    assert not engine.train(sequence, records, idle, start, threads=2).any()
    nobody = replace(steps, records=steps.records[:0], real=steps.real[:0])
    assert engine.train(sequence, records, nobody, start, threads=2).shape == (0, sequence.size)


@compiled_only
@pytest.mark.parametrize("how", [{}, {"momentum": 0.5}], ids=["plain", "momentum"])
@pytest.mark.parametrize("name", ["built_in", "odd_sizes", "torchs_layers"])
def test_what_leaves_floating_point_is_not_finite_and_harms_no_other_client(
    name: str, how: dict[str, float]
) -> None:
    model, sequence, records = made(name)
    steps, start = batches(3, 4, 5, **how), models.flatten(model)
    real = steps.real.copy()
    real[[0, 2], 0] = False  # client 1 alone takes the step that goes beyond
    real[:, 1:, 0] = True
    calm, wild = (
        replace(steps, real=real, rates=np.array([rate, 0.5, 0.5, 0.5], np.float32)) for rate in (0.5, np.inf)
    )
    fine, found = (engine.train(sequence, records, how, start, threads=1) for how in (calm, wild))
    assert np.isfinite(fine).all() and not np.isfinite(found[1]).all()
    np.testing.assert_array_equal(found[[0, 2]], fine[[0, 2]])


@compiled_only
@pytest.mark.parametrize("name", ["built_in", "one_token"])
def test_a_model_that_is_not_finite_stays_so(name: str) -> None:
    model, sequence, records = made(name)
    steps, places = batches(2, 1, 5), {p: p.numel() for p in model.parameters()}
    ends = np.cumsum(list(places.values()))
    for end in ends[1:]:  # the first weight of the embedding is of a token that need not be there
        broken = models.flatten(model)
        broken[end - 1] = np.nan
        assert not np.isfinite(engine.train(sequence, records, steps, broken, threads=1)).all(1).any()


@compiled_only
def test_numbers_that_do_not_fit_never_reach_the_compiled_code() -> None:
    model, sequence, records = made("built_in")
    steps, start = batches(2, 3, 4), models.flatten(model)
    outside = steps.records.copy()
    outside[0, 0, 0] = 50
    beyond, below = records.inputs.astype(np.int64), records.inputs.astype(np.int64)
    beyond[49, 5], below[0, 0] = TOKENS, -1
    label, negative = records.labels.copy(), records.labels.copy()
    label[3], negative[3] = TOKENS, -1
    wrong: list[tuple[RecordArrays, Batches, np.ndarray, str]] = [
        (replace(records, inputs=beyond), steps, start, "tokens from 0 to 10"),
        (replace(records, inputs=beyond.astype(np.uint8)), steps, start, "tokens from 0 to 10"),
        (replace(records, inputs=below), steps, start, "tokens from 0 to 10"),
        (replace(records, labels=label), steps, start, "labels from 0 to 10"),
        (replace(records, labels=negative), steps, start, "labels from 0 to 10"),
        (replace(records, inputs=records.inputs.astype(np.int32)), steps, start, "uint8 or int64"),
        (replace(records, inputs=records.inputs[:, 1:]), steps, start, "windows of 6"),
        (replace(records, inputs=records.inputs[1:]), steps, start, "one label"),
        (replace(records, lookup=np.zeros(256, np.float32)), steps, start, "nothing to look up"),
        (records, steps, start[1:], f"{sequence.size} parameters"),
        (records, replace(steps, records=outside), start, "records that exist"),
        (records, replace(steps, records=-outside), start, "records that exist"),
        (records, replace(steps, real=steps.real[:1]), start, "batches"),
        (records, replace(steps, rates=steps.rates[:1]), start, "one rate"),
    ]
    for odd, how, vector, message in wrong:
        with pytest.raises(ValueError, match=message):
            engine.train(sequence, odd, how, vector, threads=1)


class Doubled(nn.LSTM):
    def forward(self, inputs: Any, hx: Any = None) -> Any:
        return super().forward(2 * inputs, hx)


class Counting(Reader):
    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids) if ids.sum() > 0 else super().forward(ids + 1)


def usual() -> nn.Module:
    return reader()


def ours() -> nn.Module:
    return models._LSTM(TOKENS, hidden=16)


def with_(change: Callable[[Any], object], build: Callable[[], nn.Module] = usual) -> Callable[[], nn.Module]:
    def changed() -> nn.Module:
        model = build()
        change(model)
        return model

    return changed


def another(name: str, module: nn.Module) -> Callable[[], nn.Module]:
    return with_(lambda model: setattr(model, name, module))


UNKNOWN: dict[str, Callable[[], nn.Module]] = {
    "batch second": lambda: reader(batch_first=False),
    "both ways": lambda: reader(bidirectional=True, end=lambda given: given[0][:, -1, :9]),
    "projected": lambda: reader(proj_size=5, end=lambda given: given[0][:, -1]),
    "dropped": lambda: reader(num_layers=2, dropout=0.5),
    "first step": lambda: reader(end=lambda given: given[0][:, 0]),
    "mean of steps": lambda: reader(end=lambda given: given[0].mean(1)),
    "cell": lambda: reader(end=lambda given: given[1][1][-1]),
    "first layer": lambda: reader(end=lambda given: given[1][0][0]),
    "activated": lambda: reader(end=lambda given: given[0][:, -1].relu()),
    "each step": lambda: reader(end=lambda given: given[0]),
    "subclass": another("lstm", Doubled(6, 9, batch_first=True)),
    "branches": lambda: Counting(nn.Embedding(TOKENS, 6), nn.LSTM(6, 9, batch_first=True), nn.Linear(9, 5)),
    "another layer": another("output", nn.Sequential(nn.Linear(9, 9), nn.Linear(9, 5))),
    "padding": another("embedding", nn.Embedding(TOKENS, 6, padding_idx=0)),
    "longest": another("embedding", nn.Embedding(TOKENS, 6, max_norm=1.0)),
    "by count": another("embedding", nn.Embedding(TOKENS, 6, scale_grad_by_freq=True)),
    "frozen": with_(lambda m: m.output.bias.requires_grad_(False)),
    "unused": with_(lambda m: m.register_module("beside", nn.Linear(2, 2))),
    "hooked": with_(lambda m: m.lstm.register_forward_hook(lambda module, given, found: None)),
    "replaced": with_(lambda m: setattr(m.output, "forward", lambda given: 2 * given)),
    "no layer": lambda: nn.Sequential(nn.Embedding(TOKENS, 6)),
    "tied": with_(lambda m: setattr(m.layers[1], "recurrent", m.layers[1].input), ours),
    "twice": with_(lambda m: setattr(m, "layers", nn.Sequential(m.layers[1], m.layers[1])), ours),
    "sizes": with_(lambda m: setattr(m, "output", nn.Linear(15, 3)), ours),
    "not linear": with_(lambda m: setattr(m.layers[0], "recurrent", nn.Bilinear(16, 16, 64)), ours),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_is_not_known_is_left_to_torch(name: str) -> None:
    assert sequence_of(UNKNOWN[name](), 6) is None


def unpacked(given: Any) -> Any:
    outputs, _ = given
    return outputs[:, -1, :]


def from_the_end(given: Any) -> Any:
    _, (outputs, _) = given
    return outputs[-1]


@pytest.mark.parametrize("end", [unpacked, from_the_end])
def test_ways_to_write_the_last_step(end: Callable[[Any], Any]) -> None:
    assert sequence_of(reader(end=end), 6) == sequence_of(reader(), 6) is not None


def test_looking_at_a_model_leaves_it_as_it_was() -> None:
    model = models._LSTM(TOKENS, hidden=16)
    before = models.flatten(model)
    assert sequence_of(model, 6) is not None
    np.testing.assert_array_equal(models.flatten(model), before)
    assert sequence_of(model, 0) is None


# behind LocalClients

SIZES = np.array([7, 1, 12, 5, 12, 9])
LOCAL = LocalTraining(2, 5, 0.5, momentum=0.5, weight_decay=0.01, schedule=Schedule("decay", 0.9))


def clients(
    local: LocalTraining = LOCAL, model: nn.Module | None = None, dtype: type = np.uint8, tokens: int = TOKENS
) -> LocalClients:
    rng = np.random.default_rng(0)
    split = Split(rng.integers(0, tokens, (60, 8)).astype(dtype), rng.integers(0, TOKENS, 60))
    data = Dataset("made", split, split, TOKENS, "text", "made")
    holdings = Partition(rng.permutation(60)[:46], np.concatenate([[0], SIZES.cumsum()]))
    torch.manual_seed(0)
    return LocalClients(data, holdings, model or models._LSTM(TOKENS, hidden=20), local)


def rows(made: LocalClients, who: list[int]) -> dict[int, np.ndarray]:
    asked = Order(4, 9, made.initial(), np.array(who), np.zeros(len(who), np.int64))
    parts = list(made.updates(asked))
    return {int(c): row for part in parts for c, row in zip(part.clients, part.change, strict=True)}


@compiled_only
@pytest.mark.parametrize("dtype", [np.uint8, np.int64])
@pytest.mark.parametrize("local", [LOCAL, LocalTraining(2, 5, 0.5)], ids=["momentum", "plain"])
def test_both_ways_give_the_same_updates(local: LocalTraining, dtype: type) -> None:
    fast, slow = clients(local, dtype=dtype), clients(local, dtype=dtype)
    assert isinstance(fast._stack, Sequence)
    slow._stack = None
    everybody = [0, 1, 2, 3, 4, 5]
    found, expected = rows(fast, everybody), rows(slow, everybody)
    for client in everybody:
        error = np.linalg.norm(found[client] - expected[client])
        assert error < 2e-5 * np.linalg.norm(expected[client])
    few = rows(fast, [1, 3])
    for client in (1, 3):
        np.testing.assert_array_equal(few[client], found[client])


def test_what_the_compiled_code_cannot_read_is_left_to_torch() -> None:
    assert clients(model=models._LSTM(TOKENS - 2))._stack is None
    assert clients(tokens=TOKENS + 2)._stack is None
    assert clients(dtype=np.int32)._stack is None
    assert clients(model=reader(classes=3))._stack is None
