"""Every mix has the shares, moments and limits that its notation says."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from discretion.errors import PopulationError
from discretion.plan.budgets import NAMED, draw
from discretion.plan.population import Population


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def counts(drawn: np.ndarray) -> dict[float, int]:
    values, often = np.unique(drawn, return_counts=True)
    return dict(zip(values.tolist(), often.tolist(), strict=True))


# groups


def test_groups_have_their_shares() -> None:
    assert counts(draw("groups:10@34,20@43,30@23", 100, rng())) == {10.0: 34, 20.0: 43, 30.0: 23}
    assert counts(draw("groups:10@34,20@43,30@23", 1000, rng())) == {10.0: 340, 20.0: 430, 30.0: 230}
    assert counts(draw("groups:1@1,2@3", 8, rng())) == {1.0: 2, 2.0: 6}


def test_groups_without_shares_are_even_and_the_remainder_goes_to_the_first() -> None:
    assert counts(draw("groups:0.5,1.5,3", 9, rng())) == {0.5: 3, 1.5: 3, 3.0: 3}
    assert counts(draw("groups:0.5,1.5,3", 10, rng())) == {0.5: 4, 1.5: 3, 3.0: 3}
    assert counts(draw("groups:7", 5, rng())) == {7.0: 5}


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=6), st.integers(1, 3000))
def test_every_group_is_within_one_client_of_its_share(shares: list[float], clients: int) -> None:
    mix = "groups:" + ",".join(f"{k + 1}@{share!r}" for k, share in enumerate(shares))
    drawn = draw(mix, clients, rng())
    often = np.array([counts(drawn).get(float(k + 1), 0) for k in range(len(shares))])
    assert drawn.shape == (clients,) and often.sum() == clients
    assert (np.abs(often - clients * np.array(shares) / sum(shares)) < 1 + 1e-6).all()


def test_groups_are_in_random_order() -> None:
    one, two = draw("groups:1,2", 200, rng(1)), draw("groups:1,2", 200, rng(2))
    assert (one != two).any()
    # with 100 of each, the first half would hold 50 ± 3.6 of the first group
    assert 30 < (one[:100] == 1).sum() < 70
    np.testing.assert_array_equal(one, draw("groups:1,2", 200, rng(1)))


def test_a_group_may_be_public() -> None:
    assert counts(draw("groups:1,inf", 4, rng())) == {1.0: 2, np.inf: 2}


# random budgets


def test_uniform_is_uniform() -> None:
    drawn = draw("uniform:0.1,1", 20_000, rng())
    assert drawn.min() > 0.1 and drawn.max() <= 1
    assert stats.kstest(drawn, stats.uniform(0.1, 0.9).cdf).pvalue > 1e-3


def test_a_uniform_budget_is_never_zero() -> None:
    class Zero(np.random.Generator):
        def random(self, size: int) -> np.ndarray:  # type: ignore[override]
            return np.array([0.0, 1 - 2**-53] * (size // 2))

    drawn = draw("uniform:0,1", 4, Zero(np.random.PCG64()))
    assert (drawn > 0).all() and drawn.max() == 1


def test_gaussians_are_the_mixture_without_what_is_not_above_zero() -> None:
    # 0.3 N(0.5, 0.04) + 0.7 N(10, 1): the second figure is a variance, and little is cut off
    drawn = draw("gaussians:0.5~0.04@30,10~1@70", 40_000, rng())
    low, high = drawn[drawn < 4], drawn[drawn > 4]
    kept = 0.3 * stats.norm.cdf(2.5)
    assert abs(len(low) / 40_000 - kept / (kept + 0.7)) < 4 * np.sqrt(0.21 / 40_000)
    assert stats.kstest(low, stats.truncnorm(-2.5, np.inf, loc=0.5, scale=0.2).cdf).pvalue > 1e-3
    assert stats.kstest(high, stats.norm(10, 1).cdf).pvalue > 1e-3


def test_gaussians_are_cut_off_at_zero_and_not_moved_there() -> None:
    drawn = draw("gaussians:0.5~1", 20_000, rng())
    assert drawn.min() > 0
    assert stats.kstest(drawn, stats.truncnorm(-0.5, np.inf, loc=0.5, scale=1).cdf).pvalue > 1e-3


def test_gaussians_without_variance_are_groups() -> None:
    assert counts(draw("gaussians:2~0", 10, rng())) == {2.0: 10}
    assert set(counts(draw("gaussians:2~0@1,3~0@1", 100, rng()))) == {2.0, 3.0}


def test_pareto_has_its_shape_and_smallest_value() -> None:
    drawn = draw("pareto:2,0.5", 20_000, rng())
    assert drawn.min() >= 0.5
    assert stats.kstest(drawn, stats.pareto(2, scale=0.5).cdf).pvalue > 1e-3


@pytest.mark.parametrize("mix", ["pareto:0.001,0.5", "pareto:2,inf", "gaussians:1~inf", "gaussians:inf~1"])
def test_nobody_becomes_public_by_chance(mix: str) -> None:
    """An infinite epsilon means a public data set: only a group that says so may be one."""
    try:
        drawn = draw(mix, 200, rng())
    except PopulationError:
        return
    assert np.isfinite(drawn).all()


# names and mistakes


@pytest.mark.parametrize("mix", NAMED)
def test_every_named_mix_makes_a_population(mix: str) -> None:
    drawn = draw(mix, 101, rng())
    assert drawn.shape == (101,) and drawn.dtype == np.float64
    assert np.isfinite(Population.of(drawn).epsilon).all()
    np.testing.assert_array_equal(drawn, draw(NAMED[mix], 101, rng()))
    np.testing.assert_array_equal(drawn, draw(mix, 101, rng()))


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("10-20-30", {10.0: 34, 20.0: 43, 30.0: 23}),
        ("10-15-20", {10.0: 34, 15.0: 43, 20.0: 23}),
        ("0.5-1.5-3", {0.5: 34, 1.5: 33, 3.0: 33}),
        ("2-6-12", {2.0: 34, 6.0: 33, 12.0: 33}),
    ],
)
def test_named_groups(name: str, values: dict[float, int]) -> None:
    assert counts(draw(name, 100, rng())) == values


@pytest.mark.parametrize(
    ("mix", "reason"),
    [
        ("parto", "unknown budget mix 'parto'. Did you mean 'pareto'? Known by name: 10-20-30"),
        ("zzz:1", "unknown budget mix 'zzz:1'. Known by name"),
        ("", "unknown budget mix ''"),
        ("groups", "unknown budget mix 'groups'"),
        ("groups:", "unknown budget mix 'groups:'"),
        ("groups:ten", "could not convert"),
        ("groups:1,", "could not convert"),
        ("groups:1@x", "could not convert"),
        ("groups:0", "found epsilons"),
        ("groups:1,-2", "found epsilons"),
        ("groups:nan", "found epsilons"),
        ("groups:1@0,2@1", "found shares"),
        ("groups:1@-1,2@3", "found shares"),
        ("groups:1@nan", "found shares"),
        ("groups:1@inf", "found shares"),
        ("uniform:1", "expected two: uniform:a,b"),
        ("uniform:1,2,3", "expected two: uniform:a,b"),
        ("uniform:2,1", "expected 0 ≤ a < b, found 2 and 1"),
        ("uniform:1,1", "expected 0 ≤ a < b"),
        ("uniform:-1,1", "expected 0 ≤ a < b"),
        ("uniform:0,inf", "expected 0 ≤ a < b"),
        ("uniform:nan,1", "expected 0 ≤ a < b"),
        ("gaussians:1", "expected terms mean~variance@share"),
        ("gaussians:1~2~3", "expected terms mean~variance@share"),
        ("gaussians:0~1", "expected finite means above 0"),
        ("gaussians:1~-1", "variances from 0 on"),
        ("gaussians:nan~1", "expected finite means above 0"),
        ("gaussians:1~nan", "variances from 0 on"),
        ("pareto:2", "expected two: pareto:shape"),
        ("pareto:0,1", "expected finite numbers above 0"),
        ("pareto:1,0", "expected finite numbers above 0"),
        ("pareto:nan,1", "expected finite numbers above 0"),
    ],
)
def test_mistakes_are_explained(mix: str, reason: str) -> None:
    with pytest.raises(PopulationError) as caught:
        draw(mix, 10, rng())
    assert reason in str(caught.value)
    assert repr(mix) in str(caught.value)


@pytest.mark.parametrize("clients", [0, -3])
def test_nobody_gets_no_budget(clients: int) -> None:
    with pytest.raises(PopulationError, match="at least 1 client"):
        draw("uniform", clients, rng())
