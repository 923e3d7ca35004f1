"""Rules that read data: each by hand, on average, and in how little one record can say."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from discretion import engine
from discretion.clients import statistics
from discretion.clients.local_clients import LocalClients
from discretion.errors import PlanError
from discretion.plan.selection_rules import READS, Reading, Rule, optimal_chances
from discretion.tasks import models
from discretion.tasks.datasets import Dataset, Split
from discretion.tasks.partitions import Partition
from discretion.training.orders import Order

RULES: tuple[Rule, ...] = ("largest_loss", "norm", "class_balance", "diversity")


def chances(norms: list[float], expected: int) -> np.ndarray:
    return optimal_chances(np.array(norms), expected)


def test_chances_by_hand() -> None:
    np.testing.assert_allclose(chances([1, 2, 3, 4], 2), [0.2, 0.4, 0.6, 0.8])  # l = n: 2 <= 10 / 4
    np.testing.assert_allclose(chances([1, 1, 10], 2), [0.5, 0.5, 1.0])  # 2 > 12/10, then 1 <= 2/1
    np.testing.assert_allclose(chances([10, 1, 1], 2), [1.0, 0.5, 0.5])  # in any order
    np.testing.assert_allclose(chances([5, 5, 5, 5], 1), [0.25] * 4)
    np.testing.assert_allclose(chances([1, 100, 2, 100, 3], 4), [1 / 3, 1.0, 2 / 3, 1.0, 1.0])


def test_chances_sum_to_what_is_expected_and_none_is_above_1() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        count = int(rng.integers(1, 40))
        expected = int(rng.integers(1, count + 1))
        norm = np.exp(rng.normal(0, rng.uniform(0, 6), count))
        p = optimal_chances(norm, expected)
        assert p.sum() == pytest.approx(expected, rel=1e-9)
        assert ((p > 0) & (p <= 1)).all()
        below = np.flatnonzero(p < 1 - 1e-12)  # they are in proportion, and the others would pass 1
        if len(below):
            ratio = (p / norm)[below]
            assert np.ptp(ratio) <= 1e-9 * ratio.max()
            assert (norm[p >= 1 - 1e-12] * ratio[0] >= 1 - 1e-9).all()


@pytest.mark.parametrize("rule", ["norm", "diversity"])
def test_weights_make_up_for_the_draw(rule: Rule) -> None:
    """On average every client counts choose / asked; within 5 standard errors in 4000 draws."""
    rng = np.random.default_rng(1)
    statistic = rng.uniform(0.2, 1.0, (12, 2 if rule == "diversity" else 1))
    statistic[:, -1] += rng.uniform(0, 1, 12)
    reading, counted = Reading(rule, 4, 1.0), np.zeros((4000, 12))
    for row in counted:
        picked, weight = reading.pick(statistic, rng.random(12))
        row[picked] = weight
    error = counted.std(axis=0) / np.sqrt(len(counted))
    assert (np.abs(counted.mean(axis=0) - 4 / 12) < 5 * error).all()
    assert counted.std() > 0.1


def test_diversity_by_hand() -> None:
    """sqrt of 0.6² + 0.28, and 0.6² twice: 0.8, 0.6 and 0.6 of 2, and next to nothing for the last."""
    statistic = np.array([[0.6, 0.64], [0.6, 0.2], [0.6, 0.36], [1e-9, -3.0]])
    picked, weight = Reading("diversity", 3, 1.0).pick(statistic, np.array([0.1, 0.39, 0.95, 0.0]))
    assert picked.tolist() == [0, 2]
    np.testing.assert_allclose(weight, [2 / (4 * 0.4), 1 / (4 * 0.3)], rtol=1e-3)


def test_power_of_choice_picks_the_largest() -> None:
    statistic = np.array([[0.3], [0.9], [-2.0], [0.5], [0.9]])
    for choose, expected in (
        (1, [1]),
        (2, [1, 4]),
        (3, [1, 3, 4]),
        (5, [0, 1, 2, 3, 4]),
        (9, [0, 1, 2, 3, 4]),
    ):
        picked, weight = Reading("largest_loss", choose, 1.0).pick(statistic, np.zeros(5))
        assert picked.tolist() == expected
        assert (weight == 1).all()


def imbalance(counts: np.ndarray) -> float:
    share = counts.sum(axis=0) / counts.sum()
    return float(np.square(share - 1 / counts.shape[1]).sum())


def test_balance_is_better_than_chance() -> None:
    rng = np.random.default_rng(2)
    counts = rng.dirichlet(np.full(5, 0.3), 30)
    reading = Reading("class_balance", 8, 1.0)
    ours = [imbalance(counts[reading.pick(counts, rng.random(30))[0]]) for _ in range(200)]
    chance = [imbalance(counts[rng.choice(30, 8, replace=False)]) for _ in range(200)]
    assert np.mean(ours) < 0.5 * np.mean(chance)


def test_balance_by_hand() -> None:
    """With one client of class 0 first, the second is all but surely the one of class 1."""
    counts = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    reading = Reading("class_balance", 2, 1.0)
    for coin, first in ((0.1, 0), (0.5, 1), (0.9, 2)):  # alone, all are equally unbalanced
        picked, _ = reading.pick(counts, np.array([coin, 0.5, 0.0]))
        assert first in picked and 2 in picked


def test_balance_of_many_does_not_run_out_of_digits() -> None:
    """The 401st is drawn by a 401st power: those left must not all vanish beside those that are taken."""
    rng = np.random.default_rng(3)
    counts = np.concatenate([np.full((400, 10), 0.1), np.eye(10)[:5]])
    picked, weight = Reading("class_balance", 403, 1.0).pick(counts, rng.random(405))
    assert len(set(picked.tolist())) == len(weight) == 403


@pytest.mark.parametrize("rule", RULES)
def test_noise_may_make_statistics_anything(rule: Rule) -> None:
    rng = np.random.default_rng(4)
    numbers = {"class_balance": 10, "diversity": 2}.get(rule, 1)
    for scale in (1e-12, 1.0, 1e9):
        for shift in (-10, 0, 10):
            statistic = scale * (rng.standard_normal((20, numbers)) + shift)
            picked, weight = Reading(rule, 5, 1.0).pick(statistic, rng.random(20))
            assert (np.diff(picked) > 0).all() and ((picked >= 0) & (picked < 20)).all()
            assert len(weight) == len(picked) and np.isfinite(weight).all() and (weight > 0).all()
    picked, _ = Reading(rule, 5, 1.0).pick(np.zeros((0, numbers)), np.zeros(0))
    assert len(picked) == 0


def test_rules_that_cannot_be_are_refused() -> None:
    for rule, choose, bound in (("x", 1, 1.0), ("norm", 0, 1.0), ("norm", 1, 0.0), ("norm", 1, np.inf)):
        with pytest.raises(PlanError):
            Reading(rule, choose, bound)  # type: ignore[arg-type]
    assert set(READS) == set(RULES)


# what one record can say

COUNT, FEATURES, CLASSES = 24, 6, 3


def local(inputs: np.ndarray, labels: np.ndarray, scale: float) -> tuple[LocalClients, Order]:
    """A linear model; client 0 has all records, client k all but the (k - 1)-th."""
    split = Split(inputs.astype(np.float32), labels)
    dataset = Dataset("made", split, split, CLASSES, "tabular", "made")
    each = [np.arange(COUNT)] + [np.delete(np.arange(COUNT), k) for k in range(COUNT)]
    partition = Partition(np.concatenate(each), np.concatenate([[0], np.cumsum([len(x) for x in each])]))
    torch.manual_seed(0)
    clients = LocalClients(dataset, partition, nn.Linear(FEATURES, CLASSES))
    everyone = np.arange(COUNT + 1)
    model = (scale * clients.initial()).astype(np.float32)
    return clients, Order(1, 0, model, everyone, np.zeros_like(everyone))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("bound", [0.05, 1.0, 4.0])
@pytest.mark.parametrize("bad", [False, True])
def test_one_record_moves_a_statistic_by_its_sensitivity_at_most(rule: Rule, bound: float, bad: bool) -> None:
    rng = np.random.default_rng(5)
    most = 0.0
    for scale in (0.0, 1.0, 1e3, 1e20):
        inputs = rng.standard_normal((COUNT, FEATURES)) * np.exp(rng.normal(0, 3, (COUNT, 1)))
        if bad:
            inputs[0, 0], inputs[1, 2], inputs[2], inputs[3] = np.nan, np.inf, -np.inf, 3e38
        clients, order = local(inputs, rng.integers(0, CLASSES, COUNT), scale)
        reading = Reading(rule, 1, bound)
        found = clients.statistics(order, reading).value
        assert np.isfinite(found).all()
        moved = np.linalg.norm(found[0] - found[1:], axis=1)
        assert (moved <= reading.sensitivity * (1 + 1e-9)).all()
        most = max(most, float(moved.max()) / reading.sensitivity)
    assert most > 0.3  # and it is not far too large


def test_statistics_are_what_they_say() -> None:
    rng = np.random.default_rng(6)
    inputs, labels = rng.standard_normal((COUNT, FEATURES)), rng.integers(0, CLASSES, COUNT)
    clients, order = local(inputs, labels, 1.0)
    order = replace(order, clients=np.array([0]), turn=np.array([0]))
    weight, shift = (
        torch.from_numpy(order.model[: FEATURES * CLASSES]).reshape(CLASSES, FEATURES),
        order.model,
    )
    logits = inputs @ weight.numpy().T + shift[FEATURES * CLASSES :]
    chance = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    losses = -np.log(chance[np.arange(COUNT), labels])
    slope = chance - np.eye(CLASSES)[labels]  # of the logits
    slopes = np.concatenate([(slope[:, :, None] * inputs[:, None]).reshape(COUNT, -1), slope], axis=1)
    length = np.linalg.norm(slopes, axis=1, keepdims=True)
    clipped = slopes * np.minimum(1, 1.5 / length)
    norm, squares = np.linalg.norm(clipped.sum(axis=0)), np.square(clipped).sum() / 1.5
    expected: dict[Rule, Any] = {
        "largest_loss": [np.minimum(losses, 1.5).sum()],
        "norm": [norm],
        "class_balance": 1.5 * np.bincount(labels, minlength=CLASSES),
        "diversity": [norm, squares],
    }
    assert (length > 1.5).any() and (losses > 1.5).any()
    for rule in RULES:
        found = clients.statistics(order, Reading(rule, 1, 1.5)).value
        np.testing.assert_allclose(found[0], expected[rule], rtol=1e-4)


SIZES = np.array([9, 0, 31, 1, 17])
IMAGES = np.random.default_rng(7).integers(0, 256, (60, 1, 16, 16), dtype=np.uint8)
LABELS = np.random.default_rng(8).integers(0, CLASSES, 60)


def one_client(model: nn.Module, records: np.ndarray, rule: Rule, bound: float) -> list[float]:
    """Record by record, with torch's own backward."""
    total, squares, losses = torch.zeros(models.flatten(model).size, dtype=torch.float64), 0.0, 0.0
    for number in records:
        inputs = (torch.from_numpy(IMAGES[number : number + 1]).float() / 255 - 0.5) / 0.3
        loss = functional.cross_entropy(model(inputs), torch.from_numpy(LABELS[number : number + 1]))
        slope = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))]).double()
        slope *= min(1.0, bound / float(slope.norm()))
        total, squares = total + slope, squares + float(slope.square().sum()) / bound
        losses += min(loss.item(), bound)
    labels: list[float] = (bound * np.bincount(LABELS[records], minlength=CLASSES)).tolist()
    norm = float(total.norm())
    return {
        "largest_loss": [losses],
        "norm": [norm],
        "class_balance": labels,
        "diversity": [norm, squares],
    }[rule]


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("rule", RULES)
def test_many_clients_read_as_each_alone(rule: Rule, compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is asked, in any order, also one without records, and nobody."""
    if compiled and not engine.available():
        pytest.skip("the compiled code was not built")
    monkeypatch.setattr(engine, "available", lambda: compiled)
    monkeypatch.setattr(statistics, "GATHERED", 20 * 256)  # so that clients' records are torn apart
    monkeypatch.setattr(statistics, "BATCH", 20)
    split = Split(IMAGES, LABELS)
    dataset = Dataset("made", split, split, CLASSES, "image", "made", mean=0.5, std=0.3)
    index = np.random.default_rng(9).permutation(60)[: SIZES.sum()]
    partition = Partition(index, np.concatenate([[0], np.cumsum(SIZES)]))
    model = models.build("cnn_small", dataset, 0)
    clients = LocalClients(dataset, partition, model, workers=1)
    assert (clients._stack is not None) == compiled
    for who in ([0, 1, 2, 3, 4], [4, 2, 2], [1], []):
        asked = np.array(who, dtype=np.int64)
        order = Order(1, 0, clients.initial(), asked, np.zeros_like(asked))
        found = clients.statistics(order, Reading(rule, 1, 1.1))
        expected = [one_client(model, partition.of(client), rule, 1.1) for client in who]
        assert found.place.tolist() == list(range(len(who))) and found.value.ndim == 2
        assert found.value.dtype == np.float64 and len(found.value) == len(who)
        if who:
            np.testing.assert_allclose(found.value, expected, rtol=2e-5, atol=1e-6)
