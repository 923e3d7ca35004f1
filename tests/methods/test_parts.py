"""What methods are built from: turns, phases of single clients, and noise read off between budgets."""

import numpy as np
import pytest

from discretion.accounting import Pld, gaussian, noise_multiplier, noise_scale
from discretion.methods import parts
from discretion.methods.parts import draw, finite, own_phases, schedule_scale, whole_gaussian
from discretion.methods.solvers.groups import spread
from discretion.plan.steps import Steps


def schedules(epsilon: np.ndarray, delta: np.ndarray) -> Steps:
    """Ten saving rounds and ten spending ones, in a shape that depends on the budget."""
    clients = len(epsilon)
    equal = noise_multiplier(epsilon, delta, np.full(clients, 0.5), 20)
    rates = np.stack([np.full(clients, 0.1), np.full(clients, 0.5)])
    return Steps(rates, np.stack([1.2 * equal, 0.9 * equal]), np.full((2, clients), 10))


def shares_spent(epsilon: np.ndarray, delta: np.ndarray, kind: np.ndarray) -> np.ndarray:
    made = schedules(epsilon, delta)
    factor = schedule_scale(epsilon, delta, kind, made.of)
    result: np.ndarray = (
        Pld().epsilon(Steps(made.rate, made.multiplier * factor, made.count), delta) / epsilon
    )
    return result


def test_budgets_read_off_between_others_are_kept_and_used() -> None:
    epsilon = np.exp(np.random.default_rng(0).uniform(np.log(0.3), np.log(20), 80))
    assert len(epsilon) > parts.NODES
    share = shares_spent(epsilon, np.full(80, 1e-5), np.zeros(80, np.int64))
    assert (share <= 1).all()
    assert share.min() > 0.995


def test_whoever_would_pass_the_budget_by_what_is_read_off_is_solved(monkeypatch: pytest.MonkeyPatch) -> None:
    """With three budgets solved and no margin, some of those between them would."""
    monkeypatch.setattr(parts, "NODES", 3)
    epsilon = np.geomspace(0.3, 40, 25)
    for margin in (0.0, -0.02):
        monkeypatch.setattr(parts, "MARGIN", margin)
        share = shares_spent(epsilon, np.full(25, 1e-5), np.zeros(25, np.int64))
        assert (share <= 1).all()
        assert share.max() > 0.995


def test_few_budgets_and_other_kinds_are_solved_each() -> None:
    epsilon, delta = np.array([1.0, 2.0, 1.0, 4.0, 2.0]), np.array([1e-5, 1e-5, 1e-6, 1e-5, 1e-5])
    kind = np.array([0, 0, 0, 1, 1])
    made = schedules(epsilon, delta)
    found = schedule_scale(epsilon, delta, kind, made.of)
    np.testing.assert_array_equal(found, noise_scale(made, epsilon, delta))
    assert found[0] != found[2]


def test_those_who_stand_for_all_have_every_budget_or_both_ends() -> None:
    few = np.repeat([1.0, 2.0, 3.0], 50)
    assert spread(few).tolist() == list(range(150))
    many = np.random.default_rng(0).permutation(np.linspace(1, 9, 1000))
    some = spread(many, most=20)
    assert len(set(some.tolist())) == 20
    assert (many[some].min(), many[some].max()) == (1, 9)
    assert np.diff(many[some]) == pytest.approx(8 / 19, rel=0.05)


def test_public_clients_are_as_the_most_generous_other() -> None:
    assert finite(np.array([1.0, np.inf, 3.0])).tolist() == [1, 3, 3]
    assert finite(np.array([np.inf, np.inf])).tolist() == [np.inf, np.inf]


def test_every_round_has_its_draws_by_their_chances() -> None:
    p = np.array([0.5, 0.3, 0.2, 0.0])
    turns = draw(p, 7, 4000, seed=3)
    assert turns.shape == (4000, 4) and (turns.sum(axis=1) == 7).all()
    np.testing.assert_allclose(turns.mean(axis=0), 7 * p, atol=5 * np.sqrt(7 * 0.25 / 4000))
    np.testing.assert_array_equal(turns, draw(p, 7, 4000, seed=3))
    assert (turns != draw(p, 7, 4000, seed=4)).any()
    changing = draw(np.array([[1.0, 0.0], [0.0, 2.0]]), 5, 2, seed=0)
    assert changing.tolist() == [[5, 0], [0, 5]]


def test_whole_gaussians_use_up_the_budget_exactly() -> None:
    epsilon, delta = np.array([0.1, 1.0, 8.0, 50.0]), np.array([1e-5, 1e-6, 1e-3, 1e-9])
    count = np.array([1, 7, 100, 3])
    sigma = whole_gaussian(epsilon, delta, count)
    spent = gaussian.epsilon_of(np.sqrt(count) / sigma, delta)
    assert (spent <= epsilon).all()
    np.testing.assert_allclose(spent, epsilon, rtol=1e-7)
    assert (Pld().epsilon(Steps.same(np.ones(4), sigma, count), delta) <= epsilon).all()
    assert whole_gaussian(np.array([np.inf]), np.array([1e-5]), np.array([3])).tolist() == [0]


def test_single_clients_get_a_phase_for_each_round() -> None:
    turns = np.array([[1, 0, 1], [0, 1, 0]])
    noise, weight = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), np.array([0.1, 0.2, 0.3])
    made = own_phases(turns, 0.5, noise, weight, batch=0.25, steps=4, read=np.ones(3))
    assert len(made) == 2
    for t, phase in enumerate(made):
        assert phase.own_pools and phase.rounds == 1
        assert phase.releases.tolist() == (4 * turns[t]).tolist()
        assert phase.noise.tolist() == noise[t].tolist()
        assert phase.weight.tolist() == weight.tolist()
    assert made[0].clip is made[1].clip and made[0].batch is made[1].batch  # held once
