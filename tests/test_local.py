"""Clients in this process: trained together they end where each would end alone."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from discretion.clients.local import LocalClients, LocalTraining
from discretion.errors import ModelError
from discretion.tasks import models
from discretion.tasks.datasets import Dataset, Split
from discretion.tasks.partitions import Partition
from discretion.train import Order

SIZES = np.array([7, 1, 12, 5, 12])


def images(count: int, seed: int) -> Split:
    rng = np.random.default_rng(seed)
    return Split(rng.integers(0, 256, (count, 1, 16, 16), dtype=np.uint8), rng.integers(0, 3, count))


DATASET = Dataset("made", images(40, 0), images(30, 1), 3, "image", "made", mean=0.5, std=0.3)
PARTITION = Partition(np.random.default_rng(2).permutation(40)[:37], np.concatenate([[0], np.cumsum(SIZES)]))
LOCAL = LocalTraining(epochs=3, batch_size=5, learning_rate=0.05)


def clients(name: str = "cnn_small", local: LocalTraining = LOCAL) -> LocalClients:
    return LocalClients(DATASET, PARTITION, models.build(name, DATASET, 0), local)


def changes(made: LocalClients, order: Order) -> dict[int, np.ndarray]:
    return {
        int(client): row
        for part in made.updates(order)
        for client, row in zip(part.clients, part.change, strict=True)
    }


def order(who: list[int], made: LocalClients) -> Order:
    return Order(4, 9, made.initial(), np.array(who, dtype=np.int64))


def alone(made: LocalClients, asked: Order, client: int) -> np.ndarray:
    """The same training with torch's own optimiser, a client and a batch at a time."""
    model = models.build("cnn_small", DATASET, 0)
    optimiser = torch.optim.SGD(model.parameters(), lr=LOCAL.learning_rate)
    for epoch in range(LOCAL.epochs):
        records, real = made._batches(asked, np.array([client]), epoch)
        for step in range(records.shape[1]):
            batch = records[0, step][real[0, step]]
            inputs = (torch.from_numpy(DATASET.train.inputs)[batch].float() / 255 - 0.5) / 0.3
            optimiser.zero_grad()
            labels = torch.from_numpy(DATASET.train.labels)[batch]
            functional.cross_entropy(model(inputs), labels).backward()
            optimiser.step()
    return models.flatten(model) - asked.model


def test_together_is_as_alone() -> None:
    made = clients()
    asked = order([0, 1, 2, 3, 4], made)
    found = changes(made, asked)
    for client in range(5):
        expected = alone(made, asked, client)
        np.testing.assert_allclose(found[client], expected, atol=1e-5)
        assert np.abs(expected).max() > 1e-3


def test_where_torch_cannot_vectorise_the_numbers_are_the_same() -> None:
    together, apart = clients(), clients()
    apart._step = apart._one_after_other
    asked = order([0, 2, 3], together)
    one, other = changes(together, asked), changes(apart, asked)
    for client in one:
        np.testing.assert_allclose(one[client], other[client], atol=1e-5)


class Stubborn(nn.Module):
    """Looks at its numbers, which cannot be done for many clients at once."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(256, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        logits = self.inner(inputs.flatten(1))
        return logits if float(logits.detach().sum()) < 1e9 else -logits


def test_a_model_that_cannot_be_vectorised_is_trained_one_client_at_a_time() -> None:
    torch.manual_seed(0)
    stubborn = Stubborn()
    plain = nn.Sequential(nn.Flatten(), nn.Linear(256, 3))
    plain[1].load_state_dict(stubborn.inner.state_dict())
    results = []
    for model in (stubborn, plain):
        made = LocalClients(DATASET, PARTITION, model, LOCAL)
        results.append(changes(made, order([0, 1, 2], made)))
    for client in range(3):
        np.testing.assert_allclose(results[0][client], results[1][client], atol=1e-5)


def test_an_update_does_not_depend_on_who_else_is_asked() -> None:
    made = clients("linear")
    many, few = changes(made, order([0, 1, 2, 3, 4], made)), changes(made, order([3], made))
    np.testing.assert_allclose(many[3], few[3], atol=1e-6)


def test_every_record_is_used_once_in_an_epoch_and_in_another_order_in_the_next() -> None:
    made = clients()
    orders = []
    for epoch in (0, 1):
        records, real = made._batches(order([], made), np.arange(5), epoch)
        for client in range(5):
            used = records[client][real[client]].numpy()
            assert sorted(used) == sorted(PARTITION.of(client))
        orders.append(records[2][real[2]].tolist())
    assert orders[0] != orders[1]
    later, real = made._batches(replace(order([], made), key=10), np.arange(5), 0)
    assert later[2][real[2]].tolist() != orders[0]


def test_chunks_cover_everybody_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = clients("linear")
    monkeypatch.setattr(made, "_together", 2)
    parts = [part.clients.tolist() for part in made.updates(order([4, 0, 2, 1], made))]
    assert sorted(sum(parts, [])) == [0, 1, 2, 4] and max(map(len, parts)) == 2
    assert list(made.updates(order([], made))) == []


def test_evaluation_is_on_the_test_records() -> None:
    made = clients("linear")
    model = models.build("linear", DATASET, 0)
    inputs = (torch.from_numpy(DATASET.test.inputs).float() / 255 - 0.5) / 0.3
    logits, labels = model(inputs).detach(), torch.from_numpy(DATASET.test.labels)
    quality = made.evaluate(made.initial())
    assert quality.accuracy == pytest.approx(float((logits.argmax(1) == labels).float().mean()))
    assert quality.loss == pytest.approx(float(functional.cross_entropy(logits, labels)), rel=1e-5)


def test_tabular_and_text_data_reach_the_model_as_they_are() -> None:
    rng = np.random.default_rng(0)
    table = Split(rng.standard_normal((20, 6)).astype(np.float32), rng.integers(0, 2, 20))
    text = Split(rng.integers(0, 9, (20, 5), dtype=np.uint8), rng.integers(0, 9, 20))
    holdings = Partition(np.arange(20), np.array([0, 12, 20]))
    for split, kind, name, classes in ((table, "tabular", "mlp", 2), (text, "text", "lstm", 9)):
        dataset = Dataset("made", split, split, classes, kind, "made")
        made = LocalClients(dataset, holdings, models.build(name, dataset, 0), LocalTraining())
        assert all(
            np.isfinite(row).all() and row.any() for row in changes(made, order([0, 1], made)).values()
        )


def test_a_model_whose_buffers_would_leak_is_refused() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(784, 3))
    with pytest.raises(ModelError, match="GroupNorm"):
        LocalClients(DATASET, PARTITION, model, LOCAL)


def test_the_model_by_name_loads_into_the_module() -> None:
    made = clients()
    model = models.build("cnn_small", DATASET, 5)
    named = {name: torch.from_numpy(array.copy()) for name, array in made.named(made.initial()).items()}
    model.load_state_dict(named)
    np.testing.assert_array_equal(models.flatten(model), made.initial())
