"""The finest grid for sums of 32 bits: nothing wraps around, and whole numbers cost next to nothing."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from discretion.errors import PlanError
from discretion.plan.grid import MODULUS, Grid
from discretion.plan.grid_choice import on_finest_grid
from discretion.plan.phase import Phase
from discretion.plan.plan import Plan


def plan_of(clients: int, clip: float = 1.0, noise: float = 5.0, **more: Any) -> Plan:
    phase = Phase.one_pool(10, np.full(clients, 0.1), np.full(clients, clip), noise)
    names = tuple(f"c{i}" for i in range(clients))
    return Plan("made", names, (phase,), **{"noise_at": "secure_sum", "promise": "server"} | more)


def reach_of(plan: Plan) -> float:
    (phase,), grid = plan.phases, plan.grid
    assert grid is not None
    return float(grid.reach(phase.clip, plan.own_noise(phase) / grid.step, phase.pool).max())


@pytest.mark.parametrize("noise_at", ["clients", "secure_sum"])
@pytest.mark.parametrize("noise", [0.3, 5.0, 1e3])
@pytest.mark.parametrize("clip", [1e-3, 1.0, 3e5])
@pytest.mark.parametrize(("clients", "size"), [(2, 10), (100, 22_000), (1000, 1_700_000)])
def test_the_grid_is_fine_and_the_sums_fit(
    clients: int, size: int, clip: float, noise: float, noise_at: str
) -> None:
    plan = plan_of(clients, clip, noise * clip, noise_at=noise_at)
    there = on_finest_grid(plan, size)
    assert there.grid is not None and there.grid.size == size
    assert MODULUS / 8 < reach_of(there) < MODULUS / 2
    more = there.phases[0].noise[0] / plan.phases[0].noise[0]
    assert 1 <= more < 1.011
    assert (there.release(there.phases[0])[1] >= plan.release(plan.phases[0])[1]).all()


def test_the_reach_holds_for_drop_outs_and_all_clips() -> None:
    """Shares are larger where drop-outs are provided for, and all may come."""
    usual, provided = (on_finest_grid(plan_of(50, 0.1, 50.0, dropout=d), 100) for d in (0.0, 0.9))
    assert usual.grid is not None and provided.grid is not None
    assert provided.grid.step >= 2 * usual.grid.step
    grid, pool = Grid(0.5, 1), np.array([0, 1, 1])
    found = grid.reach(np.array([1.0, 2.0, 3.0]), np.zeros(3), pool)
    assert found.tolist() == [2.5, 11.0]
    deviations = grid.reach(np.zeros(1), np.ones(1), np.zeros(1, np.int64))[0] - 0.5
    assert 2 * math.exp(-(deviations**2) / 2) * 2.0**64 * 10**6 == pytest.approx(1)


def test_sums_are_read_from_both_sides_of_zero() -> None:
    grid, half = Grid(1.0, 1), MODULUS // 2
    sums = np.array([0, half - 1, half, -half, -half - 1, 5 * MODULUS - 7])
    assert grid.lifted(sums).tolist() == [0, half - 1, -half, -half, half - 1, -7]


def test_what_does_not_fit_says_what_to_change() -> None:
    far = plan_of(3)
    (phase,) = far.phases
    far = replace(far, phases=(replace(phase, clip=np.array([1e-3, 1.0, 1e5])),))
    with pytest.raises(
        PlanError, match="found clips down to .* fewer clients in a pool, choose clips nearer"
    ):
        on_finest_grid(far, 10**6)
    with pytest.raises(PlanError, match="shares of the noise down to .* more noise; expected at most 1%"):
        on_finest_grid(plan_of(3, 1e6, 1e-3), 10)
    for clip in (math.inf, 0.0):
        with pytest.raises(PlanError, match="a grid needs updates that are clipped"):
            on_finest_grid(plan_of(3, clip), 10)


def test_a_plan_without_noise_or_with_the_servers_noise_has_a_grid_too() -> None:
    for plan in (plan_of(3, noise=0.0), plan_of(3, noise_at="server", promise="clients")):
        there = on_finest_grid(plan, 10)
        assert there.grid is not None and reach_of(there) < MODULUS / 2
