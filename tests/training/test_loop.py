"""The loop: the coins, clips and noise that run are those that were accounted for."""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from discretion.accounting import certify
from discretion.errors import BudgetError, LedgerError, PlanError
from discretion.ledger.ledger import Ledger
from discretion.methods import make_plan
from discretion.plan.combine import Combine
from discretion.plan.phase import FLAT, Clipping, Phase, Quantile
from discretion.plan.plan import NoiseAt, Plan
from discretion.plan.population import Population
from discretion.plan.selection_rules import Reading, Rule
from discretion.randomness.sources import Cryptographic, Seeded
from discretion.randomness.streams import Purpose, run_stream
from discretion.training.clip import finite_and_factor, layers_of
from discretion.training.loop import State, next_state, select, train
from discretion.training.orders import Order, Statistics, Updates
from discretion.training.release import (
    LARGEST_SCALE,
    clipped_sums,
    hand_out,
    hand_out_statistic,
    noisy_sum,
    release,
)
from discretion.training.server_update import Server
from support.attack import lower_bound
from support.training_clients import UpdatesOnly


class Fixed(UpdatesOnly):
    """Clients whose updates are rows of a matrix."""

    def __init__(self, rows: np.ndarray) -> None:
        self.rows = rows.astype(np.float32)
        self.asked: list[np.ndarray] = []
        self.turns: list[np.ndarray] = []

    def updates(self, order: Order) -> Iterator[Updates]:
        self.asked.append(order.clients)
        self.turns.append(order.turn)
        for part in np.array_split(order.clients, 3):
            yield Updates(part, self.rows[part])


def plan_of(phase: Phase, noise_at: NoiseAt = "server", clipping: Clipping = FLAT) -> Plan:
    names = tuple(f"c{i}" for i in range(len(phase.rate)))
    return Plan("test", names, (phase,), noise_at=noise_at, clipping=clipping)


def sums_of(phase: Phase, rows: np.ndarray, asked: np.ndarray, clipping: Clipping = FLAT) -> np.ndarray:
    """(P, d) the clipped sums of these rows."""
    updates = iter([Updates(asked, rows[asked].astype(np.float32))])
    return clipped_sums(
        plan_of(phase, clipping=clipping), phase, 1.0, updates, asked, rows.shape[1], own_noise
    )[0]


def seeded(*counter: int) -> Seeded:
    return Seeded(run_stream(5, Purpose.NOISE, "r", "p", *(counter or (0,))))


def own_noise(client: int, turn: int) -> Seeded:
    return seeded(9, client, turn)


def two_pools(clients: int = 30, rounds: int = 4) -> Phase:
    return Phase(
        rounds=rounds,
        rate=np.full(clients, 0.5),
        clip=np.linspace(0.5, 1.5, clients),
        noise=np.array([2.0, 5.0]),
        pool=np.arange(clients) % 2,
        weight=np.array([0.1, 0.01]),
    )


def pool_noise(plan: Plan, pool: int, size: int, willing: np.ndarray | None = None) -> np.ndarray:
    """(size,) how far zero updates move the model, where only this pool moves it."""
    (phase,) = plan.phases
    weight = np.zeros(len(phase.noise))
    weight[pool] = 1.0
    alone = replace(plan, phases=(replace(phase, weight=weight),))
    state, clients = State.start(np.zeros(size, np.float32)), Fixed(np.zeros((len(phase.rate), size)))
    return next_state(alone, clients, state, run="r", seed=7, willing=willing).model


@pytest.mark.parametrize("noise_at", ["server", "clients", "secure_sum"])
def test_noise_has_the_planned_std_in_each_pool(noise_at: NoiseAt) -> None:
    """Zero updates leave nothing but noise: its std is measured to 3 %, so 10 % less would fail."""
    phase, size = two_pools(), 40_000
    for pool in (0, 1):
        moved = pool_noise(plan_of(phase, noise_at), pool, size)
        assert moved.std() == pytest.approx(phase.noise[pool], rel=0.03)
        assert abs(moved.mean()) < 5 * phase.noise[pool] / np.sqrt(size)
        assert stats.kstest(moved / phase.noise[pool], "norm").pvalue > 1e-4


def test_noise_and_divisor_are_the_same_whoever_takes_part() -> None:
    """Bit for bit: nobody refuses, some do, all do, and who is there answers what it likes."""
    phase, size = two_pools(), 3000
    plan = plan_of(phase)
    nobody, odd = np.zeros(30, dtype=bool), np.arange(30) % 2 == 1
    for pool in (0, 1):
        whole = pool_noise(plan, pool, size)
        assert whole.any()
        for willing in (nobody, odd, ~odd):
            np.testing.assert_array_equal(pool_noise(plan, pool, size, willing), whole)
    rows = np.full((30, size), 0.01)
    start = State.start(np.zeros(size, np.float32))
    noise, all_in, one_pool = (
        next_state(plan_of(replace(phase, rate=np.ones(30))), Fixed(r), start, run="r", seed=7, willing=w)
        for r, w in ((0 * rows, None), (rows, None), (rows, odd))
    )
    # the second pool's weight, not more
    np.testing.assert_allclose(one_pool.model - noise.model, 15 * 0.01 * 0.01, rtol=1e-2)
    np.testing.assert_allclose(all_in.model - noise.model, 15 * 0.01 * (0.1 + 0.01), rtol=1e-2)


def test_who_refuses_is_not_asked() -> None:
    phase = replace(two_pools(), rate=np.ones(30))
    clients, willing = Fixed(np.zeros((30, 2))), np.arange(30) > 10
    next_state(
        plan_of(phase), clients, State.start(np.zeros(2, np.float32)), run="r", seed=1, willing=willing
    )
    assert clients.asked[0].tolist() == list(range(11, 30))


def own_pools(turns: np.ndarray, noise: np.ndarray, weight: np.ndarray) -> Phase:
    clients = len(turns)
    return Phase(
        rounds=1,
        rate=np.ones(clients),
        clip=np.full(clients, 1.0),
        noise=noise,
        pool=np.arange(clients),
        weight=weight,
        turns=turns,
    )


@pytest.mark.parametrize("noise_at", ["server", "clients", "secure_sum"])
def test_noise_of_own_pools_grows_with_the_root_of_their_turns(noise_at: NoiseAt) -> None:
    """A release for each turn, of which only the weighted sum is made: variances add up."""
    turns, noise, size = np.array([1, 4, 9, 0]), np.array([2.0, 3.0, 0.5, 7.0]), 40_000
    plan = plan_of(own_pools(turns, noise, np.ones(4)), noise_at)
    for pool in range(3):
        assert pool_noise(plan, pool, size).std() == pytest.approx(noise[pool] * turns[pool] ** 0.5, rel=0.03)
    assert not pool_noise(plan, 3, size).any()
    refused = pool_noise(plan, 1, size, np.zeros(4, dtype=bool))
    if noise_at == "clients":  # who refuses draws none, and the server adds what is missing
        assert refused.std() == pytest.approx(6.0, rel=0.03)
    else:
        np.testing.assert_array_equal(refused, pool_noise(plan, 1, size))
    weight = np.array([0.5, -1.0, 2.0, 3.0])
    together = replace(plan, phases=(own_pools(turns, noise, weight),))
    start = State.start(np.zeros(size, np.float32))
    moved = next_state(together, Fixed(np.zeros((4, size))), start, run="r", seed=7).model
    assert moved.std() == pytest.approx(np.sqrt((weight**2 * noise**2 * turns).sum()), rel=0.03)


def test_clients_come_as_often_as_their_public_turns() -> None:
    turns = np.array([1, 3, 0, 2])
    phase = own_pools(turns, np.zeros(4), np.array([1.0, 10.0, 100.0, 1000.0]))
    clients = Fixed(np.full((4, 1), 0.5))
    moved = next_state(plan_of(phase), clients, State.start(np.zeros(1, np.float32)), run="r", seed=7).model
    assert clients.asked[0].tolist() == [0, 1, 1, 1, 3, 3]
    assert clients.turns[0].tolist() == [0, 0, 1, 2, 0, 1]
    assert moved[0] == pytest.approx(0.5 * (1 + 3 * 10 + 2 * 1000))


def test_pools_that_nobody_can_join_release_nothing() -> None:
    for phase in (
        replace(two_pools(), rate=np.where(np.arange(30) % 2 == 1, 0.5, 0.0)),
        replace(two_pools(), rate=np.ones(30), turns=np.arange(30) % 2),
    ):
        assert not pool_noise(plan_of(phase), 0, 1000).any()
        assert pool_noise(plan_of(phase), 1, 1000).std() == pytest.approx(5.0, rel=0.1)
    closed = replace(two_pools(clients=2), pool=np.array([1, 1]))
    assert not pool_noise(plan_of(closed), 0, 1000).any()


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
        set(select(phase, Seeded(run_stream(7, Purpose.COINS, "r", plan.digest(), 1)))[0]) for plan in plans
    ]
    assert chosen[0] != chosen[1]


def test_coins_are_independent_and_of_the_planned_rate() -> None:
    rate = np.array([0.0, 0.02, 0.3, 0.9, 1.0])
    phase = Phase.one_pool(1, rate, np.ones(5), 1.0)
    plan, rounds = plan_of(phase), 20_000
    came = np.zeros((rounds, 5), dtype=bool)
    for number in range(rounds):
        coins = Seeded(run_stream(3, Purpose.COINS, "r", plan.digest(), number))
        came[number, select(phase, coins)[0]] = True
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
    plan = replace(plan_of(replace(phase, weight=np.array([1.0, 0.0]))), randomness="cryptographic")
    start = State.start(np.zeros(size, np.float32))
    one, other = (
        next_state(plan, Fixed(np.zeros((400, size))), start, run="r", seed=None).model for _ in range(2)
    )
    for model in (one, other):
        assert model.std() == pytest.approx(phase.noise[0], rel=0.03)
        assert stats.kstest(model / phase.noise[0], "norm").pvalue > 1e-5
    assert abs(np.corrcoef(one, other)[0, 1]) < 5 / np.sqrt(size)
    coins = [select(phase, Cryptographic())[0] for _ in range(50)]
    assert stats.binomtest(sum(map(len, coins)), 50 * 400, 0.5).pvalue > 1e-5
    assert len({tuple(chosen) for chosen in coins}) == 50


def test_a_clipped_update_is_never_longer_than_its_clip() -> None:
    rng = np.random.default_rng(0)
    change = (rng.standard_normal((200, 3000)) * 10 ** rng.uniform(-3, 3, (200, 1))).astype(np.float32)
    clip = 10 ** rng.uniform(-2, 2, 200)
    whole, factor = finite_and_factor(change, clip, [slice(None)])
    assert whole is change
    kept = (factor.astype(np.float32) * change).astype(np.float64)
    norm = np.linalg.norm(kept, axis=1)
    assert (norm <= clip).all()
    short = np.linalg.norm(change.astype(np.float64), axis=1) < clip * 0.99
    assert short.any() and not short.all()
    np.testing.assert_array_equal(kept[short], change[short])
    np.testing.assert_allclose(norm[~short], np.minimum(clip, norm.max())[~short], rtol=0.011)


def test_updates_that_are_not_finite_count_as_zero() -> None:
    rows = np.ones((6, 4))
    rows[1, 2], rows[2, 0], rows[3] = np.nan, np.inf, 1e30  # whose norm overflows float32, not float64
    phase = Phase.one_pool(1, np.ones(6), np.full(6, 2.0), 0.0)
    total = sums_of(phase, rows, np.arange(6))
    assert np.isfinite(total).all()
    np.testing.assert_allclose(total[0], 4.0, rtol=1e-5)  # four unclipped or clipped rows of ones


def test_the_longest_updates_are_shortened_to_their_clips() -> None:
    """Factors may be below what float32 can hold."""
    clips = 10.0 ** -np.arange(0, 8, 0.25)
    phase = Phase.one_pool(1, np.ones(len(clips)), clips, 0.0)
    for length in (1e37, 3e38):
        rows = np.full((len(clips), 50), length)
        kept = np.array([np.linalg.norm(sums_of(phase, rows, np.array([k]))[0]) for k in range(len(clips))])
        assert (kept <= clips).all() and (kept > 0.999 * clips).all()
        own = own_pools(np.ones(2, np.int64), np.zeros(2), np.array([1.0, 1e-3]))
        assert (np.linalg.norm(sums_of(own, rows[:1].repeat(2, axis=0), np.array([1]))[0]) <= 1e-3).all()


def test_a_long_update_does_not_round_a_short_one_up() -> None:
    """Sums are in float64: what a client adds to a sum with one 2^26 times as long is what it adds alone."""
    phase = Phase.one_pool(1, np.ones(3), np.array([1.0, 3.0, 2.0**26]), 4.0)
    rows = np.array([[0.9], [2.9], [2.0**26]])
    with_it, without = (sums_of(phase, rows, np.array(who))[0, 0] for who in ([0, 1, 2], [1, 2]))
    assert with_it - without == pytest.approx(0.9, abs=1e-7)


def test_an_interrupted_round_without_a_seed_is_not_done_again(tmp_path: Path) -> None:
    """The server may have seen its answers: it counts, and moves nothing."""
    population = Population.of(np.full(4, 9.0), 1e-4, 10)
    plan = replace(
        make_plan("dp_fedavg", population, {"rounds": 3, "rate": 0.5, "clip": 1.0}),
        randomness="cryptographic",
    )
    certificate, clients = certify(plan, population), Fixed(np.ones((4, 2)))
    with Ledger(tmp_path / "ledger", population) as ledger:
        start = State.start(np.zeros(2, np.float32))
        ledger.admit("r", plan, "the operating system")
        ledger.reserve("r", 1)  # and then it was killed
        states = list(train(plan, certificate, clients, ledger, start, run="r", seed=None))
        assert [state.round for state in states] == [1, 2, 3] and len(clients.asked) == 2
        assert not states[0].model.any() and states[1].model.any()
        assert [status for _, status in ledger.states("r")] == ["committed"] * 3
        np.testing.assert_array_equal(ledger.spent(), certificate.spent)


def test_each_layer_is_clipped_to_its_part() -> None:
    rng = np.random.default_rng(0)
    lengths = (5, 40, 1, 300)
    layers = layers_of(lengths, 346)
    assert [(part.start, part.stop) for part in layers] == [(0, 5), (5, 45), (45, 46), (46, 346)]
    change = rng.standard_normal((100, 346)).astype(np.float32)
    for part in layers:  # long and short in every combination
        change[:, part] *= 10 ** rng.uniform(-4, 3, (100, 1))
    clip = 10 ** rng.uniform(-1, 1, 100)
    kept, factor = finite_and_factor(change, clip, layers)
    assert kept is change and factor.shape == (100, 4)
    parts = [factor[:, [i]].astype(np.float32) * change[:, part] for i, part in enumerate(layers)]
    norms = np.stack([np.linalg.norm(part.astype(np.float64), axis=1) for part in parts], axis=1)
    before = np.stack([np.linalg.norm(change[:, p].astype(np.float64), axis=1) for p in layers], axis=1)
    bound = clip[:, None] / 2
    assert (norms <= bound).all() and (np.linalg.norm(norms, axis=1) <= clip).all()
    np.testing.assert_allclose(norms, np.minimum(before, bound), rtol=1e-5)
    assert {tuple(row) for row in before > bound} >= {(True,) * 4, (False,) * 4, (True, False, True, False)}
    phase = Phase.one_pool(1, np.ones(100), clip, 0.0)
    total = sums_of(phase, change, np.arange(100), Clipping(lengths))
    np.testing.assert_allclose(total[0], np.concatenate([part.sum(0) for part in parts]), rtol=1e-3)


def test_what_is_not_finite_in_one_layer_drops_the_whole_update() -> None:
    phase = Phase.one_pool(1, np.ones(3), np.full(3, 2.0), 0.0)
    for bad in (np.nan, np.inf, -np.inf):
        rows = np.full((3, 5), 0.1)
        rows[1, 4] = bad
        total = sums_of(phase, rows, np.arange(3), Clipping((3, 2)))
        np.testing.assert_allclose(total, [[0.2] * 5], rtol=1e-6)
        silent = replace(phase, clip=np.zeros(3))
        np.testing.assert_array_equal(sums_of(silent, rows, np.arange(3)), np.zeros((1, 5)))
        np.testing.assert_array_equal(sums_of(silent, rows, np.arange(3), Clipping((3, 2))), np.zeros((1, 5)))
        open_ = replace(phase, clip=np.full(3, np.inf))
        np.testing.assert_allclose(sums_of(open_, rows, np.arange(3)), [[0.2] * 5], rtol=1e-6)


def test_layers_of_another_model_are_refused() -> None:
    phase = Phase.one_pool(1, np.ones(2), np.ones(2), 0.0)
    with pytest.raises(PlanError, match="layers have 7 parameters, the model has 5"):
        sums_of(phase, np.ones((2, 5)), np.arange(2), Clipping((3, 4)))


def test_a_client_enters_once_and_only_if_asked() -> None:
    phase = Phase.one_pool(1, np.ones(4), np.ones(4), 1.0)
    row = np.ones((1, 2), np.float32)

    def take(updates: list[Updates], *asked: int) -> np.ndarray:
        return clipped_sums(
            plan_of(phase), phase, 1.0, iter(updates), np.array(asked or (1, 2)), 2, own_noise
        )[0]

    twice = [Updates(np.array([1]), row), Updates(np.array([1]), row)]
    with pytest.raises(LedgerError, match="twice"):
        take(twice)
    both = [Updates(np.array([1, 1]), np.repeat(row, 2, axis=0))]
    with pytest.raises(LedgerError, match="twice"):
        take(both)
    for stranger, problem in ((3, "not asked"), (-1, "not exist"), (4, "not exist")):
        with pytest.raises(LedgerError, match=problem):
            take([Updates(np.array([stranger]), row)])
    both_ways = [Updates(np.array([-1, 3]), np.repeat(row, 2, axis=0))]
    with pytest.raises(LedgerError, match="not exist"):
        take(both_ways, 3)
    for who, change in (
        (np.array([1]), np.ones((1, 1), np.float32)),  # would be spread over all coordinates
        (np.array([1]), np.ones((2, 2), np.float32)),
        (np.array([1.0]), row),
        (np.array([False, True, False, False]), np.repeat(row, 4, axis=0)),
    ):
        with pytest.raises(LedgerError, match="must be numbered"):
            take([Updates(who, change)])
    with pytest.raises(LedgerError, match="must be float32, found float16"):
        take([Updates(np.array([1]), row.astype(np.float16))])
    half = Updates(np.array([1], dtype=np.uint64), np.float32(0.5) * row)
    np.testing.assert_allclose(take([half]), np.full((1, 2), 0.5))


def test_a_client_with_turns_enters_as_often_as_it_was_asked() -> None:
    phase = own_pools(np.array([2, 1]), np.zeros(2), np.ones(2))
    row = np.full((1, 2), 0.25, np.float32)

    def take(*who: int) -> np.ndarray:
        parts = [Updates(np.array([client]), row) for client in who]
        return clipped_sums(plan_of(phase), phase, 1.0, iter(parts), np.array([0, 0, 1]), 2, own_noise)[0]

    np.testing.assert_array_equal(take(0, 1, 0), [[0.75, 0.75]])
    for who in ((0, 0, 0), (0, 1, 1)):
        with pytest.raises(LedgerError, match="came twice"):
            take(*who)


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


# clips that follow a quantile


def one_release(
    plan: Plan, rows: np.ndarray, asked: np.ndarray, scale: float = 1.0, round_: int = 0
) -> tuple[np.ndarray, float]:
    (phase,), size = plan.phases, rows.shape[1]
    updates = iter([Updates(asked, rows[asked].astype(np.float32))])
    sums, scale = release(
        plan, phase, size, scale, asked, updates, lambda pool: seeded(round_, pool), own_noise
    )
    assert sums is not None
    return (np.ones(1) if phase.own_pools else phase.weight) @ sums, scale


def quantile_plan(clients: int, quantile: Quantile, noise: float = 0.0) -> Plan:
    phase = Phase.one_pool(1, np.ones(clients), np.ones(clients), noise)
    return plan_of(phase, clipping=Clipping(quantile=quantile))


def share_within(plan: Plan, after: float) -> float:
    """The share of updates within their clips that a scale of 1 was changed to `after` by."""
    quantile = plan.clipping.quantile
    assert quantile is not None
    return quantile.target - math.log(after) / quantile.learning_rate


def test_bits_are_counted_and_an_update_that_is_not_finite_is_not_within() -> None:
    plan = quantile_plan(10, Quantile(0.5, 0.3, noise=1e-9))
    rows = np.full((10, 2), 0.1)
    rows[:3], rows[3], rows[4, 1] = 5.0, np.nan, np.inf
    assert share_within(plan, one_release(plan, rows, np.arange(10))[1]) == pytest.approx(0.5)
    by_layer = replace(plan, clipping=replace(plan.clipping, layers=(1, 1)))
    rows[5, 0] = 0.8  # within as a whole, but not in its layer
    assert share_within(plan, one_release(plan, rows, np.arange(10))[1]) == pytest.approx(0.5)
    assert share_within(by_layer, one_release(by_layer, rows, np.arange(10))[1]) == pytest.approx(0.4)


def test_bits_are_centred_so_that_one_client_moves_their_sum_by_one_half() -> None:
    plan = quantile_plan(10, Quantile(0.5, 0.3, noise=1e-9))
    rows = np.full((10, 2), 0.1)
    rows[0] = 5.0
    some = np.arange(1, 6)  # five of ten came, all within: 5/2 above nothing, over the expected ten
    assert share_within(plan, one_release(plan, rows, some)[1]) == pytest.approx(0.5 + 2.5 / 10)
    more = np.arange(6)  # and one that is not
    assert share_within(plan, one_release(plan, rows, more)[1]) == pytest.approx(0.5 + 2.0 / 10)
    assert share_within(plan, one_release(plan, rows, np.arange(0))[1]) == pytest.approx(0.5)


def test_noise_on_the_bits_has_the_planned_std() -> None:
    """Whatever the pools are; measured to 5 %."""
    plan = quantile_plan(10, Quantile(0.5, 1.0, noise=3.0))
    alone = replace(plan, phases=(own_pools(np.ones(10, np.int64), np.zeros(10), np.ones(10)),))
    for made in (plan, alone):
        scales = [one_release(made, np.zeros((10, 1)), np.arange(0), round_=t)[1] for t in range(3000)]
        expected = made.phases[0].expected.sum()
        noise = (np.array([share_within(made, s) for s in scales]) - 0.5) * expected
        assert noise.std() == pytest.approx(3.0, rel=0.05)
        assert abs(noise.mean()) < 5 * noise.std() / np.sqrt(3000)


@pytest.mark.parametrize("target", [0.3, 0.8])
def test_the_clip_moves_to_the_quantile(target: float) -> None:
    clients = 400
    norms = np.random.default_rng(0).lognormal(2.0, 0.5, clients)
    plan = quantile_plan(clients, Quantile(target, 0.3, noise=2.0))
    scale = 1.0
    for round_ in range(150):
        scale = one_release(plan, norms[:, None], np.arange(clients), scale, round_)[1]
    assert np.mean(norms <= scale) == pytest.approx(target, abs=0.05)
    assert scale > 3  # it had to move


def test_clip_and_noise_scale_together() -> None:
    size = 40_000
    plan = quantile_plan(4, Quantile(0.5, 0.3, noise=1.0), noise=2.0)
    row = np.zeros((4, size))
    row[:, 0] = 1e6
    for scale in (0.25, 1.0, 8.0):
        noise = one_release(plan, 0 * row, np.arange(4), scale)[0] * 4
        moved = one_release(plan, row, np.arange(4), scale)[0] * 4
        assert noise.std() == pytest.approx(2.0 * scale, rel=0.03)
        assert moved[0] - noise[0] == pytest.approx(4 * scale, rel=1e-5)


def test_a_scale_stays_a_number_however_it_is_pushed() -> None:
    rows = np.zeros((2, 1))
    for learning_rate in (1e3, 1e20):
        for target, limit in ((0.9, LARGEST_SCALE), (0.1, 1 / LARGEST_SCALE)):
            plan = quantile_plan(2, Quantile(target, learning_rate, noise=1e-6))
            assert one_release(plan, rows, np.arange(0))[1] == pytest.approx(limit)


def test_the_scale_goes_on_from_round_to_round() -> None:
    plan = replace(
        quantile_plan(4, Quantile(0.5, 0.3, noise=1e-9)),
        phases=(Phase.one_pool(3, np.ones(4), np.ones(4), 0.0),),
    )
    state = State.start(np.zeros(2, np.float32))
    scales = []
    for _ in range(3):
        state = next_state(plan, Fixed(np.zeros((4, 2))), state, run="r", seed=1)
        scales.append(state.scale)
    np.testing.assert_allclose(scales, np.exp(-0.15 * np.arange(1, 4)), rtol=1e-6)


# sums on a grid


def test_sums_on_a_grid_are_whole_steps_and_their_noise_is_the_rounded_gaussian() -> None:
    step, size, clients = 2.0**-3, 40_000, 30
    phase = replace(two_pools(clients), rate=np.ones(clients), noise=np.array([0.05, 3.0]))
    plan = plan_of(phase).on_grid(step, size)
    rows = np.random.default_rng(0).standard_normal((clients, size)) / np.sqrt(size)
    start = State.start(np.zeros(size, np.float32))
    for pool, std in enumerate(plan.phases[0].noise):
        alone = replace(plan, phases=(replace(plan.phases[0], weight=np.eye(2)[pool]),))
        for r in (rows, 0 * rows):
            moved = next_state(alone, Fixed(r), start, run="r", seed=7).model.astype(np.float64) / step
            assert (moved == np.rint(moved)).all()
        edges = (np.arange(-2, 3) + 0.5) * step / std
        expected = np.diff(stats.norm.cdf(np.concatenate([[-np.inf], edges, [np.inf]])))
        seen = np.bincount(np.clip(moved, -2, 3).astype(int) + 2, minlength=6)
        assert (expected * size > 5).all()
        assert stats.chisquare(seen, expected * size).pvalue > 1e-4
        assert (moved * step).std() == pytest.approx(np.sqrt(std**2 + step**2 / 12), rel=0.03)


def test_updates_are_rounded_to_the_grid_one_by_one_and_summed_exactly() -> None:
    step = 2.0**-2
    phase = Phase.one_pool(1, np.ones(3), np.full(3, 2.0), 0.0)
    plan = plan_of(phase).on_grid(step, 3)
    rows = np.array([[0.10, 0.13, -0.30], [0.10, 0.60, 40.0], [np.nan, 1.0, 1.0]], np.float32)
    sums, *_ = clipped_sums(plan, phase, 1.0, iter([Updates(np.arange(3), rows)]), np.arange(3), 3, own_noise)
    np.testing.assert_array_equal(sums, [[0.0, 0.25, -0.25 + 2.0]])
    one, *_ = clipped_sums(
        plan, phase, 1.0, iter([Updates(np.arange(1), rows[:1])]), np.arange(1), 3, own_noise
    )
    assert np.linalg.norm(sums - one) <= plan.sensitivity(phase)[1]


def test_a_grid_of_another_model_is_refused() -> None:
    """Its clients were charged for the rounding of fewer coordinates."""
    phase = Phase.one_pool(1, np.ones(2), np.ones(2), 1.0)
    plan, clients = plan_of(phase).on_grid(2.0**-4, 3), Fixed(np.zeros((2, 4)))
    with pytest.raises(PlanError, match="grid is of 3 parameters, the model has 4"):
        next_state(plan, clients, State.start(np.zeros(4, np.float32)), run="r", seed=1)
    assert clients.asked == []


# steps of plans for records


def test_the_noise_of_a_step_is_there_even_without_a_record() -> None:
    size = 40_000
    alone = noisy_sum(np.zeros(size), 3.0, seeded())
    assert alone.std() == pytest.approx(3.0, rel=0.03)
    total = np.zeros(size)
    total[0] = 1.0
    moved = noisy_sum(total, 3.0, seeded()) - alone
    assert moved[0] == pytest.approx(1.0, rel=1e-5) and not moved[1:].any()


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


def test_randomness_other_than_the_plan_says_is_refused(tmp_path: Path) -> None:
    population, seeded_plan = small()
    clients, start = Fixed(np.ones((4, 3))), State.start(np.zeros(3, np.float32))
    secret = replace(seeded_plan, randomness="cryptographic")
    with Ledger(tmp_path / "ledger.sqlite", population) as ledger:
        for plan, seed in ((seeded_plan, None), (secret, 1), (secret, 0)):
            with pytest.raises(PlanError, match=f"randomness is {plan.randomness}"):
                next(train(plan, certify(plan, population), clients, ledger, start, run="a", seed=seed))
        assert clients.asked == [] and ledger.states("a") == []
        rounds = train(secret, certify(secret, population), clients, ledger, start, run="a", seed=None)
        assert len(list(rounds)) == 6


def test_a_certificate_of_another_population_is_refused(tmp_path: Path) -> None:
    population, plan = small()
    other = replace(population, epsilon=population.epsilon * 2)
    start = State.start(np.zeros(3, np.float32))
    ledger = Ledger(tmp_path / "ledger.sqlite", population)
    with ledger, pytest.raises(PlanError, match="another population"):
        next(train(plan, certify(plan, other), Fixed(np.ones((4, 3))), ledger, start, run="a", seed=1))


def test_a_resumed_run_commits_what_was_kept_and_who_lowered_its_budget_is_not_asked(tmp_path: Path) -> None:
    population, plan = small()
    certificate, clients = certify(plan, population), Fixed(np.ones((4, 3)))
    start = State.start(np.zeros(3, np.float32))
    with Ledger(tmp_path / "ledger.sqlite", population) as ledger:
        rounds = train(plan, certificate, clients, ledger, start, run="a", seed=1)
        next(rounds)
        kept = next(rounds)
        assert ledger.states("a") == [(1, "committed"), (2, "reserved")]
        ledger.change_budget(population.client[0], -2.0)
        rounds = train(plan, certificate, clients, ledger, kept, run="a", seed=1)
        assert [state.round for state in rounds] == [3, 4, 5, 6]
        assert ledger.states("a") == [(t, "committed") for t in range(1, 7)]
    assert not any(0 in asked for asked in clients.asked[2:])
    assert any(1 in asked for asked in clients.asked[2:])


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

    Canaries that always push their whole clip, each along an axis of its own, so that each is a trial; those
    of even number are there. The attacker adds up the likelihood ratios of all rounds. The lower bound on
    epsilon must stay below the certified epsilon, and above a third of it: an attack that finds nothing
    would prove nothing.
    """
    rounds, rate, sigma, delta, clients, runs = 4, 0.5, 1.0, 1e-2, 1000, 8
    plan = plan_of(Phase.one_pool(rounds, np.full(clients, rate), np.ones(clients), sigma))
    certified = float(certify(plan, Population.of(np.full(clients, 100.0), delta)).spent[0])
    there = np.arange(clients) % 2 == 0
    canaries = Fixed(np.diag(2.0 * there))
    scores = np.zeros((runs, clients))
    for seed in range(runs):
        state = State.start(np.zeros(clients, np.float32))
        for _ in range(rounds):
            new = next_state(plan, canaries, state, run="r", seed=seed)
            seen = (new.model - state.model).astype(float) * rate * clients  # the divisor is public
            scores[seed] += np.log1p(-rate + rate * np.exp((2 * seen - 1) / (2 * sigma**2)))
            state = new
    found = lower_bound(scores[:, there].ravel(), scores[:, ~there].ravel(), delta)
    assert certified / 3 < found < certified


# rules that read, fixed numbers, pools of single clients


class Readable(Fixed):
    """Clients with statistics; they remember who was asked for one."""

    def __init__(self, rows: np.ndarray, statistic: np.ndarray) -> None:
        super().__init__(rows)
        self.statistic = statistic
        self.read: list[np.ndarray] = []

    def statistics(self, order: Order, reading: Reading) -> Statistics:
        self.read.append(order.clients)
        return Statistics(np.arange(len(order.clients)), self.statistic[order.clients])


def reading_plan(read: np.ndarray, rule: Rule, choose: int, bound: float = 2.0) -> Plan:
    clients = len(read)
    phase = replace(
        own_pools(np.ones(clients, np.int64), np.ones(clients), np.ones(clients)),
        batch=np.full(clients, 0.5),
        read=read,
    )
    names = tuple(f"c{i}" for i in range(clients))
    reading = Reading(rule, choose, bound)
    return Plan("test", names, (phase,), noise_at="steps", promise="server", reading=reading)


@pytest.mark.parametrize(
    "rule, numbers", [("largest_loss", 1), ("norm", 1), ("class_balance", 5), ("diversity", 2)]
)
def test_statistics_get_the_noise_that_is_paid_for(
    rule: Rule, numbers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measured to 5 %, on what the rule is given: divided by the bound and the public number of records."""
    clients, size, read = 3000 // numbers, 10, 1.5
    plan = reading_plan(np.full(clients, read), rule, choose=3)
    given: list[np.ndarray] = []
    pick = Reading.pick

    def spy(self: Reading, statistic: np.ndarray, coins: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        given.append(statistic)
        return pick(self, statistic, coins)

    monkeypatch.setattr(Reading, "pick", spy)
    stub = Readable(np.zeros((clients, 2)), np.full((clients, numbers), 7.0))
    sizes = np.full(clients, size)
    next_state(plan, stub, State.start(np.zeros(2, np.float32)), run="r", seed=1, size=sizes)
    noise = given[0] * 2.0 * size - 7.0
    assert plan.reading is not None
    assert noise.std() == pytest.approx(read * plan.reading.sensitivity, rel=0.05)
    assert abs(noise.mean()) < 5 * noise.std() / np.sqrt(noise.size)
    assert len(stub.asked[0]) < clients  # and only those picked train


def test_statistics_that_are_not_finite_count_as_nothing_and_nobody_asked_is_no_problem() -> None:
    plan = reading_plan(np.zeros(4), "norm", choose=2)
    stub = Readable(np.ones((4, 2)), np.array([[np.nan], [np.inf], [3.0], [-np.inf]]))
    state = next_state(plan, stub, State.start(np.zeros(2, np.float32)), run="r", seed=1)
    assert np.isfinite(state.model).all() and 2 in stub.asked[0]
    nobody = np.zeros(4, dtype=bool)
    none = next_state(plan, stub, State.start(np.zeros(2, np.float32)), run="r", seed=1, willing=nobody)
    assert not none.model.any()
    stub.statistic = np.ones(4)
    with pytest.raises(LedgerError, match="statistics of 4 clients"):
        next_state(plan, stub, State.start(np.zeros(2, np.float32)), run="r", seed=1)


def test_plans_that_read_raw_data_run_only_where_that_is_accepted(tmp_path: Path) -> None:
    population = Population.of([2.0] * 4, 1e-4)
    plan = make_plan("aocs", population, {"rounds": 1, "rate": 0.5, "clip": 1.0})
    certificate = certify(plan, population)
    stub = Readable(np.zeros((4, 2)), np.ones((4, 1)))
    state = State.start(np.zeros(2, np.float32))
    with Ledger(tmp_path / "ledger", population) as ledger:
        with pytest.raises(BudgetError, match="no privacy"):
            next(train(plan, certificate, stub, ledger, state, run="r", seed=1))
        assert stub.read == stub.asked == []
        next(train(plan, certificate, stub, ledger, state, run="r", seed=1, accept_no_privacy=True))
        assert len(stub.read) == 1


def fixed_phase(rate: np.ndarray, clip: np.ndarray) -> Phase:
    return Phase(4, rate, clip, np.ones(2), np.array([0] * 10 + [1] * 4), np.ones(2))


def test_a_fixed_number_of_each_pool_is_drawn_each_as_likely() -> None:
    phase = fixed_phase(np.array([0.3] * 10 + [0.5] * 4), np.ones(14))
    times = np.zeros(14)
    for t in range(2000):
        asked, turn = select(phase, seeded(t), fixed_size=True)
        assert np.bincount(phase.pool[asked]).tolist() == [3, 2]
        assert len(set(asked.tolist())) == 5 and not turn.any()
        times[asked] += 1
    np.testing.assert_allclose(times / 2000, phase.rate, atol=5 * np.sqrt(0.25 / 2000))


def test_a_fixed_number_that_is_not_what_is_charged_is_refused() -> None:
    """Rounded up, clients would come more often than they are charged for; a larger clip would move more."""
    rate, clip = np.array([0.3] * 10 + [0.5] * 4), np.ones(14)
    for wrong in (
        fixed_phase(np.where(rate == 0.3, 0.26, rate), clip),
        fixed_phase(np.where(np.arange(14) == 0, 0.2, np.where(np.arange(14) == 1, 0.4, rate)), clip),
        fixed_phase(rate, np.where(np.arange(14) == 3, 5.0, clip)),
    ):
        with pytest.raises(PlanError, match="sampling fixed_size needs"):
            replace(plan_of(wrong), sampling="fixed_size", accounting="paper")


@pytest.mark.parametrize("combine", [Combine("project", memory=2), Combine("top_k", keep=(0.5, 0.5, 0.5))])
def test_pools_of_single_clients_are_kept_apart_where_each_is_treated_on_its_own(combine: Combine) -> None:
    phase = Phase(2, np.ones(3), np.full(3, 9.0), np.zeros(3), np.arange(3), np.array([1.0, 2.0, 4.0]))
    plan = replace(plan_of(phase), combine=combine)
    rows = np.array([[1.0, 0.0, 3.0, 0.0], [0.0, 2.0, 1.0, 0.0], [0.0, 0.0, 1.0, 1.0]])
    moved = next_state(plan, Fixed(rows), State.start(np.zeros(4, np.float32)), run="r", seed=1)
    kept = {"project": [0, 0, 4.0 + 1.5 + 1.0, 4.0 + 1.5 + 1.0], "top_k": [1.0, 4.0, 9.0, 4.0]}
    np.testing.assert_allclose(moved.model, kept[combine.rule], rtol=1e-5)
    np.testing.assert_allclose(moved.step, phase.weight @ rows, rtol=1e-6)  # nothing left out


# what clients hand out


def test_shares_of_the_noise_are_together_the_noise_of_their_pool() -> None:
    phase = Phase(
        rounds=1,
        rate=np.array([0.5, 0.0, 1.0, 0.2, 0.3]),
        clip=np.ones(5),
        noise=np.array([3.0, 4.0]),
        pool=np.array([0, 0, 0, 1, 1]),
        weight=np.ones(2),
    )
    own = plan_of(phase, "clients").own_noise(phase)
    taking = phase.expected > 0
    np.testing.assert_allclose(np.bincount(phase.pool[taking], own[taking] ** 2), phase.noise**2)
    np.testing.assert_array_equal(own, plan_of(phase, "secure_sum").own_noise(phase))
    assert not plan_of(phase).own_noise(phase).any()


def test_what_is_handed_out_is_within_its_clip_with_noise_of_its_own() -> None:
    rng, size = np.random.default_rng(2), 20_000
    rows = (rng.standard_normal((4, size)) * [[1e-6], [1.0], [1e9], [1.0]]).astype(np.float32)
    rows[3, 7] = np.inf
    clip, std, layers = np.array([0.5, 0.5, 0.5, 0.5]), np.array([0.0, 0.0, 0.0, 2.0]), [slice(0, size)]
    found = hand_out(rows, clip, layers, std, [seeded(i) for i in range(4)])
    assert found.dtype == np.float32 and np.isfinite(found).all()
    assert (np.linalg.norm(found[:3].astype(np.float64), axis=1) <= 0.5).all()
    np.testing.assert_array_equal(found[0], rows[0])
    assert np.linalg.norm(found[2]) == pytest.approx(0.5, rel=1e-5)
    assert found[3].std() == pytest.approx(2.0, rel=0.03)  # the update counts as zero, its noise stays
    again = hand_out(rows, clip, layers, std + 1.0, [seeded(i) for i in range(4)])
    for i in range(4):
        noise = seeded(i).gaussian(size, float(std[i] + 1.0))
        clean = found[i] if std[i] == 0 else 0.0
        np.testing.assert_allclose(again[i], clean + noise, atol=1e-5)


def test_a_statistic_that_is_not_finite_counts_as_zero() -> None:
    value = np.array([1.0, np.nan, np.inf])
    assert hand_out_statistic(value, 0.0, seeded()).tolist() == [1.0, 0.0, 0.0]
    moved = hand_out_statistic(value, 3.0, seeded()) - seeded().gaussian(3, 3.0)
    np.testing.assert_allclose(moved, [1.0, 0.0, 0.0])


def test_a_statistic_from_nobody_who_was_asked_is_refused() -> None:
    plan = reading_plan(np.ones(4), "norm", 2)
    for place in ([0, 0], [4], [-1]):

        class Odd(Readable):
            def statistics(self, order: Order, reading: Reading, place: list[int] = place) -> Statistics:
                return Statistics(np.array(place), np.ones((len(place), 1)))

        with pytest.raises(LedgerError, match="was not asked for, or came twice"):
            state = State.start(np.zeros(3, np.float32))
            next_state(plan, Odd(np.zeros((4, 3)), np.ones((4, 1))), state, run="r", seed=0)


def test_equal_coins_are_drawn_again_where_a_fixed_number_is_sampled() -> None:
    """A tie would favour the client that comes first."""

    class Ties(Seeded):
        coins = iter([np.zeros(4), np.array([0.5, 0.5, 0.1, 0.2]), np.array([0.4, 0.3, 0.2, 0.1])])

        def uniform(self, size: int) -> np.ndarray:
            return next(self.coins)

    phase = Phase.one_pool(1, np.full(4, 0.5), np.ones(4), 1.0)
    asked, _ = select(phase, Ties(np.random.default_rng()), fixed_size=True)
    assert asked.tolist() == [2, 3]


def test_rates_below_the_resolution_of_coins_are_never_drawn() -> None:
    """A coin of 0 has a chance of 2^-53, which is more than such a rate is charged for."""

    class Zeros(Seeded):
        def uniform(self, size: int) -> np.ndarray:
            return np.zeros(size)

    phase = Phase.one_pool(1, np.array([1e-300, 2.0**-54, 2.0**-53, 1.0]), np.ones(4), 1.0)
    assert select(phase, Zeros(np.random.default_rng()))[0].tolist() == [2, 3]
