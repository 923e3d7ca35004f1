"""Plans for a secure sum whose server is trusted: all add shares, by own coins; drop-outs cost no noise."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from discretion.accounting import certify
from discretion.clients.local_clients import LocalClients
from discretion.clients.remote import RemoteClients
from discretion.errors import PlanError
from discretion.methods import make_plan
from discretion.plan.plan import NoiseAt, Plan
from discretion.plan.population import Population
from discretion.training.loop import State
from discretion.training.orders import Order, Shares
from discretion.training.release import missing_noise
from support.guarding import (
    DATA,
    HOLDINGS,
    LOCAL,
    MODEL,
    PEOPLE,
    Direct,
    charged,
    cryptographic,
    guard_of,
    in_process,
    one_pool,
    plan_of,
    remote,
    spent_of,
    trained,
)

TRUSTING = {"trust_server": True, "against": "clients"}
NOISE = 20.0


def secure(rounds: int, rate: float = 0.5, noise: float = NOISE, **more: Any) -> Plan:
    """A plan by which the server is trusted; test_summing_guards.py has those by which it is not."""
    return plan_of(one_pool(rounds, noise, rate), noise_at="secure_sum", promise="clients", **more)


def still(
    plan: Plan, folder: Path, present: int, shares: Shares = "top_up"
) -> tuple[State, RemoteClients, float]:
    """A run of so many of five clients whose updates are zero, and the noise in its last sum."""
    settings = TRUSTING | {"test_seed": None, "epsilon": 100.0}
    clients = remote(Direct({f"c{i}": guard_of(folder, i, **settings) for i in range(present)}), plan)
    clients._local = clients._local.model_copy(update={"learning_rate": 0.0})
    end = trained(plan, clients, folder / "server", seed=None, shares=shares)
    divisor = float(plan.phases[0].rate.sum())
    return end, clients, float(end.velocity.std()) * divisor


def test_guards_flip_the_coins_of_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With next to no noise, the model is the one that a process with the same seed makes."""
    plan = secure(5, noise=1e-7)
    monkeypatch.setattr("support.guarding.PEOPLE", replace(PEOPLE, epsilon=np.full(5, np.inf)))
    settings = TRUSTING | {"epsilon": np.inf}
    clients = remote(Direct({f"c{i}": guard_of(tmp_path, i, **settings) for i in range(5)}), plan)
    there = trained(plan, clients, tmp_path / "there", shares="top_up")
    here = trained(plan, in_process(), tmp_path / "here")
    np.testing.assert_allclose(there.model, here.model, atol=1e-5)
    assert np.abs(here.model).max() > 0.1
    assert [heard.answered for heard in clients.heard] == [5] * 5  # whoever took part


def test_all_answer_and_some_with_noise_alone(tmp_path: Path) -> None:
    plan = cryptographic(secure(12, 0.5, 0.0))
    settings = TRUSTING | {"epsilon": np.inf, "test_seed": None}
    clients = remote(Direct({"c0": guard_of(tmp_path, 0, **settings)}), plan)
    taken = []
    for round_ in range(1, 13):
        order = Order(round_, 5, np.zeros(650, np.float32), np.arange(1), np.zeros(1, np.int64))
        (part,) = clients.updates(order)
        assert part.handed_out
        taken.append(bool(part.change.any()))
    assert 0 < sum(taken) < 12  # all alike once in 2,048 times


@pytest.mark.parametrize("present", [5, 3, 0])
def test_the_server_tops_up_what_does_not_come(present: int, tmp_path: Path) -> None:
    end, clients, found = still(cryptographic(secure(6)), tmp_path, present)
    assert found == pytest.approx(NOISE, rel=5 / 650**0.5)
    assert [heard.answered for heard in clients.heard] == [present] * 6


def test_a_round_with_too_few_shares_is_discarded_and_counts(tmp_path: Path) -> None:
    plan = cryptographic(secure(2))
    end, _, found = still(plan, tmp_path, 4, "discard")
    assert end.round == 2 and found == 0 and spent_of(tmp_path, 0) == pytest.approx(charged(plan, 0))
    (tmp_path / "all").mkdir()
    assert still(plan, tmp_path / "all", 5, "discard")[2] == pytest.approx(NOISE, rel=5 / 650**0.5)


def test_shares_are_larger_where_drop_outs_are_provided_for(tmp_path: Path) -> None:
    plan = cryptographic(secure(6, dropout=0.4))
    assert plan.shares(plan.phases[0]).tolist() == [3] * 5
    for present, noise in ((3, NOISE), (5, NOISE * (5 / 3) ** 0.5)):
        folder = tmp_path / str(present)
        folder.mkdir()
        assert still(plan, folder, present, "discard")[2] == pytest.approx(noise, rel=5 / 650**0.5)
    (tmp_path / "2").mkdir()
    assert still(plan, tmp_path / "2", 2, "discard")[2] == 0


@pytest.mark.parametrize("noise_at", ["secure_sum", "clients"])
def test_on_a_grid_guards_hand_out_whole_numbers(noise_at: NoiseAt, tmp_path: Path) -> None:
    """The sum is bit for bit the one that a process with the same seed makes."""
    plan = plan_of(one_pool(2, rate=1.0), noise_at=noise_at, promise="clients").on_grid(2.0**-20, 650)
    clients = remote(Direct({f"c{i}": guard_of(tmp_path, i, **TRUSTING) for i in range(5)}), plan)
    order = Order(1, 5, np.zeros(650, np.float32), np.arange(5), np.zeros(5, np.int64))
    parts = list(clients.updates(order))
    assert [part.change.dtype for part in parts] == [np.int64] * 5 and all(p.handed_out for p in parts)
    assert plan.grid is not None
    std = np.concatenate([part.change for part in parts]).std() * plan.grid.step
    assert std == pytest.approx(plan.own_noise(plan.phases[0])[0], rel=0.1)
    (tmp_path / "still").mkdir()
    guards = {f"c{i}": guard_of(tmp_path / "still", i, **TRUSTING) for i in range(5)}
    clients, still = remote(Direct(guards), plan), replace(LOCAL, learning_rate=0.0)
    clients._local = clients._local.model_copy(update={"learning_rate": 0.0})
    there = trained(plan, clients, tmp_path / "there", shares="top_up")
    here = trained(plan, LocalClients(DATA, HOLDINGS, MODEL, still), tmp_path / "here")
    assert here.model.any()
    np.testing.assert_array_equal(there.model, here.model)


def test_shares_and_what_is_missing_are_the_planned_noise_or_more() -> None:
    for dropout in (0.0, 0.2, 0.29, 0.5, 0.99):
        plan = secure(1, dropout=dropout)
        (phase,) = plan.phases
        enough = 5 - int(dropout * 5 + 1e-9)
        for came in range(6):
            shares = (np.arange(5) < came).astype(np.int64)
            total = came * plan.own_noise(phase)[0] ** 2 / NOISE**2 + missing_noise(plan, phase, shares)
            assert total == pytest.approx(max(1.0, came / enough))


def test_drop_outs_are_for_secure_sums_and_not_all_may_drop_out() -> None:
    for plan, dropout in ((secure(1), 1.0), (secure(1), -0.1), (plan_of(one_pool(1)), 0.1)):
        with pytest.raises(PlanError, match="dropout must be at least 0 and below 1"):
            replace(plan, dropout=dropout)
    plan = secure(1, dropout=0.25)
    again = Plan.from_json(plan.to_json())
    assert again.dropout == 0.25 and again.digest() == plan.digest() != secure(1).digest()


def test_concert_provides_for_drop_outs_within_budgets() -> None:
    population = Population.of([1.0, 2.0, 4.0] * 10, 1e-5, 20)
    options = {"rounds": 10, "rate": 0.3, "clip": 0.5}
    plan = make_plan("concert", population, options | {"dropout": 0.3})
    spent = certify(plan, population).spent
    assert plan.shares(plan.phases[0]).tolist() == [21] * 30
    assert (spent <= population.epsilon).all() and (spent > 0.99 * population.epsilon).all()
    (more,), (less,) = plan.phases, make_plan("concert", population, options).phases
    assert more.noise[0] / less.noise[0] == pytest.approx((21 / 20) ** 0.5 / (30 / 29) ** 0.5)
