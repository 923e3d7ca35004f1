"""The loop: the coins, clips and noise that run are those that were accounted for."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from discretion.accounting import certify
from discretion.errors import BudgetError, LedgerError, PlanError
from discretion.ledger import Ledger
from discretion.methods import make_plan
from discretion.noise import Cryptographic, Seeded
from discretion.phase import Phase
from discretion.plan import Plan
from discretion.population import Population
from discretion.streams import Purpose, run_stream
from discretion.train import (
    Order,
    Server,
    State,
    Updates,
    clip_factor,
    clipped_sums,
    next_state,
    select,
    train,
)


class Fixed:
    """Clients whose updates are rows of a matrix."""

    def __init__(self, rows: np.ndarray) -> None:
        self.rows = rows.astype(np.float32)
        self.asked: list[np.ndarray] = []

    def updates(self, order: Order) -> Iterator[Updates]:
        self.asked.append(order.clients)
        for part in np.array_split(order.clients, 3):
            yield Updates(part, self.rows[part])


def plan_of(phase: Phase) -> Plan:
    return Plan("test", tuple(f"c{i}" for i in range(len(phase.rate))), (phase,))


def two_pools(clients: int = 30, rounds: int = 4) -> Phase:
    return Phase(
        rounds=rounds,
        rate=np.full(clients, 0.5),
        clip=np.linspace(0.5, 1.5, clients),
        noise=np.array([2.0, 5.0]),
        pool=np.arange(clients) % 2,
        weight=np.array([0.1, 0.01]),
    )


def test_noise_has_the_planned_std_in_each_pool() -> None:
    """Zero updates leave nothing but noise: its std is measured to 3 %, so 10 % less would fail."""
    phase, size = two_pools(), 40_000
    for pool in (0, 1):
        weight = np.zeros(2)
        weight[pool] = 1.0
        alone = replace(phase, weight=weight)
        state = State.start(np.zeros(size, np.float32))
        moved = next_state(plan_of(alone), Fixed(np.zeros((30, size))), state, run="r", seed=7).model
        assert moved.std() == pytest.approx(phase.noise[pool], rel=0.03)
        assert abs(moved.mean()) < 5 * phase.noise[pool] / np.sqrt(size)
        assert stats.kstest(moved / phase.noise[pool], "norm").pvalue > 1e-4


def test_noise_is_new_in_every_round_and_pool() -> None:
    size, plan = 5000, plan_of(replace(two_pools(), noise=np.array([1.0, 0.0]), weight=np.ones(2)))
    state, drawn = State.start(np.zeros(size, np.float32)), []
    for _ in range(3):
        new = next_state(plan, Fixed(np.zeros((30, size))), state, run="r", seed=7)
        drawn.append(new.model - state.model)
        state = new
    drawn += [
        run_stream(7, Purpose.NOISE, "r", plan.digest(), 1, pool).standard_normal(size) for pool in (1, 2)
    ]
    correlation = np.corrcoef(drawn) - np.eye(5)
    assert np.abs(correlation).max() < 5 / np.sqrt(size)


def test_two_plans_under_one_seed_share_neither_noise_nor_coins() -> None:
    """Or else the noise of one run could be taken off the other."""
    phase, size = two_pools(clients=200), 5000
    plans = [plan_of(phase), plan_of(replace(phase, rounds=5))]
    start = State.start(np.zeros(size, np.float32))
    one, other = (
        next_state(plan, Fixed(np.zeros((200, size))), start, run="r", seed=7).model for plan in plans
    )
    assert abs(np.corrcoef(one, other)[0, 1]) < 5 / np.sqrt(size)
    chosen = [
        set(select(phase, Seeded(run_stream(7, Purpose.COINS, "r", plan.digest(), 1)))) for plan in plans
    ]
    assert chosen[0] != chosen[1]


def test_coins_are_independent_and_of_the_planned_rate() -> None:
    rate = np.array([0.0, 0.02, 0.3, 0.9, 1.0])
    phase = Phase.one_pool(1, rate, np.ones(5), 1.0)
    plan, rounds = plan_of(phase), 20_000
    came = np.zeros((rounds, 5), dtype=bool)
    for number in range(rounds):
        came[number, select(phase, Seeded(run_stream(3, Purpose.COINS, "r", plan.digest(), number)))] = True
    assert not came[:, 0].any()
    assert came[:, 4].all()
    for k in (1, 2, 3):
        assert stats.binomtest(int(came[:, k].sum()), rounds, rate[k]).pvalue > 1e-4
    # Poisson sampling: who else came says nothing, and the size of the cohort is not fixed
    assert abs(np.corrcoef(came[:, 2], came[:, 3])[0, 1]) < 5 / np.sqrt(rounds)
    assert abs(np.corrcoef(came[1:, 2], came[:-1, 2])[0, 1]) < 5 / np.sqrt(rounds)
    assert len(np.unique(came[:, 1:4].sum(axis=1))) == 4


def test_without_a_seed_coins_and_noise_come_from_the_operating_system() -> None:
    phase, size = two_pools(clients=400), 40_000
    plan = plan_of(replace(phase, weight=np.array([1.0, 0.0])))
    start = State.start(np.zeros(size, np.float32))
    one, other = (
        next_state(plan, Fixed(np.zeros((400, size))), start, run="r", seed=None).model for _ in range(2)
    )
    for model in (one, other):
        assert model.std() == pytest.approx(phase.noise[0], rel=0.03)
        assert stats.kstest(model / phase.noise[0], "norm").pvalue > 1e-5
    assert abs(np.corrcoef(one, other)[0, 1]) < 5 / np.sqrt(size)
    coins = [select(phase, Cryptographic()) for _ in range(50)]
    assert stats.binomtest(sum(map(len, coins)), 50 * 400, 0.5).pvalue > 1e-5
    assert len({tuple(chosen) for chosen in coins}) == 50


def test_a_clipped_update_is_never_longer_than_its_clip() -> None:
    rng = np.random.default_rng(0)
    change = (rng.standard_normal((200, 3000)) * 10 ** rng.uniform(-3, 3, (200, 1))).astype(np.float32)
    clip = 10 ** rng.uniform(-2, 2, 200)
    kept = (clip_factor(change, clip)[:, None].astype(np.float32) * change).astype(np.float64)
    norm = np.linalg.norm(kept, axis=1)
    assert (norm <= clip).all()
    short = np.linalg.norm(change.astype(np.float64), axis=1) < clip * 0.99
    assert short.any() and not short.all()
    np.testing.assert_array_equal(kept[short], change[short])
    np.testing.assert_allclose(norm[~short], np.minimum(clip, norm.max())[~short], rtol=0.011)


def test_updates_that_are_not_finite_count_as_zero() -> None:
    rows = np.ones((6, 4))
    rows[1, 2], rows[2, 0], rows[3] = (
        np.nan,
        np.inf,
        3e38,
    )  # the last one's norm overflows float32, not float64
    phase = Phase.one_pool(1, np.ones(6), np.full(6, 2.0), 0.0)
    total = clipped_sums(
        phase, Fixed(rows).updates(Order(1, 0, np.zeros(4, np.float32), np.arange(6))), np.arange(6), 4
    )
    assert np.isfinite(total).all()
    np.testing.assert_allclose(total[0], 4.0, rtol=1e-5)  # four unclipped or clipped rows of ones


def test_a_client_enters_once_and_only_if_asked() -> None:
    phase = Phase.one_pool(1, np.ones(4), np.ones(4), 1.0)
    row = np.ones((1, 2), np.float32)
    twice = [Updates(np.array([1]), row), Updates(np.array([1]), row)]
    with pytest.raises(LedgerError, match="twice"):
        clipped_sums(phase, iter(twice), np.array([1, 2]), 2)
    both = [Updates(np.array([1, 1]), np.repeat(row, 2, axis=0))]
    with pytest.raises(LedgerError, match="twice"):
        clipped_sums(phase, iter(both), np.array([1, 2]), 2)
    for stranger in (3, -1, 4):
        with pytest.raises(LedgerError, match="not asked"):
            clipped_sums(phase, iter([Updates(np.array([stranger]), row)]), np.array([1, 2]), 2)
    both_ways = [Updates(np.array([-1, 3]), np.repeat(row, 2, axis=0))]
    with pytest.raises(LedgerError, match="not asked"):
        clipped_sums(phase, iter(both_ways), np.array([3]), 2)
    for who, change in (
        (np.array([1]), np.ones((1, 1), np.float32)),  # would be spread over all coordinates
        (np.array([1]), np.ones((2, 2), np.float32)),
        (np.array([1.0]), row),
        (np.array([False, True, False, False]), np.repeat(row, 4, axis=0)),
    ):
        with pytest.raises(LedgerError, match="must be numbered"):
            clipped_sums(phase, iter([Updates(who, change)]), np.array([1, 2]), 2)


def test_the_model_moves_by_the_weighted_sums() -> None:
    """Pools, weights, learning rate and momentum, against the same arithmetic written out."""
    phase = replace(two_pools(rounds=3), rate=np.ones(30), noise=np.zeros(2), clip=np.full(30, 0.7))
    rows = np.random.default_rng(1).standard_normal((30, 5))
    short = rows * np.minimum(1, 0.7 / np.linalg.norm(rows, axis=1, keepdims=True))
    step = 0.1 * short[::2].sum(0) + 0.01 * short[1::2].sum(0)
    state = State.start(np.zeros(5, np.float32))
    server = Server(learning_rate=0.5, momentum=0.9)
    expected, velocity = np.zeros(5), np.zeros(5)
    for _ in range(3):
        state = next_state(plan_of(phase), Fixed(rows), state, run="r", seed=0, server=server)
        velocity = 0.9 * velocity + step
        expected = expected + 0.5 * velocity
    np.testing.assert_allclose(state.model, expected, rtol=1e-4)


def small() -> tuple[Population, Plan]:
    population = Population.of([2.0, 4.0, 8.0, 8.0], 1e-4)
    return population, make_plan("idp_fedavg", population, {"rounds": 6, "rate": 0.5, "clip": 1.0})


def test_every_round_is_reserved_before_a_client_is_asked(tmp_path: Path) -> None:
    population, plan = small()
    ledger = Ledger(tmp_path / "ledger.sqlite", population)

    class Watching(Fixed):
        def updates(self, order: Order) -> Iterator[Updates]:
            assert ledger.states("run")[-1] == (order.round, "reserved")
            return super().updates(order)

    clients = Watching(np.ones((4, 3)))
    start = State.start(np.zeros(3, np.float32))
    rounds = train(plan, certify(plan, population), clients, ledger, start, run="run", seed=1)
    for done, state in enumerate(rounds, start=1):
        assert ledger.states("run")[-1] == (state.round, "reserved")  # the caller has not kept it yet
        assert state.round == done
    assert ledger.states("run") == [(t, "committed") for t in range(1, 7)]
    assert len(clients.asked) == 6


def test_training_refuses_a_plan_that_is_not_the_certified_one(tmp_path: Path) -> None:
    population, plan = small()
    certificate = certify(plan, population)
    less = replace(plan, phases=(replace(plan.phases[0], noise=plan.phases[0].noise * 0.8),))
    clients = Fixed(np.ones((4, 3)))
    start = State.start(np.zeros(3, np.float32))
    with Ledger(tmp_path / "ledger.sqlite", population) as ledger:
        with pytest.raises(PlanError, match="changed after it was certified"):
            next(train(less, certificate, clients, ledger, start, run="a", seed=1))
        with pytest.raises(BudgetError, match="overspend"):
            next(train(less, certify(less, population), clients, ledger, start, run="a", seed=1))
        assert ledger.states("a") == []
    assert clients.asked == []


def test_no_privacy_must_be_accepted_aloud(tmp_path: Path) -> None:
    population, _ = small()
    plan = make_plan("fedavg", population, {"rounds": 1, "rate": 0.5})
    certificate = certify(plan, population)
    start = State.start(np.zeros(3, np.float32))
    with Ledger(tmp_path / "ledger.sqlite", population) as ledger:
        with pytest.raises(BudgetError, match="no privacy"):
            next(train(plan, certificate, Fixed(np.ones((4, 3))), ledger, start, run="a", seed=1))
        rounds = train(
            plan, certificate, Fixed(np.ones((4, 3))), ledger, start, run="a", seed=1, accept_no_privacy=True
        )
        assert [state.round for state in rounds] == [1]
        assert np.isinf(ledger.spent()).all()


def test_a_model_that_does_not_fit_the_ledger_is_refused(tmp_path: Path) -> None:
    population, plan = small()
    certificate = certify(plan, population)
    start = State.start(np.zeros(3, np.float32))
    with Ledger(tmp_path / "ledger.sqlite", population) as ledger:
        states = list(train(plan, certificate, Fixed(np.ones((4, 3))), ledger, start, run="a", seed=1))
        with pytest.raises(LedgerError, match="done before"):
            next(train(plan, certificate, Fixed(np.ones((4, 3))), ledger, states[2], run="a", seed=1))
    ahead = replace(start, round=3)
    other = Ledger(tmp_path / "other.sqlite", population)
    with other, pytest.raises(LedgerError, match="done before"):
        next(train(plan, certificate, Fixed(np.ones((4, 3))), other, ahead, run="a", seed=1))


def test_an_attack_finds_no_more_than_was_certified() -> None:
    """Who sees every model and knows everything but one client's presence, with the best test there is.

    A canary that always pushes its whole clip along one axis; the attacker sums the likelihood ratios of
    all rounds. The lower bound on epsilon (Clopper-Pearson, 99.9 %) must stay below the certified epsilon,
    and above a third of it: an attack that finds nothing would prove nothing.
    """
    rounds, rate, sigma, delta, trials = 4, 0.5, 1.0, 1e-2, 4000
    phase = Phase.one_pool(rounds, np.array([rate]), np.array([1.0]), sigma)
    plan = plan_of(phase)
    certified = float(certify(plan, Population.of([100.0], delta)).spent[0])

    def scores(pushes: bool) -> np.ndarray:
        clients = Fixed(np.full((1, 1), 2.0 if pushes else 0.0))
        out = np.zeros(trials)
        for trial in range(trials):
            state = State.start(np.zeros(1, np.float32))
            for _ in range(rounds):
                new = next_state(plan, clients, state, run="r", seed=2 * trial + pushes)
                seen = float(new.model[0] - state.model[0]) * rate  # the divisor is public
                out[trial] += np.log1p(-rate + rate * np.exp((2 * seen - 1) / (2 * sigma**2)))
                state = new
        return out

    present, absent = scores(True), scores(False)
    found = 0.0
    for threshold in np.quantile(np.concatenate([present, absent]), np.linspace(0.02, 0.98, 49)):
        for inside, outside in ((present, absent), (-absent, -present)):
            cut = threshold if inside is present else -threshold
            hits = stats.binomtest(int((inside > cut).sum()), trials).proportion_ci(0.998).low
            false = stats.binomtest(int((outside > cut).sum()), trials).proportion_ci(0.998).high
            found = max(found, np.log(max(hits - delta, 1e-12) / false))
    assert certified / 3 < found < certified
