"""Sums of clipped gradients in compiled code: those of each record's own gradient, and within the clip."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from discretion import engine
from discretion.clients.local_clients import LocalClients
from discretion.clients.training import LocalTraining
from discretion.engine import CompiledSums, RecordArrays, stack_of
from discretion.engine.record_sums import RecordSums
from discretion.errors import PlanError
from discretion.randomness.sources import Seeded
from discretion.randomness.streams import Purpose, stream
from discretion.tasks import models
from discretion.tasks.datasets import Dataset, Split
from discretion.tasks.partitions import Partition
from discretion.training.orders import NoisySteps, Order

compiled_only = pytest.mark.skipif(not engine.available(), reason="the compiled code was not built")

LOOKUP = ((np.arange(256) / 255 - 0.4) / 0.3).astype(np.float32)
CLASSES = 4

Made = Callable[[], tuple[nn.Module, tuple[int, ...]]]


def small() -> tuple[nn.Module, tuple[int, ...]]:
    parts = (nn.Conv2d(2, 5, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(5, 9, 2), nn.ReLU())
    return nn.Sequential(*parts, nn.Flatten(), nn.Linear(54, 13), nn.ReLU(), nn.Linear(13, CLASSES)), (
        2,
        9,
        7,
    )


def table() -> tuple[nn.Module, tuple[int, ...]]:
    return nn.Sequential(nn.Linear(11, 16), nn.ReLU(), nn.Linear(16, CLASSES)), (11,)


def random_stack(rng: np.random.Generator) -> tuple[nn.Module, tuple[int, ...]]:
    """Of all layers that are known, in any shape."""
    parts: list[nn.Module] = []
    shape: tuple[int, ...]
    if rng.integers(4) == 0:
        shape = (int(rng.integers(1, 30)),)
        width = shape[0]
    else:
        channels = int(rng.integers(1, 4))
        shape = (channels, int(rng.integers(6, 13)), int(rng.integers(6, 13)))
        for _ in range(rng.integers(0, 4)):
            out, kernel = int(rng.integers(1, 20)), tuple(rng.integers(1, 4, 2).tolist())
            stride, pad = tuple(rng.integers(1, 3, 2).tolist()), tuple(rng.integers(0, 3, 2).tolist())
            pools = [nn.MaxPool2d(2), nn.MaxPool2d(2, 1, 1), nn.MaxPool2d((1, 2)), nn.Identity()]
            more: list[nn.Module] = [
                nn.Conv2d(channels, out, kernel, stride, pad, bias=bool(rng.integers(2)))
            ]
            more += [pools[rng.integers(4)]] + [nn.ReLU()] * int(rng.integers(2))
            try:
                nn.Sequential(*parts, *more)(torch.zeros(1, *shape))
            except RuntimeError:  # too small for these
                break
            parts, channels = parts + more, out
        parts.append(nn.Flatten())
        width = nn.Sequential(*parts)(torch.zeros(1, *shape)).shape[1]
    for _ in range(rng.integers(0, 3)):
        hidden = int(rng.integers(1, 40))
        parts += [nn.Linear(width, hidden, bias=bool(rng.integers(2))), nn.ReLU()]
        width = hidden
    return nn.Sequential(*parts, nn.Linear(width, CLASSES, bias=bool(rng.integers(2)))), shape


def each_length(model: nn.Module) -> tuple[int, ...]:
    return tuple(p.numel() for p in model.parameters())


def data(shape: tuple[int, ...], count: int, seed: int = 0, images: bool = False) -> RecordArrays:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, count)
    if images:
        return RecordArrays(rng.integers(0, 256, (count, *shape), dtype=np.uint8), labels, LOOKUP)
    return RecordArrays(rng.standard_normal((count, *shape)).astype(np.float32), labels)


def sums_of(
    model: nn.Module, shape: tuple[int, ...], records: RecordArrays, together: int = 256
) -> CompiledSums:
    stack = stack_of(model, shape)
    assert stack is not None
    return CompiledSums(stack, records, together)


def exact(model: nn.Module, records: RecordArrays) -> np.ndarray:
    """(n, d) by torch's own backward in float64, a record at a time."""
    inputs = records.inputs if records.lookup is None else records.lookup[records.inputs]
    twin, rows = model.double(), []
    for record, label in zip(torch.from_numpy(inputs), torch.from_numpy(records.labels), strict=True):
        loss = functional.cross_entropy(twin(record[None].double()), label[None])
        slopes = torch.autograd.grad(loss, list(twin.parameters()))
        rows.append(torch.cat([slope.reshape(-1) for slope in slopes]).numpy())
    model.float()
    return np.array(rows)


def clipped(rows: np.ndarray, clip: float, lengths: tuple[int, ...]) -> np.ndarray:
    parts = np.split(rows, np.cumsum(lengths)[:-1], axis=1) if lengths else [rows]
    bound = clip / np.sqrt(len(parts))
    norms = [np.maximum(np.linalg.norm(part, axis=1, keepdims=True), 1e-300) for part in parts]
    return np.concatenate([p * np.minimum(1, bound / n) for p, n in zip(parts, norms, strict=True)], axis=1)


@compiled_only
def test_random_stacks_have_the_sums_of_their_exact_gradients() -> None:
    rng = np.random.default_rng(0)
    for seed in range(60):
        torch.manual_seed(seed)
        model, shape = random_stack(rng)
        records = data(shape, 23, seed, images=len(shape) == 3 and seed % 2 == 0)
        start, rows, lengths = models.flatten(model), exact(model, records), each_length(model)
        sums, chosen = sums_of(model, shape, records, 8 if seed % 3 == 0 else 256), rng.permutation(23)[:19]
        two = (lengths[0], sum(lengths[1:])) if len(lengths) > 1 else ()
        for layers in ((), lengths, two):
            for clip in (np.inf, float(np.median(np.linalg.norm(rows, axis=1)))):
                found, squares = sums.sum_and_squares(start, chosen, clip, layers)
                each = clipped(rows[chosen], clip, layers)
                expected = each.sum(0)
                assert squares == pytest.approx(np.square(each).sum(), rel=2e-5, abs=1e-9)
                assert np.linalg.norm(found - expected) < 2e-5 * np.linalg.norm(expected) + 1e-9, (
                    seed,
                    model,
                )


@compiled_only
@pytest.mark.parametrize("made", [small, table])
def test_records_are_taken_by_number_any_number_of_them_and_as_often_as_they_are_named(made: Made) -> None:
    model, shape = made()
    records, start = data(shape, 50), models.flatten(model)
    rows = clipped(exact(model, records), 0.3, ())
    chosen = np.random.default_rng(1).integers(0, 50, 700)
    for together in (1, 7, 64, 256, 10**6):
        found = sums_of(model, shape, records, together).clipped_sum(start, chosen, 0.3, ())
        np.testing.assert_allclose(found, rows[chosen].sum(0), atol=2e-5)


@compiled_only
@pytest.mark.parametrize("made", [small, table])
def test_an_empty_batch_has_the_sum_zero(made: Made) -> None:
    model, shape = made()
    sums = sums_of(model, shape, data(shape, 5))
    found = sums.clipped_sum(models.flatten(model), np.zeros(0, np.int64), 1.0, ())
    assert found.shape == (sum(each_length(model)),) and found.dtype == np.float64 and not found.any()
    with pytest.raises(ValueError, match="below 0"):
        sums_of(model, shape, data(shape, 0)).clipped_sum(
            models.flatten(model), np.zeros(1, np.int64), 1.0, ()
        )


@compiled_only
def test_a_record_alone_is_never_longer_than_the_clip_whatever_its_size() -> None:
    """Inputs and weights from 1e-30 to 1e38, clips from 1e-38 to 1e30: not even by a rounding."""
    rng, longest = np.random.default_rng(1), 0
    for seed in range(200):
        torch.manual_seed(seed)
        model, shape = random_stack(rng) if seed % 2 else (nn.Sequential(nn.Linear(5, CLASSES)), (5,))
        start = models.flatten(model) * np.float32(10.0 ** rng.uniform(-3, 3))
        inputs = rng.standard_normal((1, *shape)) * 10.0 ** rng.uniform(-30, 38)
        with np.errstate(over="ignore"):
            records = RecordArrays(inputs.astype(np.float32), np.zeros(1, np.int64))
        sums, lengths = sums_of(model, shape, records), each_length(model)
        clip = float(10.0 ** rng.uniform(-38, 30))
        for layers in ((), lengths):
            found = sums.clipped_sum(start, np.zeros(1, np.int64), clip, layers)
            assert np.isfinite(found).all()
            assert np.linalg.norm(found) <= clip
            longest += bool(np.linalg.norm(found) > 0.9999 * clip)
            for part in np.split(found, np.cumsum(layers)[:-1]) if layers else []:
                assert np.linalg.norm(part) <= clip / np.sqrt(len(layers))
    assert longest > 80  # the clip is reached


@compiled_only
def test_what_float32_cannot_shorten_counts_as_zero() -> None:
    """Small slopes times a small factor would lose their digits, and large inputs show it."""
    model = nn.Sequential(nn.Linear(4, CLASSES))
    start = models.flatten(model) * np.float32(0)
    start[16] = 14.0  # a good guess: slopes are about 1e-6
    kept = 0
    for size in (1e25, 1e30, 1e36):
        records = RecordArrays(np.full((1, 4), size, np.float32), np.zeros(1, np.int64))
        for clip in 10.0 ** np.arange(-12, 0, 0.25):
            found = sums_of(model, (4,), records).clipped_sum(start, np.zeros(1, np.int64), float(clip), ())
            assert np.linalg.norm(found) <= clip
            kept += bool(found.any())
    assert 50 < kept < 140  # of 144


@compiled_only
@pytest.mark.parametrize("made", [small, table])
def test_one_record_more_or_less_moves_the_sum_by_at_most_the_clip(made: Made) -> None:
    model, shape = made()
    records, clip = data(shape, 40), 0.05
    scale = 10 ** np.linspace(-3, 3, 40, dtype=np.float32).reshape(-1, *[1] * len(shape))
    records = RecordArrays(np.float32(records.inputs) * scale, records.labels)
    sums, start = sums_of(model, shape, records, 16), models.flatten(model)
    for layers in ((), each_length(model)):
        whole, long = sums.clipped_sum(start, np.arange(40), clip, layers), 0
        for gone in range(1, 40, 5):
            moved = whole - sums.clipped_sum(start, np.delete(np.arange(40), gone), clip, layers)
            assert (
                np.linalg.norm(moved) <= clip + 1e-6
            )  # slices are summed in float32: their rounding is of all
            long += bool(np.linalg.norm(moved) > 0.99 * clip)
            for part in np.split(moved, np.cumsum(layers)[:-1]) if layers else []:
                assert np.linalg.norm(part) <= clip / np.sqrt(len(layers)) + 1e-6
        assert long > 1 or layers


@compiled_only
def test_a_clip_of_zero_leaves_nothing_and_none_is_not_clipped() -> None:
    model, shape = small()
    records, start = data(shape, 9), models.flatten(model)
    sums = sums_of(model, shape, records)
    assert not sums.clipped_sum(start, np.arange(9), 0.0, ()).any()
    np.testing.assert_allclose(
        sums.clipped_sum(start, np.arange(9), np.inf, ()), exact(model, records).sum(0), atol=1e-5
    )


@compiled_only
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("made", [small, table])
def test_records_that_are_not_finite_count_as_zero_and_leave_nothing_behind(made: Made, bad: float) -> None:
    model, shape = made()
    records, start = data(shape, 12), models.flatten(model)
    inputs = np.array(records.inputs)
    inputs[[1, 4, 5]] = 1.0
    inputs[1, ..., -1], inputs[4, ..., 0], inputs[5, ...] = bad, bad, bad
    broken = RecordArrays(inputs, records.labels)
    good = np.array([0, 2, 3, 6, 7, 8, 9, 10, 11])
    for layers in ((), each_length(model)):
        sums, fresh = (sums_of(model, shape, broken) for _ in range(2))
        expected = fresh.clipped_sum(start, good, 0.5, layers)
        np.testing.assert_allclose(sums.clipped_sum(start, np.arange(12), 0.5, layers), expected, atol=1e-6)
        assert not sums.clipped_sum(start, np.array([5, 4, 1, 1, 4, 5, 5, 1, 4]), 0.5, layers).any()
        np.testing.assert_array_equal(sums.clipped_sum(start, good, 0.5, layers), expected)
        assert expected.any() and not sums.clipped_sum(start * np.float32(bad), good, 0.5, layers).any()
        np.testing.assert_array_equal(sums.clipped_sum(start, good, 0.5, layers), expected)


@compiled_only
def test_gradients_beyond_floating_point_count_as_zero_without_a_clip_too() -> None:
    model = nn.Sequential(nn.Linear(3, 2, bias=False), nn.ReLU(), nn.Linear(2, CLASSES, bias=False))
    start = np.concatenate([np.full(6, 1e-9), np.linspace(-1e9, 1e9, 8)]).astype(np.float32)
    inputs = np.array([[1, 1, 1], [1e37, 1e37, 1e37]], np.float32)
    sums = sums_of(model, (3,), RecordArrays(inputs, np.zeros(2, np.int64)))
    alone = sums.clipped_sum(start, np.array([0]), np.inf, ())
    assert alone.any()
    np.testing.assert_allclose(sums.clipped_sum(start, np.array([0, 1]), np.inf, ()), alone, rtol=1e-6)


@compiled_only
def test_an_infinite_input_behind_which_all_is_dead_counts_as_zero() -> None:
    """Its slopes are zero, and zero times infinity is not finite."""
    model = nn.Sequential(nn.Conv2d(1, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(8, CLASSES))
    start = models.flatten(model)
    start[:8], start[8:10] = -1.0, 0.5
    inputs = np.ones((2, 1, 3, 3), np.float32) * 0.1
    inputs[1, 0, 0, 0] = np.inf
    sums = sums_of(model, (1, 3, 3), RecordArrays(inputs, np.zeros(2, np.int64)))
    alone = sums.clipped_sum(start, np.array([0]), 1.0, ())
    assert alone.any()
    np.testing.assert_allclose(sums.clipped_sum(start, np.array([1, 0]), 1.0, ()), alone, atol=1e-7)
    assert not sums.clipped_sum(start, np.array([1]), np.inf, ()).any()


@compiled_only
def test_sums_of_several_threads_are_those_of_one() -> None:
    model, shape = small()
    records, start = data(shape, 200, images=True), models.flatten(model)
    chosen = [np.random.default_rng(k).permutation(200)[: 40 + k] for k in range(24)]
    one, many = sums_of(model, shape, records), [sums_of(model, shape, records) for _ in range(4)]
    expected = [one.clipped_sum(start, each, 0.2, ()) for each in chosen]

    def some(k: int) -> list[np.ndarray]:
        return [many[k].clipped_sum(start, each, 0.2, ()) for each in chosen]

    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(some, range(4)):
            np.testing.assert_array_equal(found, expected)


@compiled_only
def test_numbers_that_do_not_fit_never_reach_the_compiled_code() -> None:
    model, shape = table()
    records, start = data(shape, 6), models.flatten(model)
    stack, sums = stack_of(model, shape), sums_of(model, shape, records)
    assert stack is not None
    for wrong, message in [
        (RecordArrays(records.inputs[:, 1:], records.labels), "inputs of"),
        (RecordArrays(records.inputs.astype(np.float64), records.labels), "float32"),
        (RecordArrays(records.inputs, records.labels[1:]), "one label"),
        (RecordArrays(records.inputs, records.labels + 2), "labels from 0 to 3"),
        (RecordArrays(records.inputs, records.labels - 4), "labels from 0 to 3"),
        (RecordArrays(records.inputs.astype(np.uint8), records.labels, LOOKUP[1:]), "256"),
    ]:
        with pytest.raises(ValueError, match=message):
            CompiledSums(stack, wrong)
    for chosen in ([0, 6], [-1], [2**40]):
        with pytest.raises(ValueError, match="records below 6"):
            sums.clipped_sum(start, np.array(chosen), 1.0, ())
    with pytest.raises(ValueError, match="a model of"):
        sums.clipped_sum(start[1:], np.arange(3), 1.0, ())
    with pytest.raises(PlanError, match="layers have 7 parameters"):
        sums.clipped_sum(start, np.arange(3), 1.0, (3, 4))
    with pytest.raises(PlanError, match="end where parameter tensors"):
        sums.clipped_sum(start, np.arange(3), 1.0, (5, len(start) - 5))


# behind LocalClients


def clients(compiled: bool) -> LocalClients:
    rng = np.random.default_rng(0)
    split = Split(rng.integers(0, 256, (90, 1, 16, 16), dtype=np.uint8), rng.integers(0, 3, 90))
    made = Dataset("made", split, split, 3, "image", "made", mean=0.5, std=0.3)
    holdings = Partition(rng.permutation(90), np.array([0, 40, 41, 90]))
    local = LocalTraining(learning_rate=0.1, momentum=0.5, weight_decay=0.01)
    found = LocalClients(made, holdings, models.build("cnn_small", made, 0), local)
    if not compiled:
        found._noisy.stack = None
    return found


def updates(made: LocalClients, layers: tuple[int, ...]) -> np.ndarray:
    who, one = np.arange(3), np.ones(3)

    def source(i: int) -> Seeded:
        return Seeded(stream(1, Purpose.STEPS, i))

    noisy = NoisySteps(3, 0.6 * one, 0.4 * one, 0.01 * one, layers, source)
    order = Order(1, 0, made.initial(), who, np.zeros_like(who), noisy)
    return np.concatenate([part.change for part in made.updates(order)])


@compiled_only
def test_both_ways_give_the_same_updates() -> None:
    fast, slow = clients(True), clients(False)
    within = (100, len(fast.initial()) - 100)
    for layers in ((), fast.layers, within):
        expected = updates(slow, layers)
        np.testing.assert_allclose(updates(fast, layers), expected, atol=2e-6)
        assert np.abs(expected).max() > 1e-3
    compiled, torch_s = (fast._noisy._idle[way].get() for way in (True, False))
    assert isinstance(compiled, CompiledSums) and isinstance(
        torch_s, RecordSums
    )  # layers within tensors go the long way
    assert slow._noisy._idle[True].empty()


@compiled_only
@pytest.mark.parametrize("made", [small, table])
@pytest.mark.parametrize("aligned", [True, False])
def test_the_sum_of_many_records_is_rounded_by_less_than_is_spared(made: Made, aligned: bool) -> None:
    """In float32, 257 equal records moved the sum by 2e-5 of the clip more than the clip."""
    model, shape = made()
    some, clip = data(shape, 257), 0.05
    if aligned:
        some = RecordArrays(np.repeat(some.inputs[:1], 257, axis=0), np.repeat(some.labels[:1], 257))
    sums, start = sums_of(model, shape, some, 256), models.flatten(model)
    torch_sums = RecordSums(model)
    inputs, labels = torch.from_numpy(np.float32(some.inputs)), torch.from_numpy(some.labels)
    whole = sums.clipped_sum(start, np.arange(257), clip, ())
    slow = torch_sums.clipped_sum(start, inputs, labels, clip, ())
    for gone in (0, 100, 256):
        left = np.delete(np.arange(257), gone)
        assert np.linalg.norm(whole - sums.clipped_sum(start, left, clip, ())) <= clip
        again = torch_sums.clipped_sum(start, inputs[left], labels[left], clip, ())
        assert np.linalg.norm(slow - again) <= clip
