"""What the server does with released steps, against the same arithmetic written out."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from discretion.errors import PlanError
from discretion.plan.combine import Combine
from discretion.plan.phase import Phase
from discretion.plan.plan import Plan
from discretion.training.loop import State, next_state
from discretion.training.orders import Order, Updates
from discretion.training.server_update import NONE, Server, mean_model
from support.training_clients import UpdatesOnly

STEPS = np.random.default_rng(0).standard_normal((6, 40)) * np.geomspace(0.01, 3, 40)


def walk(server: Server, steps: np.ndarray = STEPS) -> list[np.ndarray]:
    model, velocity, square = np.zeros(steps.shape[1], np.float32), np.zeros(steps.shape[1], np.float32), NONE
    models = []
    for number, step in enumerate(steps, 1):
        model, velocity, square = server.move(model, velocity, square, step, number)
        models.append(model)
    return models


def test_plain_steps_are_added_up_with_momentum() -> None:
    velocity, model = np.zeros(40), np.zeros(40)
    for found, step in zip(walk(Server(0.3, 0.8)), STEPS, strict=True):
        velocity = 0.8 * velocity + step
        model = model + 0.3 * velocity
        np.testing.assert_allclose(found, model, rtol=1e-4, atol=1e-5)


def test_adaptive_steps_are_divided_by_their_usual_size_or_that_of_all() -> None:
    model = np.zeros(40)
    for number, found in enumerate(walk(Server(0.02, 0.5, adaptive=0.9)), 1):
        ago = np.arange(number)[::-1, None]
        usual = (0.9**ago * STEPS[:number] ** 2).sum(0) / (0.9**ago).sum()
        mean = (0.5**ago * STEPS[:number]).sum(0) / (0.5**ago).sum()
        model = model + 0.02 * mean / np.sqrt(np.maximum(usual, usual.mean()))
        np.testing.assert_allclose(found, model, rtol=1e-4, atol=1e-6)


def test_adaptive_steps_do_not_depend_on_the_scale_and_nothing_moves_by_nothing() -> None:
    server = Server(0.02, 0.5, adaptive=0.99)
    np.testing.assert_allclose(walk(server)[-1], walk(server, 1e-3 * STEPS)[-1], rtol=1e-3, atol=1e-6)
    assert not np.array(walk(server, 0 * STEPS)).any()


@pytest.mark.parametrize("average", [0.3, 0.8, 0.99])
def test_the_mean_weighs_each_model_by_the_same_share_of_the_next(average: float) -> None:
    mean = NONE
    for number in range(1, 7):
        mean = mean_model(average, mean, STEPS[number - 1].astype(np.float32), number)
        weight = average ** np.arange(number)[::-1]
        np.testing.assert_allclose(mean, weight @ STEPS[:number] / weight.sum(), rtol=1e-4, atol=1e-5)


def test_without_averaging_there_is_no_mean() -> None:
    model = np.ones(3, np.float32)
    assert len(mean_model(0.0, NONE, model, 4)) == 0
    state = State.start(model)
    assert state.result is state.model
    assert replace(state, mean=2 * model).result.tolist() == [2, 2, 2]


class Constant(UpdatesOnly):
    def updates(self, order: Order) -> Iterator[Updates]:
        yield Updates(order.clients, np.ones((len(order.clients), 3), np.float32))


@pytest.mark.parametrize(("own", "servers"), [(0.5, 0.0), (0.0, 0.5), (0.5, 0.2), (0.0, 0.0)])
def test_models_are_averaged_where_the_plan_or_the_server_says_so(own: float, servers: float) -> None:
    phase = Phase.one_pool(3, np.ones(2), np.full(2, 9.0), 0.0)
    plan = Plan(method="m", clients=("a", "b"), phases=(phase,), combine=Combine(average=own))
    state = State.start(np.zeros(3, np.float32))
    for _ in range(3):  # the model is 1, 2, 3
        state = next_state(plan, Constant(), state, run="r", seed=0, server=Server(average=servers))
    np.testing.assert_allclose(state.model, 3.0)
    expected = (1 / 4 + 2 / 2 + 3) / (1 / 4 + 1 / 2 + 1) if max(own, servers) else 3.0
    np.testing.assert_allclose(state.result, expected, rtol=1e-6)


def test_a_mean_of_that_kind_must_be() -> None:
    for average in (1.0, -0.1):
        with pytest.raises(PlanError, match="averaged"):
            Combine(average=average)
