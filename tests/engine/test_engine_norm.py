"""Compiled training with group normalisation and means, of large batches, and of stacks made at random."""

import resource
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from discretion import engine
from discretion.engine import Batches, RecordArrays, stack_of
from discretion.tasks import models
from support.compiled_training import LOOKUP, batches, by_torch, compiled_only, dataset

pytestmark = compiled_only


def relu_first() -> list[nn.Module]:
    return [
        *(nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 24, 3, padding=1), nn.GroupNorm(8, 24), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(144, 4)),
    ]


def pool_first() -> list[nn.Module]:
    return [
        *(nn.Conv2d(3, 9, 5, stride=2, padding=2, bias=False), nn.GroupNorm(3, 9), nn.MaxPool2d(3, 2, 1)),
        *(nn.ReLU(), nn.Conv2d(9, 40, (3, 2)), nn.GroupNorm(40, 40, eps=0.01), nn.MaxPool2d((1, 2))),
        *(nn.ReLU(), nn.Flatten(), nn.Linear(40, 7), nn.ReLU(), nn.Linear(7, 4)),
    ]


def not_affine() -> list[nn.Module]:
    return [
        *(nn.Conv2d(3, 12, 3), nn.GroupNorm(1, 12, affine=False), nn.ReLU(), nn.Conv2d(12, 10, 2)),
        *(nn.GroupNorm(5, 10, bias=False), nn.MaxPool2d(3), nn.Flatten(), nn.Linear(60, 4)),
    ]


def anywhere() -> list[nn.Module]:
    """As the first layer, after ReLU, after pooling, twice, and as the last before Flatten."""
    return [
        *(nn.GroupNorm(1, 3), nn.Conv2d(3, 8, 3), nn.ReLU(), nn.GroupNorm(2, 8), nn.GroupNorm(8, 8)),
        *(nn.MaxPool2d(2), nn.GroupNorm(4, 8), nn.Conv2d(8, 5, 1), nn.GroupNorm(5, 5)),
        *(nn.Flatten(), nn.Linear(100, 4)),
    ]


def means() -> list[nn.Module]:
    return [
        *(
            nn.Conv2d(3, 10, 3),
            nn.ReLU(),
            nn.AvgPool2d(2),
            nn.Conv2d(10, 18, 3, padding=1),
            nn.AvgPool2d(3, 1),
        ),
        *(nn.ReLU(), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(18, 4)),
    ]


def mean_of_normal() -> list[nn.Module]:
    return [
        *(nn.AvgPool2d((1, 2)), nn.Conv2d(3, 33, 2, padding=1), nn.GroupNorm(11, 33), nn.AvgPool2d(4)),
        *(nn.GroupNorm(3, 33), nn.ReLU(), nn.AdaptiveAvgPool2d((1, 1)), nn.Flatten(), nn.Linear(33, 4)),
    ]


SHAPE = (3, 12, 11)
MODELS = [relu_first, pool_first, not_affine, anywhere, means, mean_of_normal]


def made(build: Callable[[], list[nn.Module]]) -> nn.Module:
    """With gains and shifts that are not 1 and 0, some gains negative."""
    torch.manual_seed(1)
    model = nn.Sequential(*build())
    for module in model:
        if isinstance(module, nn.GroupNorm) and module.weight is not None:
            nn.init.normal_(module.weight)
            if module.bias is not None:
                nn.init.normal_(module.bias)
    return model


def records(shape: tuple[int, ...], count: int = 50) -> RecordArrays:
    rng = np.random.default_rng(2)
    inputs = rng.integers(0, 256, (count, *shape), dtype=np.uint8)
    return RecordArrays(inputs, rng.integers(0, 4, count), LOOKUP)


def trained(model: nn.Module, data: RecordArrays, steps: Batches, threads: int = 1) -> np.ndarray:
    stack = stack_of(model, data.inputs.shape[1:])
    assert stack is not None
    return engine.train(stack, data, steps, models.flatten(model), threads)


def require_as_exact_as_torch(
    build: Callable[[], list[nn.Module]], found: np.ndarray, data: RecordArrays, steps: Batches
) -> None:
    """Some models magnify rounding: no more is asked for than what torch does with the same floats."""
    for client, ours in enumerate(found):
        exact = by_torch(made(build), data, steps, client)
        theirs = by_torch(made(build), data, steps, client, torch.float32)
        error, usual = (float(np.linalg.norm(one - exact)) for one in (ours, theirs))
        assert error <= max(1e-5 * float(np.linalg.norm(exact)), 4 * usual), (client, error, usual)


@pytest.mark.parametrize("how", [{}, {"momentum": 0.8, "weight_decay": 0.02}], ids=["plain", "momentum"])
@pytest.mark.parametrize("batch", [1, 4, 11])
@pytest.mark.parametrize("build", MODELS)
def test_updates_are_those_of_torch(
    build: Callable[[], list[nn.Module]], batch: int, how: dict[str, float]
) -> None:
    data, steps = records(SHAPE), batches(3, 4, batch, **how)
    require_as_exact_as_torch(build, trained(made(build), data, steps), data, steps)


def test_the_built_in_model_is_compiled() -> None:
    def build() -> list[nn.Module]:
        return list(models.build("cnn_norm", dataset(), 0).children())

    data, steps = records((1, 16, 16)), batches(1, 2, 4, momentum=0.9)
    data = replace(data, labels=data.labels % 3)
    require_as_exact_as_torch(build, trained(made(build), data, steps), data, steps)


@pytest.mark.parametrize("groups", [1, 2, 4, 12])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("after", [[], [nn.ReLU(), nn.MaxPool2d(2)], [nn.MaxPool2d(2), nn.ReLU()]])
def test_each_parameter_of_a_single_layer_moves_as_by_torch(
    groups: int, affine: bool, after: list[nn.Module]
) -> None:
    def build() -> list[nn.Module]:
        norm = nn.GroupNorm(groups, 12, eps=1e-3, affine=affine)
        return [nn.Conv2d(2, 12, 3), norm, *after, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(48, 4)]

    shape = (2, 10, 10) if after else (2, 6, 6)
    data, steps = records(shape), batches(1, 1, 20)
    found, expected = trained(made(build), data, steps)[0], by_torch(made(build), data, steps, 0)
    sizes = np.cumsum([p.numel() for p in made(build).parameters()])
    for ours, theirs in zip(np.split(found, sizes), np.split(expected, sizes), strict=True):
        assert np.abs(ours - theirs).max(initial=0) < 1e-5 * np.abs(theirs).max(initial=1e-3)


@pytest.mark.parametrize("build", MODELS)
def test_a_row_depends_neither_on_threads_nor_on_the_others(build: Callable[[], list[nn.Module]]) -> None:
    data, steps = records(SHAPE), batches(5, 3, 6, momentum=0.5)
    alone = trained(made(build), data, steps)
    for threads in (2, 3, 8):
        np.testing.assert_array_equal(trained(made(build), data, steps, threads), alone)
    some = np.array([4, 1])
    few = replace(steps, records=steps.records[some], real=steps.real[some])
    np.testing.assert_array_equal(trained(made(build), data, few), alone[some])


@pytest.mark.parametrize("build", MODELS)
def test_what_is_not_finite_stays_so_and_harms_no_other_client(build: Callable[[], list[nn.Module]]) -> None:
    data, steps = records(SHAPE), batches(3, 2, 5)
    data = replace(data, inputs=np.minimum(data.inputs, np.uint8(254)))
    broken = replace(data, inputs=data.inputs.copy(), lookup=np.append(LOOKUP[:255], np.float32(np.nan)))
    broken.inputs[0, :, 3, [3, -2]] = 255
    steps = replace(steps, records=np.where(steps.records == 0, 1, steps.records))
    steps.records[1, 0, 0] = 0
    found, fine = (trained(made(build), one, steps) for one in (broken, data))
    assert not np.isfinite(found[1]).all()
    np.testing.assert_array_equal(found[[0, 2]], fine[[0, 2]])


UNKNOWN: list[Callable[[], list[nn.Module]]] = [
    lambda: [nn.Conv2d(1, 4, 8), nn.GroupNorm(4, 4), nn.Flatten()],
    lambda: [nn.Flatten(), nn.Linear(64, 8), nn.GroupNorm(2, 8), nn.Linear(8, 4)],
    lambda: [nn.AvgPool2d(2, padding=1), nn.Flatten(), nn.Linear(25, 4)],
    lambda: [nn.AvgPool2d(3, ceil_mode=True), nn.Flatten(), nn.Linear(9, 4)],
    lambda: [nn.AvgPool2d(2, divisor_override=3), nn.Flatten(), nn.Linear(16, 4)],
    lambda: [nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(9, 4)],
    lambda: [nn.LayerNorm([1, 8, 8]), nn.Flatten(), nn.Linear(64, 4)],
    lambda: [nn.AvgPool2d(9), nn.Flatten(), nn.Linear(1, 4)],
]


@pytest.mark.parametrize("number", range(len(UNKNOWN)))
def test_what_is_not_known_is_left_to_torch(number: int) -> None:
    assert stack_of(nn.Sequential(*UNKNOWN[number]()), (1, 8, 8)) is None


# batches that are larger than what a thread keeps

LARGE = (4, 64, 64)


def large() -> list[nn.Module]:
    """A record takes some 45,000 floats, so that fewer than 400 are kept at a time."""
    return [
        *(nn.Conv2d(4, 6, 3, stride=2), nn.GroupNorm(2, 6), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 4, 1), nn.ReLU(), nn.Flatten(), nn.Linear(900, 5), nn.ReLU(), nn.Linear(5, 4)),
    ]


@pytest.mark.parametrize("how", [{}, {"momentum": 0.8, "weight_decay": 0.02}], ids=["plain", "momentum"])
def test_a_batch_in_slices_is_one_batch(how: dict[str, float]) -> None:
    data = records(LARGE)
    steps = batches(2, 2, 700, **how)
    steps.real[0, 0, ::3] = False
    steps.real[1, 0, 20:] = False  # this client's batches are not sliced
    found = trained(made(large), data, steps)
    for client in (0, 1):
        expected = by_torch(made(large), data, steps, client)
        assert np.linalg.norm(found[client] - expected) < 1e-5 * np.linalg.norm(expected)
    alone = replace(
        steps, records=steps.records[1:, :1, :20], real=steps.real[1:, :1, :20], rates=steps.rates[:1]
    )
    np.testing.assert_array_equal(trained(made(large), data, alone)[0], found[1])


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory can be limited on Linux only")
def test_memory_does_not_grow_with_the_batch() -> None:
    """Buffers for all records would take gigabytes; padding is enough to ask for them."""
    data, steps = records(LARGE), batches(2, 1, 20_000)
    steps.real[:] = False
    steps.real[:, 0, [5, 9_999]] = True
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 2**28, before[1]))
    try:
        assert np.isfinite(trained(made(large), data, steps)).all()
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


# stacks at random


class Random:
    """Layers that fit one after the other, drawn by a seed."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.shape = tuple(int(self.rng.integers(low, high)) for low, high in ((1, 5), (6, 14), (6, 14)))
        self.input, self.layers = self.shape, list[nn.Module]()
        for _ in range(self.rng.integers(1, 4)):
            adds = (self.convolution, self.norm, self.relu, self.pool, self.mean)
            for i in self.rng.permutation(len(adds)):
                if self.rng.random() < 0.6:
                    adds[i]()
        features = int(np.prod(self.shape))
        self.layers += [nn.Flatten()]
        if self.rng.random() < 0.5:
            hidden = int(self.rng.integers(1, 20))
            self.layers += [nn.Linear(features, hidden, bias=self.coin()), nn.ReLU()]
            features = hidden
        self.layers += [nn.Linear(features, 4, bias=self.coin())]

    def coin(self) -> bool:
        return bool(self.rng.random() < 0.5)

    def window(self, pads: bool) -> dict[str, Any]:
        size = tuple(int(self.rng.integers(1, min(side, 4) + 1)) for side in self.shape[1:])
        pad = tuple(int(self.rng.integers(0, k // 2 + 1)) if pads else 0 for k in size)
        stride = tuple(int(s) for s in self.rng.integers(1, 3, 2))
        after = [
            (n + 2 * p - k) // s + 1 for n, p, k, s in zip(self.shape[1:], pad, size, stride, strict=True)
        ]
        self.shape = (self.shape[0], *after)
        return {"kernel_size": size, "stride": stride, "padding": pad}

    def convolution(self) -> None:
        channels, outs = self.shape[0], int(self.rng.integers(1, 42))
        self.layers.append(nn.Conv2d(channels, outs, **self.window(True), bias=self.coin()))
        self.shape = (outs, *self.shape[1:])

    def norm(self) -> None:
        divisors = [g for g in range(1, self.shape[0] + 1) if self.shape[0] % g == 0]
        groups = int(self.rng.choice(divisors))
        if np.prod(self.shape) >= 4 * groups:
            self.layers.append(
                nn.GroupNorm(groups, self.shape[0], float(self.rng.choice([1e-5, 0.1])), self.coin())
            )

    def relu(self) -> None:
        if self.layers:
            self.layers.append(nn.ReLU())

    def pool(self) -> None:
        self.layers.append(nn.MaxPool2d(**self.window(True)))

    def mean(self) -> None:
        if self.rng.random() < 0.2:
            self.layers.append(nn.AdaptiveAvgPool2d(1))
            self.shape = (self.shape[0], 1, 1)
        else:
            self.layers.append(nn.AvgPool2d(**self.window(False)))


@pytest.mark.parametrize("seed", range(40))
def test_stacks_at_random_are_as_exact_as_torch(seed: int) -> None:
    def build() -> list[nn.Module]:
        return Random(seed).layers

    how = {"momentum": 0.7, "weight_decay": 0.01} if seed % 2 else {}
    data, steps = records(Random(seed).input), batches(2, 3, 2 + seed % 9, **how)
    require_as_exact_as_torch(build, trained(made(build), data, steps), data, steps)
