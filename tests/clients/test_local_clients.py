"""Clients in this process: trained together they end where each would end alone."""

from collections.abc import Generator, Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.nn import functional

from discretion.accounting import certify
from discretion.clients.local_clients import LocalClients
from discretion.clients.training import LocalTraining, Schedule, batches
from discretion.errors import ModelError
from discretion.plan.phase import Clipping, Phase
from discretion.plan.plan import Plan
from discretion.plan.population import Population
from discretion.tasks import models
from discretion.tasks.catalogue import Kind
from discretion.tasks.datasets import Dataset, Split
from discretion.tasks.partitions import Partition
from discretion.training.loop import State, next_state
from discretion.training.orders import Order, Updates
from support.attack import lower_bound
from support.local_clients import DATASET, PARTITION, SIZES, Stubborn, changes, noisy, order
from support.training_clients import UpdatesOnly

LOCAL = LocalTraining(epochs=3, batch_size=5, learning_rate=0.05)


def clients(name: str = "cnn_small", local: LocalTraining = LOCAL) -> LocalClients:
    return LocalClients(DATASET, PARTITION, models.build(name, DATASET, 0), local, workers=1)


def taken(client: int, local: LocalTraining = LOCAL, key: int = 9, turn: int = 0) -> list[np.ndarray]:
    """The client's batches."""
    records, real = batches(PARTITION, local, key, np.array([client]), np.array([turn]))
    return [drawn[some] for drawn, some in zip(records[0], real[0], strict=True) if some.any()]


def alone(asked: Order, client: int) -> np.ndarray:
    """The same training with torch's own optimiser, a client and a batch at a time."""
    model = models.build("cnn_small", DATASET, 0)
    optimiser = torch.optim.SGD(model.parameters(), lr=LOCAL.learning_rate)
    for batch in taken(client):
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
        expected = alone(asked, client)
        np.testing.assert_allclose(found[client], expected, atol=1e-5)
        assert np.abs(expected).max() > 1e-3


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


def test_chunks_cover_everybody_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = clients("linear")
    monkeypatch.setattr(made, "_at_once", lambda records: 2)
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


@pytest.mark.parametrize("name", ["cnn_small", "own"])
def test_evaluation_does_not_depend_on_threads_or_on_compiled_code(name: str) -> None:
    model = Stubborn() if name == "own" else models.build(name, DATASET, 0)
    rng = np.random.default_rng(3)
    test = Split(rng.integers(0, 256, (1207, 1, 16, 16), dtype=np.uint8), rng.integers(0, 3, 1207))
    made = LocalClients(replace(DATASET, test=test), PARTITION, model)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found.append((made.evaluate(made.initial()), made._evaluation.quality(made.initial())))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert found[0] == found[1]
    one, other = found[0]
    assert one.accuracy == pytest.approx(other.accuracy, abs=1.5 / 1207)  # logits may tie, almost
    assert one.loss == pytest.approx(other.loss, rel=1e-5)


def test_tabular_and_text_data_reach_the_model_as_they_are() -> None:
    rng = np.random.default_rng(0)
    table = Split(rng.standard_normal((20, 6)).astype(np.float32), rng.integers(0, 2, 20))
    text = Split(rng.integers(0, 9, (20, 5), dtype=np.uint8), rng.integers(0, 9, 20))
    holdings = Partition(np.arange(20), np.array([0, 12, 20]))
    cases: list[tuple[Split, Kind, str, int]] = [(table, "tabular", "mlp", 2), (text, "text", "lstm", 9)]
    for split, kind, name, classes in cases:
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


# plans that protect records


def gradients(model: np.ndarray, client: int) -> np.ndarray:
    """(n, d) of a linear model, by torch's own backward, a record at a time."""
    rows = []
    for record in PARTITION.of(client):
        module = models.build("linear", DATASET, 0)
        torch.nn.utils.vector_to_parameters(torch.from_numpy(model.copy()), module.parameters())
        inputs = (torch.from_numpy(DATASET.train.inputs[[record]]).float() / 255 - 0.5) / 0.3
        functional.cross_entropy(module(inputs), torch.tensor(DATASET.train.labels[[record]])).backward()
        slopes = [p.grad.reshape(-1) for p in module.parameters() if p.grad is not None]
        rows.append(torch.cat(slopes).numpy())
    return np.array(rows, dtype=np.float64)


def test_without_clip_noise_and_coins_noisy_steps_are_plain_gradient_descent() -> None:
    made = clients("linear")
    found = changes(made, noisy(made, [0, 2], steps=3))
    for client in (0, 2):
        model = made.initial().astype(np.float64)
        for _ in range(3):
            slopes = gradients(model.astype(np.float32), client)
            model -= LOCAL.learning_rate / SIZES[client] * slopes.sum(0)
        moved = model - made.initial()
        np.testing.assert_allclose(found[client], moved, atol=1e-6)
        assert np.abs(moved).max() > 1e-3


def test_noisy_steps_have_momentum_weight_decay_and_a_rate_that_decays() -> None:
    local = replace(LOCAL, momentum=0.7, weight_decay=0.1, schedule=Schedule("decay", 0.5))
    made = clients("linear", local)
    model, velocity = made.initial().astype(np.float64), 0.0
    for _ in range(3):
        slope = gradients(model.astype(np.float32), 2).mean(0) + 0.1 * model
        velocity = 0.7 * velocity + slope
        model -= LOCAL.learning_rate * 0.5**3 * velocity  # round 4
    found = changes(made, noisy(made, [2], steps=3))[2]
    np.testing.assert_allclose(found, model - made.initial(), atol=1e-6)
    assert np.abs(found).max() > 1e-3


def test_every_record_is_clipped_on_its_own() -> None:
    made = clients("linear")
    norms = np.linalg.norm(gradients(made.initial(), 2), axis=1)
    clip = float(np.median(norms))
    short = gradients(made.initial(), 2) * np.minimum(1, clip / norms)[:, None]
    expected = -LOCAL.learning_rate / SIZES[2] * short.sum(0)
    np.testing.assert_allclose(changes(made, noisy(made, [2], clip=clip))[2], expected, atol=1e-7)
    # in layers: weights and biases, each at its part
    parts = np.split(gradients(made.initial(), 2), [256 * 3], axis=1)
    by_layer = [
        p * np.minimum(1, clip / np.sqrt(2) / np.linalg.norm(p, axis=1, keepdims=True)) for p in parts
    ]
    expected = -LOCAL.learning_rate / SIZES[2] * np.concatenate(by_layer, axis=1).sum(0)
    layered = changes(made, noisy(made, [2], clip=clip, layers=made.layers))[2]
    np.testing.assert_allclose(layered, expected, atol=1e-7)


def test_one_record_more_moves_a_step_by_at_most_the_clip() -> None:
    """Times the learning rate, over the size that is expected."""
    clip = 0.7
    made = clients("linear")
    expected_size = SIZES[2]
    whole = changes(made, noisy(made, [2], clip=clip))[2]
    mine = PARTITION.of(2)
    for gone in range(len(mine)):
        fewer = Partition(np.delete(mine, gone), np.array([0, 0, 0, len(mine) - 1]))
        less = LocalClients(DATASET, fewer, models.build("linear", DATASET, 0), LOCAL)
        row = changes(less, noisy(less, [2], clip=clip))[2] * (expected_size - 1) / expected_size
        moved = np.linalg.norm(whole - row) * expected_size / LOCAL.learning_rate
        assert 0.99 * clip < moved < clip * 1.0001  # every gradient here is longer than the clip


def test_the_noise_of_steps_has_the_planned_std_and_adds_up() -> None:
    """Clips of 0 leave nothing but noise. Each is measured to 5 %; over steps variances add up."""
    made = clients("cnn_small")
    for steps in (1, 4):
        for client in (0, 2):
            row = changes(made, noisy(made, [client], steps, batch=0.5, clip=0.0, noise=3.0))[client]
            divisor = 0.5 * SIZES[client] / LOCAL.learning_rate
            assert row.std() * divisor == pytest.approx(3.0 * steps**0.5, rel=0.05)
            assert abs(row.mean()) < 5 * row.std() / np.sqrt(len(row))


def test_an_empty_batch_leaves_noise_only_and_none_expected_leaves_nothing() -> None:
    made = clients("linear")
    rare = changes(made, noisy(made, [2], batch=1e-9, clip=1.0, noise=1e-9))[2]
    still = changes(made, noisy(made, [2], batch=1e-9, clip=0.0, noise=1e-9))[2]
    np.testing.assert_array_equal(rare, still)
    assert rare.any()
    for batch in (0.0, 1.0):
        nobody = Partition(np.arange(0), np.array([0, 0]))
        empty = LocalClients(DATASET, nobody, models.build("linear", DATASET, 0), LOCAL)
        row = changes(empty, noisy(empty, [0], batch=batch, clip=1.0, noise=1.0))[0]
        assert not row.any()
    assert not changes(made, noisy(made, [2], batch=0.0, clip=1.0, noise=1.0))[2].any()


def table(features: int, there: np.ndarray, size: float) -> LocalClients:
    """One client; each record has one large feature of its own, so its gradient has an axis of its own."""
    inputs = np.diag(np.full(features, size)).astype(np.float32)[there]
    split = Split(inputs, np.zeros(len(inputs), np.int64))
    dataset = Dataset("made", split, split, 2, "tabular", "made")
    holdings = Partition(np.arange(len(inputs)), np.array([0, len(inputs)]))
    local = LocalTraining(learning_rate=1e-6)
    model = models.build("linear", dataset, 0)
    for parameter in model.parameters():
        nn.init.zeros_(parameter)  # and hardly moved: no loss is ever near 0, nor a gradient near the clip
    return LocalClients(dataset, holdings, model, local)


def along_axes(made: LocalClients, change: np.ndarray) -> np.ndarray:
    """(features,) how far a change of a `table`'s model goes along the gradient of each record."""
    weight = made.named(change.astype(np.float32))["1.weight"].astype(np.float64)
    result: np.ndarray = (weight[0] - weight[1]) / np.sqrt(2)
    return result


def test_each_record_comes_with_its_own_coin_of_the_planned_probability() -> None:
    records, draws, batch = 100, 300, 0.3
    made = table(records, np.ones(records, bool), 1e3)
    came = np.zeros((draws, records), bool)
    for seed in range(draws):
        row = changes(made, noisy(made, [0], batch=batch, clip=1.0, seed=seed))[0]
        seen = along_axes(made, row) * batch * records / 1e-6
        assert ((np.abs(seen) < 0.01) | (np.abs(seen - 1) < 0.01)).all()  # its clip, or nothing
        came[seed] = seen > 0.5
    assert stats.binomtest(int(came.sum()), came.size, batch).pvalue > 1e-4
    each = (came.mean(0) - batch) / np.sqrt(batch * (1 - batch) / draws)
    assert stats.kstest(each, "norm").pvalue > 1e-4
    # Poisson: the size of a batch varies as that of independent coins
    sizes = came.sum(1)
    assert sizes.var() == pytest.approx(records * batch * (1 - batch), rel=0.3)
    assert abs(np.corrcoef(came[:, 0], came[:, 1])[0, 1]) < 5 / np.sqrt(draws)


class Kept(UpdatesOnly):
    """Passes on what other clients answer, and keeps it."""

    def __init__(self, clients: LocalClients) -> None:
        self._clients = clients
        self.seen: list[np.ndarray] = []

    def updates(self, order: Order) -> Iterator[Updates]:
        for part in self._clients.updates(order):
            self.seen.extend(part.change)
            yield part


def record_plan(
    clients: int, rounds: int, steps: int, batch: float, clip: float, noise: float, turns: int = 1
) -> Plan:
    each = np.ones(clients)
    phase = Phase(
        rounds=rounds,
        rate=each,
        clip=clip * each,
        noise=noise * each,
        pool=np.arange(clients),
        weight=each / clients,
        turns=np.full(clients, turns),
        batch=batch * each,
        steps=steps,
    )
    return Plan("test", tuple(f"c{i}" for i in range(clients)), (phase,), noise_at="steps")


def test_noisy_steps_can_be_repeated_and_differ_by_client_turn_round_and_seed() -> None:
    made, plan = clients("linear"), record_plan(5, 2, 2, 0.5, clip=0.0, noise=1.0, turns=2)

    def rows(seed: int, run: str = "r") -> list[np.ndarray]:
        kept, state = Kept(made), State.start(made.initial())
        for _ in range(2):
            state = next_state(plan, kept, state, run=run, seed=seed)
        return kept.seen

    one, again, other, renamed = rows(1), rows(1), rows(2), rows(1, "s")
    np.testing.assert_array_equal(one, again)
    drawn = np.array(one + other + renamed)
    assert len(drawn) == 3 * 2 * 5 * 2
    assert np.abs(np.corrcoef(drawn) - np.eye(len(drawn))).max() < 6 / np.sqrt(drawn.shape[1])


def test_a_round_for_records_adds_nothing_to_what_the_steps_have_made() -> None:
    made, plan = clients("linear"), record_plan(5, 1, 2, 0.5, clip=1.0, noise=1.0, turns=2)
    kept = Kept(made)
    state = next_state(plan, kept, State.start(made.initial()), run="r", seed=1)
    np.testing.assert_allclose(state.model - made.initial(), np.sum(kept.seen, axis=0) / 5, atol=1e-6)
    layered = replace(plan, clipping=Clipping(made.layers))
    assert not np.array_equal(
        next_state(layered, kept, State.start(made.initial()), run="r", seed=1).model, state.model
    )


def test_an_attack_on_a_record_finds_no_more_than_was_certified() -> None:
    """The attacker knows all but whether a record is there, and sees every model.

    Canaries whose gradient is longer than the clip, each along an axis of its own, so that each is a trial;
    those of even number are there. A round shows the sum of its steps: the best test adds up the likelihood
    ratios of a binomial mixture. The lower bound on epsilon (99.9 %) stays below the certified one and
    above a third of it.
    """
    rounds, steps, batch, sigma, delta, features, runs = 3, 2, 0.5, 1.0, 1e-2, 1000, 8
    there = np.arange(features) % 2 == 0
    made, plan = table(features, there, 1e4), record_plan(1, rounds, steps, batch, clip=1.0, noise=sigma)
    certified = float(certify(plan, Population.of([100.0], delta)).spent[0])
    count = np.arange(steps + 1)
    weights, std = stats.binom.pmf(count, steps, batch), sigma * np.sqrt(steps)
    scores = np.zeros((runs, features))
    for seed in range(runs):
        kept, state = Kept(made), State.start(made.initial())
        for _ in range(rounds):
            state = next_state(plan, kept, state, run="r", seed=seed)
            seen = along_axes(made, kept.seen[-1]) * batch * there.sum() / 1e-6
            densities = stats.norm.pdf(seen[:, None], count, std) @ weights
            scores[seed] += np.log(densities / stats.norm.pdf(seen, 0, std))
    assert seen[there].mean() == pytest.approx(steps * batch, abs=0.3)  # the canaries do push
    found = lower_bound(scores[:, there].ravel(), scores[:, ~there].ravel(), delta)
    assert certified / 3 < found < certified


def test_a_model_that_cannot_be_vectorised_has_the_same_gradients() -> None:
    torch.manual_seed(0)
    stubborn = Stubborn()
    plain = nn.Sequential(nn.Flatten(), nn.Linear(256, 3))
    plain[1].load_state_dict(stubborn.inner.state_dict())
    rows = []
    for model in (stubborn, plain):
        made = LocalClients(DATASET, PARTITION, model, LOCAL)
        rows.append(changes(made, noisy(made, [0], steps=2, batch=0.7, clip=1.0, noise=0.1))[0])
    np.testing.assert_allclose(rows[0], rows[1], atol=1e-6)


def test_noisy_steps_are_the_same_however_many_clients_train_at_a_time() -> None:
    """Bit for bit, and whoever else is asked; afterwards torch has as many threads as before."""
    before = torch.get_num_threads()
    try:
        made, found = clients("cnn_small"), []
        for threads, who in ((1, [0, 1, 2, 3, 4]), (3, [0, 1, 2, 3, 4]), (2, [4, 2, 0])):
            torch.set_num_threads(threads)
            asked = noisy(made, who, steps=3, batch=0.6, clip=0.5, noise=0.1)
            found.append(changes(made, asked))
            assert list(found[-1]) == who and torch.get_num_threads() == threads
        for client in range(5):
            np.testing.assert_array_equal(found[0][client], found[1][client])
        for client in (4, 2, 0):
            np.testing.assert_array_equal(found[0][client], found[2][client])
    finally:
        torch.set_num_threads(before)


def test_who_stops_listening_stops_the_training() -> None:
    made = clients("linear")
    parts = made.updates(noisy(made, [0, 1, 2, 3, 4], clip=0.5))
    assert next(parts).clients.tolist() == [0]
    assert isinstance(parts, Generator)
    parts.close()
    assert len(changes(made, noisy(made, [0, 1], clip=0.5))) == 2


def test_layers_are_those_that_are_trained() -> None:
    model = models.build("cnn_small", DATASET, 0)
    next(model.parameters()).requires_grad_(False)
    made = LocalClients(DATASET, PARTITION, model, LOCAL)
    assert sum(made.layers) == len(made.initial())
    assert made.layers == clients().layers[1:]
