"""Sums of shares on a grid: bit for bit what a secure sum of whole numbers gives, with no less noise."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from discretion.errors import LedgerError, PlanError
from discretion.plan.phase import Phase
from discretion.plan.plan import Plan
from discretion.randomness.sources import Seeded, Source
from discretion.randomness.streams import Purpose, stream
from discretion.training.integer_release import hand_out_on_grid
from discretion.training.orders import Updates
from discretion.training.release import release

SIZE, STEP = 500, 2.0**-12
RATE, CLIP = np.array([0.5, 1.0, 0.5, 0.0, 0.5]), np.array([1.0, 2.0, 1.0, 1.0, 1.5])
POOL = np.array([0, 0, 0, 0, 1])
NAMES = ("a", "b", "c", "d", "e")


def plan_of(noise_at: str = "secure_sum", **more: Any) -> Plan:
    phase = Phase(1, RATE, CLIP, np.array([2.0, 1.0]), POOL, np.ones(2))
    return Plan("made", NAMES, (phase,), noise_at=noise_at, **more).on_grid(STEP, SIZE)  # type: ignore[arg-type]


def own(client: int, turn: int) -> Source:
    return Seeded(stream(3, Purpose.SHARES, client, turn))


def server(pool: int) -> Source:
    return Seeded(stream(4, Purpose.NOISE, pool))


def updates_of(*clients: int) -> np.ndarray:
    """Of lengths below and above the clips."""
    rng = np.random.default_rng(5)
    rows = rng.standard_normal((5, SIZE)) * rng.uniform(0.01, 0.2, (5, 1))
    return np.asarray(rows[list(clients)], dtype=np.float32)


def handed_out(plan: Plan, clients: tuple[int, ...], noisy: bool = True) -> np.ndarray:
    (phase,), who = plan.phases, np.array(clients)
    std = plan.own_noise(phase)[who] * noisy
    assert plan.grid is not None
    sources = [own(client, 0) for client in clients]
    return hand_out_on_grid(plan.grid, updates_of(*clients), phase.clip[who], std, sources)


def released(plan: Plan, asked: tuple[int, ...], parts: list[Updates], top_up: bool = True) -> Any:
    (phase,) = plan.phases
    return release(
        plan, phase, SIZE, 1.0, np.array(asked, np.int64), iter(parts), server, own, top_up=top_up
    )[0]


def in_parts(clients: tuple[int, ...], rows: np.ndarray, ready: bool) -> list[Updates]:
    return [Updates(np.array([c]), rows[i : i + 1], handed_out=ready) for i, c in enumerate(clients)]


def test_in_one_process_the_sum_is_that_of_all_hand_outs() -> None:
    """Clients 0 and 4 take part; 1 and 2 add noise alone, and 3 never takes part."""
    plan = plan_of()
    rows = handed_out(plan, (0, 4))
    silent = handed_out(plan, (1, 2)) - handed_out(plan, (1, 2), noisy=False)
    by_pool = np.stack([rows[0] + silent.sum(axis=0), rows[1]])
    expected = STEP * ((by_pool + 2**31) % 2**32 - 2**31)
    here = released(plan, (0, 4), [Updates(np.array([0, 4]), updates_of(0, 4))])
    np.testing.assert_array_equal(here, expected)
    coins = np.concatenate([rows, silent])  # what guards hand out, whose coins are the same
    parts = in_parts((0, 4, 1, 2), coins, ready=True)
    np.testing.assert_array_equal(released(plan, (0, 1, 2, 4), parts, top_up=False), expected)
    np.testing.assert_array_equal(released(plan, (0, 1, 2, 4), parts[::-1]), expected)


def test_shares_that_do_not_come_are_drawn_or_the_round_is_discarded() -> None:
    plan = plan_of()
    rows = handed_out(plan, (0, 1, 2, 4))
    some = in_parts((0, 4), rows[[0, 3]], ready=True)
    assert released(plan, (0, 1, 2, 4), some, top_up=False) is None
    silent = rows[1:3] - handed_out(plan, (1, 2), noisy=False)
    found = released(plan, (0, 1, 2, 4), some)
    np.testing.assert_array_equal(found[0], STEP * (rows[0] + silent.sum(axis=0)))
    lenient = plan_of(dropout=0.34)  # one of three
    rows = handed_out(lenient, (0, 1, 4))
    two = in_parts((0, 1, 4), rows, ready=True)
    found = released(lenient, (0, 1, 2, 4), two, top_up=False)
    np.testing.assert_array_equal(found[0], STEP * (rows[0] + rows[1]))


def test_sums_are_taken_modulo_2_to_the_32() -> None:
    plan = plan_of()
    rows = handed_out(plan, (0, 1, 2, 4))
    wrapped = (rows + 2**32 * np.arange(4)[:, None] + 2**31) % 2**32 - 2**31
    parts = [in_parts((0, 1, 2, 4), each, ready=True) for each in (rows, wrapped, rows + 2**34)]
    first, *others = (released(plan, (0, 1, 2, 4), each) for each in parts)
    for other in others:
        np.testing.assert_array_equal(first, other)


@pytest.mark.parametrize("ready", [False, True])
def test_clients_that_take_part_add_shares_and_the_server_the_rest(ready: bool) -> None:
    plan = plan_of("clients")
    rows = handed_out(plan, (0, 1)) if ready else updates_of(0, 1)
    found = released(plan, (0, 1), in_parts((0, 1), rows, ready))
    without = found / STEP - np.stack([handed_out(plan, (0, 1)).sum(axis=0), np.zeros(SIZE)])
    noise = plan.phases[0].noise * np.sqrt([1 / 3, 1.0]) / STEP  # of client 2, and of all of pool 1
    for pool in range(2):
        assert without[pool].std() == pytest.approx(noise[pool], rel=5 / SIZE**0.5)
        assert (without[pool] == np.rint(without[pool])).all()


def test_all_shares_of_a_pool_that_came_need_no_more_noise() -> None:
    plan = plan_of("clients")
    rows = handed_out(plan, (0, 1, 2, 4))
    found = released(plan, (0, 1, 2, 4), in_parts((0, 1, 2, 4), rows, ready=True))
    np.testing.assert_array_equal(found, STEP * np.stack([rows[:3].sum(axis=0), rows[3]]))


def test_the_noise_of_a_sum_is_the_planned_discrete_gaussian() -> None:
    wide = replace(plan_of(), phases=plan_of().phases)
    (phase,) = wide.phases
    assert wide.grid is not None
    plan = replace(wide, grid=replace(wide.grid, size=40_000))
    sums, _ = release(plan, phase, 40_000, 1.0, np.zeros(0, np.int64), iter([]), server, own)
    assert sums is not None
    for pool in range(2):
        normal = sums[pool] / phase.noise[pool]
        assert stats.kstest(normal, "norm").pvalue > 1e-4
        assert normal.std() == pytest.approx(1.0, rel=5 / 80_000**0.5)


def test_updates_are_clipped_rounded_and_finite_before_they_get_noise() -> None:
    plan = plan_of()
    (phase,) = plan.phases
    assert plan.grid is not None
    rows = np.concatenate([1e6 * updates_of(0), updates_of(1), updates_of(2)])
    rows[2, 0] = np.nan
    clip = phase.clip[:3]
    found = hand_out_on_grid(plan.grid, rows, clip, np.zeros(3), [own(i, 0) for i in range(3)])
    assert found.dtype == np.int64
    assert np.linalg.norm(found[0] * STEP) == pytest.approx(1.0, rel=1e-3)
    assert (np.linalg.norm(found, axis=1) <= plan.grid.norm_bound(clip)).all()
    np.testing.assert_allclose(found[1] * STEP, rows[1] * min(1, 2 / np.linalg.norm(rows[1])), atol=STEP)
    assert not found[2].any()
    none = hand_out_on_grid(plan.grid, rows[:1], np.zeros(1), np.zeros(1), [own(0, 0)])
    assert not none.any()  # a coin said no


def some(rows: np.ndarray, ready: bool) -> Iterator[Updates]:
    yield Updates(np.array([0]), rows, handed_out=ready)


@pytest.mark.parametrize(
    ("rows", "ready", "found"),
    [
        (np.zeros((1, SIZE), np.float32), True, "updates must be int64, found float32"),
        (np.zeros((1, SIZE), np.int64), False, "updates must be float32, found int64"),
        (np.zeros((1, 3), np.int64), True, "be 1 rows of 500 numbers"),
    ],
)
def test_answers_of_another_kind_are_refused(rows: np.ndarray, ready: bool, found: str) -> None:
    with pytest.raises(LedgerError, match=found):
        released(plan_of(), (0,), list(some(rows, ready)))


def test_a_grid_of_another_model_is_refused() -> None:
    plan = plan_of()
    with pytest.raises(PlanError, match="grid is of 500 parameters, the model has 4"):
        release(plan, plan.phases[0], 4, 1.0, np.zeros(0, np.int64), iter([]), server, own)
