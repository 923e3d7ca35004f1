"""What each adversary sees of a plan, by hand: noise that it knows does not count, nor coins that it sees."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

from discretion.accounting import Pld, Renyi, certify, gaussian
from discretion.errors import PlanError
from discretion.plan.grid import Grid
from discretion.plan.phase import Clipping, Phase, Quantile
from discretion.plan.plan import ADVERSARIES, Adversary, NoiseAt, Plan
from discretion.plan.population import Population
from discretion.plan.selection_rules import Reading
from discretion.plan.steps import Steps
from discretion.training.clip import finite_and_factor, layers_of

# three clients share pool 0 (a fourth never takes part), one has pool 1 to itself
RATE = np.array([0.5, 0.5, 0.25, 0.0, 0.5])
SHARED = Phase(
    rounds=4,
    rate=RATE,
    clip=np.array([1.0, 2.0, 1.0, 1.0, 4.0]),
    noise=np.array([6.0, 8.0]),
    pool=np.array([0, 0, 0, 0, 1]),
    weight=np.ones(2),
)
WHOLE = np.array([6.0, 3.0, 6.0, 6.0, 2.0])  # noise over clip
SEEN = np.array([1.0, 1.0, 1.0, 0.0, 1.0])
ALONE = np.array([0, 0, 0, 0, 1], dtype=bool)


def plan_of(*phases: Phase, **more: Any) -> Plan:
    return Plan("made", tuple(f"c{i}" for i in range(len(phases[0].rate))), phases, **more)


def kept(share: float) -> np.ndarray:
    """Multipliers where this share of pool 0's variance is not known; whoever has a pool alone keeps all."""
    return np.asarray(WHOLE * np.where(ALONE, 1.0, math.sqrt(share)))


@pytest.mark.parametrize(
    ("noise_at", "adversary", "colluding", "rate", "multiplier"),
    [
        ("server", "public", 0, RATE, WHOLE),
        ("server", "public", 9, RATE, WHOLE),
        ("server", "clients", 0, RATE, WHOLE),
        ("server", "clients", 9, RATE, WHOLE),  # clients have no share of it
        ("server", "server", 0, RATE, np.zeros(5)),
        ("server", "server", 9, RATE, np.zeros(5)),
        ("clients", "public", 9, RATE, WHOLE),
        ("clients", "clients", 0, RATE, WHOLE),
        ("clients", "clients", 1, RATE, kept(2 / 3)),
        ("clients", "clients", 2, RATE, kept(1 / 3)),
        ("clients", "clients", 9, RATE, kept(1 / 3)),  # a client's own share stays
        ("clients", "server", 0, SEEN, kept(1 / 3)),
        ("clients", "server", 9, SEEN, kept(1 / 3)),
        ("secure_sum", "public", 9, RATE, WHOLE),
        ("secure_sum", "clients", 1, RATE, kept(2 / 3)),
        ("secure_sum", "server", 0, RATE, WHOLE),
        ("secure_sum", "server", 1, RATE, kept(2 / 3)),
        ("secure_sum", "server", 9, RATE, kept(1 / 3)),
    ],
)
def test_views_by_hand(
    noise_at: NoiseAt, adversary: Adversary, colluding: int, rate: np.ndarray, multiplier: np.ndarray
) -> None:
    summed: Adversary = "server" if noise_at == "secure_sum" else "clients"
    plan = plan_of(SHARED, noise_at=noise_at, promise=summed, colluding=colluding)
    seen = plan.view(SHARED, adversary)
    np.testing.assert_array_equal(seen[0], rate)
    np.testing.assert_allclose(seen[1], multiplier, rtol=1e-15)


def test_holders_are_those_who_may_take_part() -> None:
    assert SHARED.holders.tolist() == [3, 3, 3, 3, 1]
    turns = replace(SHARED, rate=np.ones(5), turns=np.array([1, 0, 0, 0, 0]))
    assert turns.holders.tolist() == [1] * 5
    assert turns.pool_releases.tolist() == [1, 0]
    everyone = replace(SHARED, rate=np.ones(5))
    assert everyone.holders.tolist() == [4, 4, 4, 4, 1]


def test_an_unknown_adversary_is_refused() -> None:
    with pytest.raises(
        PlanError, match="found adversary 'everyone', expected one of public, clients, server"
    ):
        plan_of(SHARED).view(SHARED, "everyone")  # type: ignore[arg-type]


@pytest.mark.parametrize("noise_at", ["server", "clients", "secure_sum"])
@pytest.mark.parametrize("promise", ADVERSARIES)
def test_charged_is_as_bad_as_any_view_that_is_promised(noise_at: NoiseAt, promise: Adversary) -> None:
    plan = plan_of(SHARED, noise_at=noise_at, promise=promise, colluding=1)
    rate, multiplier = plan.release(SHARED)
    promised = ADVERSARIES[: ADVERSARIES.index(promise) + 1]
    views = [plan.view(SHARED, who) for who in promised]
    np.testing.assert_array_equal(rate, np.max([view[0] for view in views], axis=0))
    np.testing.assert_array_equal(multiplier, np.min([view[1] for view in views], axis=0))
    np.testing.assert_array_equal(plan.steps().rate[0], rate)
    np.testing.assert_array_equal(plan.steps().multiplier[0], multiplier)


@pytest.mark.parametrize("noise_at", ["server", "clients", "secure_sum"])
def test_epsilon_never_falls_with_a_stronger_adversary_or_more_colluding(noise_at: NoiseAt) -> None:
    population = Population.of([1e4] * 5)
    before: dict[Adversary, np.ndarray] = {who: np.zeros(5) for who in ADVERSARIES}
    for colluding in range(4):
        summed: Adversary = "server" if noise_at == "secure_sum" else "clients"
        plan = plan_of(SHARED, noise_at=noise_at, promise=summed, colluding=colluding)
        certificate = certify(plan, population)
        public, clients, server = (certificate.epsilon[who] for who in ADVERSARIES)
        assert (public <= clients).all() and (clients <= server).all()
        np.testing.assert_array_equal(certificate.spent, certificate.epsilon[summed])
        for who in ADVERSARIES:
            assert (certificate.epsilon[who] >= before[who]).all()
            before[who] = certificate.epsilon[who]
        assert public[3] == clients[3] == 0  # never takes part
        assert server[3] == 0
        assert np.isinf(server[SEEN > 0]).all() == (noise_at == "server")
        if noise_at == "secure_sum":
            np.testing.assert_array_equal(server, clients)
    grew = before["clients"] > certify(plan_of(SHARED), population).spent
    assert grew.tolist() == ([False] * 5 if noise_at == "server" else [True, True, True, False, False])


def own(**more: Any) -> Phase:
    """Two clients, each with a pool of its own."""
    return Phase(
        **{
            "rounds": 5,
            "rate": np.ones(2),
            "clip": np.array([1.0, 2.0]),
            "noise": np.array([3.0, 4.0]),
            "pool": np.arange(2),
            "weight": np.ones(2),
            **more,
        }
    )


@pytest.mark.parametrize("colluding", [0, 1, 7])
@pytest.mark.parametrize("noise_at", ["clients", "secure_sum"])
def test_local_privacy_is_one_holder(colluding: int, noise_at: NoiseAt) -> None:
    """Who noises its own update is safe from everybody alike, and nobody else's share helps or hurts."""
    phase = own()
    plan = plan_of(phase, noise_at=noise_at, promise="server", colluding=colluding)
    for who in ADVERSARIES:
        rate, multiplier = plan.view(phase, who)
        assert rate.tolist() == [1.0, 1.0] and multiplier.tolist() == [3.0, 2.0]
    alone = Phase.one_pool(5, np.ones(1), np.ones(1), 3.0)
    single = plan_of(alone, noise_at=noise_at, promise="server", colluding=colluding).steps()
    delta = np.full(1, 1e-5)
    assert Pld().epsilon(plan.steps().of(np.array([0])), delta) == Pld().epsilon(single, delta)
    assert Pld().epsilon(single, delta)[0] == pytest.approx(
        float(gaussian.epsilon_of(np.array(math.sqrt(5) / 3), np.array(1e-5)))
    )


def test_local_privacy_with_coins_that_the_server_sees() -> None:
    phase = own(rate=np.array([0.1, 0.0]))
    rate, multiplier = plan_of(phase, noise_at="clients").view(phase, "server")
    assert rate.tolist() == [1.0, 0.0] and multiplier.tolist() == [3.0, 2.0]


# the figures of the paper on time-adaptive spending: 100 clients, rate 0.9, 25 rounds, delta 1e-5


def hundred(sigma: float, **more: Any) -> Plan:
    return plan_of(Phase.one_pool(25, np.full(100, 0.9), np.ones(100), sigma), noise_at="clients", **more)


def first(plan: Plan, who: Adversary) -> Steps:
    return plan.steps(against=who).of(np.array([0]))


@pytest.mark.parametrize(("accountant", "sigma"), [(Renyi(), 2.425), (Pld(), 2.286)])
def test_colluding_clients_take_their_shares_off(accountant: Renyi | Pld, sigma: float) -> None:
    delta = np.full(1, 1e-5)
    found = [
        float(accountant.epsilon(first(hundred(sigma, colluding=k), "clients"), delta)[0])
        for k in (0, 1, 10, 50)
    ]
    np.testing.assert_allclose(found, [10.0, 10.06, 10.67, 15.5], rtol=0.006)


@pytest.mark.parametrize(
    ("sigma", "mean", "mixed"), [(2.425, 274, 288), (1.409, 709, 758), (1.045, 1223, 1318)]
)
def test_the_server_sees_a_tenth_of_the_noise_and_who_took_part(
    sigma: float, mean: float, mixed: float
) -> None:
    """For budgets of 10, 20 and 30; at the mean number of turns, over all numbers, and as we charge it."""
    steps = first(hundred(sigma), "server")
    assert steps.rate.tolist() == [[1.0]] and steps.count.tolist() == [[25]]
    shift = 1 / steps.multiplier[0, 0]
    assert shift == pytest.approx(10 / sigma)
    at_mean = gaussian.epsilon_of(np.array(math.sqrt(0.9 * 25) * shift), np.array(1e-5))
    assert float(at_mean) == pytest.approx(mean, rel=0.002)
    turns = np.arange(26)
    chance = stats.binom.pmf(turns, 25, 0.9)

    def excess(epsilon: float) -> float:
        return float(chance @ gaussian.delta_of(np.full(26, epsilon), np.sqrt(turns) * shift)) - 1e-5

    exact = optimize.brentq(excess, 1, 5000)
    assert exact == pytest.approx(mixed, rel=0.002)
    charged = Pld().epsilon(steps, np.full(1, 1e-5))[0]
    assert exact < charged < 1.05 * exact


# how far one unit can move a sum


def test_another_unit_in_its_place_moves_the_sum_twice_as_far() -> None:
    phase = replace(SHARED, rate=SEEN)
    one, other = plan_of(phase), plan_of(phase, adjacency="replace")
    np.testing.assert_array_equal(one.sensitivity(phase), phase.clip)
    np.testing.assert_array_equal(other.sensitivity(phase), 2 * phase.clip)
    for who in ADVERSARIES:
        np.testing.assert_array_equal(2 * other.view(phase, who)[1], one.view(phase, who)[1])
    assert other.steps().adjacency == "replace"


def test_secret_coins_where_units_are_replaced_are_refused() -> None:
    plan = plan_of(SHARED, adjacency="replace")
    with pytest.raises(PlanError, match="secret coin.*use add_remove"):
        plan.steps()
    with pytest.raises(PlanError, match="secret coin.*use add_remove"):
        certify(plan, Population.of([1.0] * 5))
    batches = plan_of(own(batch=np.array([0.1, 1.0])), noise_at="steps", adjacency="replace")
    with pytest.raises(PlanError, match="secret coin"):
        batches.steps()


def test_a_grid_adds_to_what_a_client_can_move() -> None:
    plan = plan_of(SHARED, grid=Grid(2.0**-4, 64))
    more = SHARED.clip + math.sqrt(64) / 2 * 2.0**-4  # half a step for each coordinate
    np.testing.assert_allclose(plan.sensitivity(SHARED), more, rtol=1e-11)
    assert (plan.sensitivity(SHARED) >= more).all()
    np.testing.assert_allclose(plan.view(SHARED, "public")[1], SHARED.noise[SHARED.pool] / more, rtol=1e-11)
    replaced_units = plan_of(SHARED, grid=Grid(2.0**-4, 64), adjacency="replace")
    np.testing.assert_allclose(replaced_units.sensitivity(SHARED), 2 * more, rtol=1e-11)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(1e-3, 100.0), min_size=2, max_size=5),
    st.floats(1e-3, 1e3),
    st.integers(-12, 2),
    st.integers(1, 10**6),
)
def test_putting_a_plan_on_a_grid_costs_noise_and_never_privacy(
    clip: list[float], noise: float, power: int, size: int
) -> None:
    phase = Phase.one_pool(3, np.full(len(clip), 0.5), np.array(clip), noise)
    plan = plan_of(phase)
    there = plan.on_grid(2.0**power, size)
    assert there.grid == Grid(2.0**power, size)
    before, after = plan.view(phase, "public")[1], there.view(there.phases[0], "public")[1]
    assert (after >= before).all()
    assert (after / before).min() == pytest.approx(1.0)  # no more noise than it takes
    assert there.phases[0].noise[0] >= noise


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(0.1, 10.0), min_size=2, max_size=6),
    st.floats(1.0, 1e3),
    st.integers(-12, -7),
    st.integers(1, 1000),
    st.sampled_from(["clients", "secure_sum"]),
    st.sampled_from([0.0, 0.3, 0.5]),
    st.integers(0, 4),
)
def test_shares_on_a_grid_cost_noise_and_never_privacy(
    clip: list[float], noise: float, power: int, size: int, noise_at: NoiseAt, dropout: float, colluding: int
) -> None:
    phase = Phase.one_pool(3, np.full(len(clip), 0.5), np.array(clip), noise)
    dropout = dropout if noise_at == "secure_sum" else 0.0
    plan = plan_of(phase, noise_at=noise_at, dropout=dropout, colluding=colluding)
    there = plan.on_grid(2.0**power, size)
    (on_grid,) = there.phases
    for who in ADVERSARIES:
        before, after = plan.view(phase, who), there.view(on_grid, who)
        np.testing.assert_array_equal(before[0], after[0])
        assert (after[1] >= before[1]).all()
    share = there.own_noise(on_grid)[0]
    unknown = math.sqrt(there.shares(on_grid)[0]) * share  # as the public sees them
    expected = math.sqrt(unknown**2 - (8 * 2.0**power) ** 2) / there.sensitivity(on_grid)
    np.testing.assert_allclose(there.view(on_grid, "public")[1], expected, rtol=1e-12)
    single = math.sqrt(share**2 - (8 * 2.0**power) ** 2) / there.sensitivity(on_grid)
    np.testing.assert_allclose(there.view(on_grid, "server")[1], single, rtol=1e-9)


def test_a_pool_without_noise_gets_none_on_a_grid() -> None:
    phase = replace(SHARED, noise=np.array([6.0, 0.0]))
    there = plan_of(phase, noise_at="secure_sum").on_grid(2.0**-6, 9)
    assert there.phases[0].noise[1] == 0
    assert there.view(there.phases[0], "public")[1][4] == 0


def test_on_a_grid_whoever_cannot_move_the_sum_still_cannot() -> None:
    phase = Phase.one_pool(1, np.ones(2), np.zeros(2), 1.0)
    there = plan_of(phase).on_grid(0.25, 10)
    assert np.isinf(there.view(there.phases[0], "public")[1]).all()
    assert there.phases[0].noise[0] == pytest.approx(1.0)


@pytest.mark.parametrize(("wanted", "bits"), [(1.0, 10.0), (2.5, 5.0), (0.7, 0.36)])
def test_the_bit_of_a_quantile_is_charged(wanted: float, bits: float) -> None:
    """Andrew et al. 2021: an update's noise of (wanted^-2 - (2 bits)^-2)^(-1/2) leaves `wanted` in all."""
    noise = (wanted**-2 - (2 * bits) ** -2) ** -0.5
    clipping = Clipping((), Quantile(noise=bits))
    phase = Phase.one_pool(3, np.full(3, 0.5), np.array([1.0, 2.0, 0.0]), noise)
    rate, multiplier = plan_of(phase, clipping=clipping).view(phase, "public")
    assert rate.tolist() == [0.5] * 3
    assert multiplier[0] == pytest.approx(wanted)
    assert multiplier[1] == pytest.approx((4 / noise**2 + (2 * bits) ** -2) ** -0.5)
    assert multiplier[2] == pytest.approx(2 * bits)  # its update is nothing, but its bit is not
    assert (plan_of(phase).view(phase, "public")[1] > multiplier).all()
    always = replace(phase, rate=np.ones(3))
    halved = plan_of(always, clipping=clipping, adjacency="replace").view(always, "public")[1]
    np.testing.assert_allclose(halved, multiplier / 2)  # from +1/2 to -1/2


def test_the_server_that_draws_the_noise_sees_the_bits_too() -> None:
    phase = Phase.one_pool(3, np.full(2, 0.5), np.array([1.0, 0.0]), 1.0)
    plan = plan_of(phase, clipping=Clipping((), Quantile()))
    assert plan.view(phase, "server")[1].tolist() == [0.0, 0.0]
    assert plan_of(phase).view(phase, "server")[1].tolist() == [0.0, math.inf]


def test_layers_change_nothing_that_is_charged() -> None:
    """Each of L layers is clipped to c / sqrt(L). Were it c, 8 layers would cost four times that."""
    layers = (3, 1, 20, 8)
    plan, flat = plan_of(SHARED, clipping=Clipping(layers)), plan_of(SHARED)
    np.testing.assert_array_equal(plan.sensitivity(SHARED), flat.sensitivity(SHARED))
    clip = np.array([0.5, 2.0])
    change = np.random.default_rng(0).normal(size=(2, 32)).astype(np.float32) * 100
    slices = layers_of(layers, 32)
    finite, factor = finite_and_factor(change, clip, slices)
    parts = [finite[:, columns] * factor[:, [i]] for i, columns in enumerate(slices)]
    for part in parts:
        np.testing.assert_allclose(np.linalg.norm(part, axis=1), clip / 2, rtol=1e-5)
    whole = np.linalg.norm(np.concatenate(parts, axis=1), axis=1)
    assert (whole <= clip).all() and (whole > 0.999 * clip).all()
    unscaled = Steps.same(np.full(1, 0.9), np.full(1, 2.425 / math.sqrt(8)), 25)
    assert Renyi().epsilon(unscaled, np.full(1, 1e-5))[0] == pytest.approx(39.7, rel=0.01)


# turns and batches


def test_public_turns_are_counted_and_amplify_nothing() -> None:
    phase = own(turns=np.array([3, 0]))
    steps = plan_of(phase).steps()
    assert steps.rate.tolist() == [[1.0, 1.0]] and steps.count.tolist() == [[15, 0]]
    spent = Pld().epsilon(steps, np.full(2, 1e-5))
    exact = gaussian.epsilon_of(np.array(math.sqrt(15) / 3), np.array(1e-5))
    assert spent[0] == pytest.approx(float(exact), rel=1e-9) and spent[1] == 0
    assert phase.expected.tolist() == [3.0, 0.0] and plan_of(phase).cohort == 3.0
    assert phase.holders.tolist() == [1, 1]


def test_turns_of_a_shared_pool_are_counted_by_client_and_phase() -> None:
    everyone = replace(SHARED, rate=np.ones(5), noise=np.array([6.0, 6.0]), pool=np.zeros(5, int))
    asked = [np.array(turns) for turns in ([1, 1, 0, 0, 0], [0, 0, 1, 1, 0], [1, 0, 0, 1, 0])]
    plan = plan_of(*(replace(everyone, turns=turns) for turns in asked))
    assert len(plan.steps()) == 1  # equally many share the noise, so the price is one
    assert plan.steps().count.tolist() == [[8, 4, 4, 8, 0]]
    assert plan.steps(6).count.tolist() == [[4, 4, 2, 2, 0]]
    more = plan_of(
        replace(everyone, turns=asked[0]), replace(everyone, turns=np.ones(5, int)), noise_at="clients"
    )
    steps = more.steps()
    assert len(steps) == 2  # two share the noise, and then five
    np.testing.assert_allclose(steps.multiplier[:, 0], [6 * math.sqrt(1 / 2), 6 * math.sqrt(4 / 5)])


def test_records_are_charged_for_every_step_of_every_turn() -> None:
    phase = own(turns=np.array([2, 1]), batch=np.array([0.1, 0.2]), steps=7)
    plan = plan_of(phase, noise_at="steps", promise="server")
    assert plan.unit == "record"
    for who in (None, *ADVERSARIES):
        steps = plan.steps(against=who)
        assert (steps.unit, steps.adjacency) == ("record", "add_remove")
        assert steps.rate.tolist() == [[0.1, 0.2]] and steps.multiplier.tolist() == [[3.0, 2.0]]
        assert steps.count.tolist() == [[5 * 2 * 7, 5 * 1 * 7]]
    assert plan.steps(2).count.tolist() == [[28, 14]]


def test_records_of_clients_that_are_never_asked_cost_nothing() -> None:
    phase = own(rate=np.array([0.0, 1.0]), batch=np.array([0.5, 0.5]), steps=3)
    steps = plan_of(phase, noise_at="steps").steps()
    assert steps.rate.tolist() == [[0.0, 0.5]] and steps.count.tolist() == [[15, 15]]
    for accountant in (Pld(), Renyi()):
        spent = accountant.epsilon(steps, np.full(2, 1e-5))
        assert spent[0] == 0 and spent[1] > 0


# phases that follow each other


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.sampled_from(["server", "clients"]), st.data())
def test_rounds_at_one_price_are_one_step(rounds: list[int], noise_at: NoiseAt, data: st.DataObject) -> None:
    one = plan_of(replace(SHARED, rounds=sum(rounds)), noise_at=noise_at)
    many = plan_of(*(replace(SHARED, rounds=r) for r in rounds), noise_at=noise_at)
    done = data.draw(st.integers(0, sum(rounds)))
    for who in (None, *ADVERSARIES):
        for upto in (None, done):
            ours, theirs = one.steps(upto, who), many.steps(upto, who)
            for name in ("rate", "multiplier", "count"):
                np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))


@pytest.mark.parametrize(
    "change",
    [
        {"rate": np.full(5, 0.5)},
        {"clip": np.ones(5)},
        {"noise": np.array([6.0, 9.0])},
        {"pool": np.array([0, 0, 0, 1, 1])},
        {"pool": np.array([0, 0, 1, 0, 1])},
    ],
)
def test_rounds_at_another_price_are_another_step(change: dict[str, Any]) -> None:
    other = replace(SHARED, **change)
    plan = plan_of(SHARED, other, SHARED, noise_at="clients")
    steps = plan.steps()
    assert len(steps) == 3
    for number, phase in enumerate((SHARED, other, SHARED)):
        rate, multiplier = plan.release(phase)
        np.testing.assert_array_equal(steps.rate[number], rate)
        np.testing.assert_array_equal(steps.multiplier[number], multiplier)
    delta = np.full(5, 1e-5)
    turned = plan_of(other, SHARED, SHARED, noise_at="clients").steps()
    for accountant in (Pld(), Renyi()):
        np.testing.assert_allclose(
            accountant.epsilon(steps, delta), accountant.epsilon(turned, delta), rtol=1e-12
        )


def test_batches_and_steps_make_another_price() -> None:
    batch = own(batch=np.full(2, 0.1))
    assert not batch.treats_as(own()) and not own().treats_as(batch)
    assert not batch.treats_as(replace(batch, steps=2))
    assert not batch.treats_as(replace(batch, batch=np.array([0.1, 0.2])))
    assert batch.treats_as(replace(batch, rounds=9, turns=np.array([1, 4])))


@settings(max_examples=30, deadline=None)
@given(st.floats(1e-6, 1e6), st.sampled_from(["server", "clients", "secure_sum"]))
def test_the_scale_of_clips_and_noise_does_not_matter(scale: float, noise_at: NoiseAt) -> None:
    scaled = replace(SHARED, clip=SHARED.clip * scale, noise=SHARED.noise * scale)
    for who in ADVERSARIES:
        before = plan_of(SHARED, noise_at=noise_at).view(SHARED, who)
        after = plan_of(scaled, noise_at=noise_at).view(scaled, who)
        np.testing.assert_array_equal(before[0], after[0])
        np.testing.assert_allclose(before[1], after[1], rtol=1e-14)


# statistics that decide who trains


def reads(phase: Phase, *more_phases: Phase, **more: Any) -> Plan:
    kind = {"noise_at": "steps", "promise": "server", "reading": Reading("diversity", 1, 2.0), **more}
    return plan_of(phase, *more_phases, **kind)


def test_whoever_is_asked_pays_for_the_statistic_once_a_round_and_for_each_step() -> None:
    batch, read = np.array([0.5, 0.25]), np.array([5.0, 7.0])
    first = own(turns=np.array([1, 0]), batch=batch, steps=3, read=read)
    both = own(turns=np.array([1, 1]), batch=batch, steps=3, read=read, rounds=2)
    (training, statistic) = reads(first).parts(first)
    assert [column.tolist() for column in training] == [[0.5, 0.25], [3.0, 2.0], [3, 0]]
    assert [column.tolist() for column in statistic] == [[1.0, 1.0], [5.0, 7.0], [1, 0]]
    steps = reads(first, both).steps()  # at one price: one step for each part
    assert (steps.unit, steps.adjacency) == ("record", "add_remove")
    assert steps.rate.tolist() == [[0.5, 0.25], [1.0, 1.0]]
    assert steps.multiplier.tolist() == [[3.0, 2.0], [5.0, 7.0]]
    assert steps.count.tolist() == [[15 + 6, 6], [5 + 2, 2]]
    assert reads(first, both).steps(6).count.tolist() == [[15 + 3, 3], [5 + 1, 1]]
    other = replace(both, read=np.array([5.0, 8.0]))
    assert reads(first, other).steps().count.tolist() == [[15, 0], [5, 0], [6, 6], [2, 2]]
    for who in ADVERSARIES:  # what comes of a statistic is seen by all
        np.testing.assert_array_equal(reads(first).steps(against=who).multiplier, [[3.0, 2.0], [5.0, 7.0]])
    silent = own(rate=np.array([1.0, 0.0]), batch=batch, steps=3, read=read)
    assert [part[2].tolist() for part in reads(silent).parts(silent)] == [[3, 3], [1, 0]]


def test_read_raw_nobody_has_privacy_asked_or_not() -> None:
    """Also whoever is never asked: in another draw of the candidates it would have been."""
    raw = own(turns=np.array([1, 0]), batch=np.full(2, 0.1), clip=np.full(2, 1e-6), read=np.zeros(2))
    certificate = certify(reads(raw), Population.of([1.0, 1.0]))
    assert certificate.promises_nothing
    assert all(np.isinf(epsilon).all() for epsilon in certificate.epsilon.values())
    mixed = replace(raw, read=np.array([50.0, 0.0]))
    assert np.isfinite(certify(reads(mixed), Population.of([1.0, 1.0])).spent).tolist() == [True, False]


def test_another_record_in_its_place_moves_a_statistic_twice_as_far() -> None:
    phase = own(batch=np.ones(2), read=np.array([4.0, 6.0]))
    training, statistic = reads(phase, adjacency="replace").parts(phase)
    assert training[1].tolist() == [1.5, 1.0] and statistic[1].tolist() == [2.0, 3.0]


@pytest.mark.parametrize(
    "change", [{"read": np.array([5.0, 6.0])}, {"read": np.array([0.0, 5.0])}, {"batch": np.full(2, 0.2)}]
)
def test_another_reading_is_another_price_and_no_reading_too(change: dict[str, Any]) -> None:
    phase = own(batch=np.full(2, 0.5), read=np.full(2, 5.0))
    assert phase.treats_as(replace(phase, rounds=9))
    assert not phase.treats_as(replace(phase, **change))
    assert not phase.treats_as(replace(phase, read=None)) and not replace(phase, read=None).treats_as(phase)


# a fixed number drawn, as papers do


def drawn(phase: Phase, **more: Any) -> Plan:
    return plan_of(phase, **{"sampling": "fixed_size", "accounting": "paper", **more})


def test_a_fixed_number_is_charged_for_two_clips_and_without_a_coin() -> None:
    phase = replace(SHARED, rate=np.array([0.5, 0.5, 0.5, 0.5, 0.0]), clip=np.array([2.0] * 4 + [4.0]))
    rate, multiplier = drawn(phase).release(phase)
    assert rate.tolist() == [1.0, 1.0, 1.0, 1.0, 0.0]
    assert multiplier.tolist() == [1.5, 1.5, 1.5, 1.5, 1.0]  # noise over two clips
    exchanged = drawn(phase, adjacency="replace")  # the number is the same, so nobody makes room: no more
    np.testing.assert_array_equal(exchanged.release(phase)[1], multiplier)
    assert exchanged.steps().adjacency == "replace"


def test_the_bit_of_whoever_makes_room_counts_too() -> None:
    phase = Phase.one_pool(1, np.full(4, 0.5), np.zeros(4), 1.0)
    bits = {"clipping": Clipping((), Quantile(noise=3.0))}
    assert plan_of(phase, **bits).release(phase)[1].tolist() == pytest.approx([6.0] * 4)
    assert drawn(phase, **bits).release(phase)[1].tolist() == pytest.approx([3.0] * 4)
