"""The game of Yuan and Wang: what the printed formulas give, and what the repaired ones do.

All figures are for 100 clients of 600 records, rho0 ~ U(0.01, 12), varphi ~ U(0, 1), drawn in this order
from one generator with seed 1, T = 30 and K = 20.
"""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from costates import as_printed, by_costates, costates

from discretion.errors import InputError
from discretion.methods.solvers import incentives
from discretion.methods.solvers.incentives import (
    Answer,
    Equilibrium,
    Game,
    by_search,
    equilibrium,
    price_of_anarchy,
    regrets,
    respond,
    social_optimum,
    types_of,
    values,
    welfare,
)
from support import formulas
from support.best_reward import PaidGame, best_reward, paid_equilibrium, response_line
from support.formulas import printed_level_bound, printed_random_bound, unbounded_optimum, unbounded_price

N = 100
RNG = np.random.default_rng(1)
GAME = PaidGame(
    rho0=RNG.uniform(0.01, 12, N),
    privacy_weight=RNG.uniform(0, 1, N),
    size=np.full(N, 600.0),
    rounds=30,
    cohort=20,
)


def fixed(reward: float) -> np.ndarray:
    return np.full(GAME.rounds + 1, reward)


@cache
def solved(reward: float, answer: Answer = by_search, damping: float = 0.5) -> Equilibrium:
    return equilibrium(GAME, reward, answer, damping)


def all_at(game: Game, level: float) -> np.ndarray:
    """One level (T+1, N) for all: rho_low under random participation, rho_high in the worst case."""
    return np.full((game.rounds + 1, N), level)


# the clients' side


def test_costates_are_the_slope_of_what_is_still_to_gain() -> None:
    """1.3: with the factor K/(N phi) they are; as printed they are not."""
    rest = equilibrium(GAME, 20.0, by_costates, 1.0, tolerance=1e-12)
    assert rest.converged  # controls that the maximum principle keeps
    rho, alpha, phi, reward = rest.rho, rest.alpha, rest.phi, rest.reward

    def still(t: int, level: np.ndarray) -> np.ndarray:
        total = np.zeros(N)
        for later in range(t, GAME.rounds + 1):
            chosen = incentives.chance(GAME, level, phi[later])
            total += incentives.gain(chosen, level, alpha[later], reward[later], GAME.privacy_weight)
            level = phi[later] + alpha[later] * (level - phi[later])
        return total

    right, _ = costates(GAME, rho, reward)
    printed, _ = costates(GAME, rho, reward, literal=True)
    for t in (0, 7, 29, 30):
        slope = (still(t, rho[t] + 1e-5) - still(t, rho[t] - 1e-5)) / 2e-5
        assert right[t] == pytest.approx(slope, rel=1e-5, abs=1e-5)
        assert np.max(np.abs(printed[t] - slope)) > 0.1 * np.max(np.abs(slope))


def test_the_missing_factor_halves_the_mean_level() -> None:
    """1.3 gives phi_T 6.90 and 3.27 at R = 5. Both are from sweeps that did not converge.

    With exact best responses phi_T is 6.59; the printed costates wander between 2.8 and 3.4.
    """
    assert solved(5.0).phi[-1] == pytest.approx(6.59, abs=0.02)
    assert solved(5.0, by_costates).phi[-1] == pytest.approx(6.90, abs=0.3)
    assert solved(5.0, as_printed).phi[-1] == pytest.approx(3.27, abs=0.5)
    assert solved(5.0, as_printed).exploitable >= 0.8


@pytest.mark.parametrize(("reward", "last"), [(1.0, 3.11), (5.0, 6.59), (10.0, 8.93), (20.0, 11.243)])
def test_the_mean_level_follows_the_reward(reward: float, last: float) -> None:
    """Section 3: from 6.16 to "about 3-4", "6.6-6.9", "9-10", 11.2. At R = 10 it is 8.93, just below."""
    rest = solved(reward)
    assert rest.phi[0] == pytest.approx(6.1617, abs=1e-4)
    assert rest.phi[-1] == pytest.approx(last, abs=0.02)
    assert rest.converged and rest.gap <= 5e-3
    assert rest.exploitable == 0  # section 3 has 10-25 % by the maximum principle
    assert rest.regret.max() < 5e-3


@pytest.mark.parametrize(("reward", "damping"), [(1.0, 1.0), (1.0, 0.1), (5.0, 1.0), (5.0, 0.1), (10.0, 0.5)])
def test_the_maximum_principle_does_not_come_to_rest(reward: float, damping: float) -> None:
    """1.7 and section 3: limit cycles at R = 1, 5, 10, and clients that could do better."""
    report = solved(reward, by_costates, damping)
    assert not report.converged and report.iterations == 60
    assert report.gap > 0.02
    assert report.exploitable >= 0.05


def test_it_does_where_controls_are_at_their_ends() -> None:
    """1.7: R = 20, in a few sweeps (methods.md counts 21 in its reading, here 5)."""
    rest = solved(20.0, by_costates, 1.0)
    assert rest.converged and rest.iterations <= 8
    assert np.mean((rest.alpha == 0) | (rest.alpha == 1)) > 0.99
    assert rest.phi == pytest.approx(solved(20.0).phi, abs=5e-3)
    below = rest.rho[0] < rest.phi[0]
    assert np.all(rest.alpha[0, below] == 0)  # below the mean they jump to it, above they stay
    assert np.mean(rest.alpha[0, ~below]) > 0.99


@pytest.mark.parametrize(("reward", "least"), [(1.0, 0.75), (5.0, 0.75), (10.0, 0.86), (20.0, 0.99)])
def test_most_controls_are_asked_for_outside_their_range(reward: float, least: float) -> None:
    """1.6 says 86-100 %. At the equilibrium by search it is 80-100 %: fewer at R = 1 and 5."""
    _, wanted = costates(GAME, solved(reward).rho, fixed(reward))
    assert np.mean((wanted[:-1] <= 0) | (wanted[:-1] >= 1)) >= least


def test_levels_are_those_that_the_controls_bring_about() -> None:
    rest = solved(5.0)
    rho, phi = incentives.play(GAME, rest.alpha)
    assert np.array_equal(rho, rest.rho) and np.array_equal(phi, rho.mean(axis=1))
    assert phi == pytest.approx(rest.phi, rel=1e-15)
    for t in range(GAME.rounds):
        assert rho[t + 1] == pytest.approx(phi[t] + rest.alpha[t] * (rho[t] - phi[t]))
    assert np.all((rho >= 0.01) & (rho <= 12)) and np.all((rest.alpha >= 0) & (rest.alpha <= 1))
    assert np.all(rest.alpha[-1] == 0)


def test_search_finds_the_best_of_all_controls_in_a_short_game() -> None:
    game = Game(GAME.rho0[:6], GAME.privacy_weight[:6], rounds=2, cohort=2)
    phi, reward, types = np.array([5.0, 6.0, 7.0]), np.array([4.0, 2.0, 6.0]), types_of(game.privacy_weight)
    alpha, rho = respond(game, types, values(game, types, phi, reward), reward, phi)
    found = incentives.utility(game, rho, alpha, phi, reward)
    best = np.full(6, -np.inf)
    for one in np.linspace(0, 1, 101):
        for two in np.linspace(0, 1, 101):
            tried = np.array([one, two, 0])[:, None] * np.ones(6)
            level = np.stack([game.rho0, phi[0] + one * (game.rho0 - phi[0]), np.zeros(6)])
            level[2] = phi[1] + two * (level[1] - phi[1])
            best = np.maximum(best, incentives.utility(game, level, tried, phi, reward))
    assert found == pytest.approx(best, rel=2e-3)


def test_regret_is_found_where_it_is() -> None:
    alpha = solved(20.0).alpha.copy()
    clients, none = regrets(GAME, alpha, fixed(20.0), sample=N)
    assert sorted(clients) == list(range(N)) and none.max() < 1e-3
    alpha[:, 3] = 0.5  # one client dithers
    clients, regret = regrets(GAME, alpha, fixed(20.0), sample=N)
    assert regret[clients == 3] > 0.01 and np.all(regret[clients != 3] < 0.01)


# the server's side


@pytest.mark.parametrize("reward", [1.0, 5.0, 10.0, 20.0])
def test_the_server_pays_nothing_by_the_printed_cost(reward: float) -> None:
    """1.5: theta²/|D|² is 2.8e-10, so R_t = 0 for all t.

    methods.md has rewards from 1e10 times that on, R_1 = 17.6 and R_15 = 0 at 1e12 times. That is along
    Lemma 2's line, which leaves what controls can reach. With controls in [0, 1] and clients counted by
    their chance to be drawn all rewards are 0 up to 1e12 times; at 1e13 R_1 is 3.9 to 9.1, R_15 still 0.
    """
    printed = formulas.printed_accuracy_weight(GAME)
    assert printed == pytest.approx(2.78e-10, rel=1e-3)
    for scale in (1, 1e10, 1e12):
        game = replace(GAME, accuracy_weight=scale * printed)
        assert not best_reward(game, solved(reward).rho, fixed(reward)).any()
    game = replace(GAME, accuracy_weight=1e13 * printed)
    found = best_reward(game, solved(reward).rho, fixed(reward))
    assert 3.5 < found[1] < 9.5 and found[15] == 0


@pytest.mark.parametrize(("constant", "weight"), [(1.0, 300.0), (1.0, 5000.0), (5.0, 2000.0), (10.0, 2e4)])
def test_the_best_reward_is_best_among_many(constant: float, weight: float) -> None:
    game = replace(GAME, accuracy_weight=weight)
    rho, reward = solved(constant).rho, fixed(constant)
    found = best_reward(game, rho, reward)
    line, start = response_line(game, rho, reward)
    assert found[0] == 0 and np.all(found >= 0)

    def cost(t: int, offer: float) -> float:
        phi = rho[t - 1].mean()
        away = rho[t - 1] - phi
        alpha = np.clip((line[t - 1] * offer + start[t - 1] - phi) / away, 0, 1)
        level = phi + alpha * away
        drawn = rho[t] * game.cohort / rho[t].sum()  # nobody is certain to be drawn here
        return float(np.sum(drawn * (0.5 * weight / (t + 1) / level + 0.5 * offer * level)))

    for t in (1, 2, 15, 30):
        tried = min(cost(t, offer) for offer in np.append(np.geomspace(1e-3, 500, 1500), 0.0))
        assert cost(t, found[t]) <= tried * (1 + 1e-6)


def test_the_line_of_lemma_2_leaves_the_range_of_levels() -> None:
    """The cost is convex in R only where all levels are above 0; along the line many are not."""
    line, start = response_line(GAME, solved(5.0).rho, fixed(5.0))
    assert np.all(line >= 0)
    assert np.mean(line * 5.0 + start < 0) > 0.2


def test_the_report_says_when_the_server_finds_no_rest() -> None:
    unpaid = paid_equilibrium(GAME, 1.0)
    assert unpaid.converged and not unpaid.reward[1:].round(2).any()
    assert unpaid.phi[-1] < 1  # nobody pays, nobody gives
    paid = paid_equilibrium(replace(GAME, accuracy_weight=3000.0), 1.0, iterations=8)
    assert not paid.converged and paid.reward_gap > 0.01
    assert paid.reward.max() > 1


# privacy over a life, welfare, price of anarchy


def test_what_a_life_costs_at_the_equilibrium() -> None:
    """1.2: at R = 5 the median client spends rho 36 in expectation, 200 if it is always drawn."""
    rest = solved(5.0)
    chosen = incentives.chance(GAME, rest.rho, rest.phi[:, None])
    assert np.median((chosen * rest.rho).sum(axis=0)) == pytest.approx(36, abs=1)
    assert np.median(rest.rho.sum(axis=0)) == pytest.approx(200, abs=2)


def test_price_of_anarchy_as_printed() -> None:
    """1.10: welfare at rho_high, and what (37) makes of it."""
    low, high = all_at(GAME, GAME.rho_low), all_at(GAME, GAME.rho_high)
    worst = welfare(GAME, high, fixed(5.0))
    assert worst == pytest.approx(-38608, abs=1)
    free = welfare(GAME, unbounded_optimum(GAME, fixed(5.0)), fixed(5.0))
    clipped = welfare(GAME, social_optimum(GAME, fixed(5.0)), fixed(5.0))
    assert free / worst == pytest.approx(-2.2, abs=0.05) and clipped / worst == pytest.approx(-1.4, abs=0.05)
    assert price_of_anarchy(GAME, high, fixed(5.0)) == np.inf
    assert printed_level_bound(GAME, fixed(5.0)) == pytest.approx(10.8, abs=0.05)
    assert unbounded_price(GAME, high, fixed(10.0)) == pytest.approx(2.27, abs=0.005)
    assert price_of_anarchy(GAME, high, fixed(10.0)) == pytest.approx(1.23, abs=0.005)
    assert printed_level_bound(GAME, fixed(10.0)) == pytest.approx(21.6, abs=0.05)
    wider = replace(GAME, rho_high=1e4)  # "as rho_high grows"
    assert welfare(wider, all_at(wider, wider.rho_high), fixed(10.0)) < -1e10
    random = unbounded_price(GAME, low, fixed(5.0))
    assert random == pytest.approx(539.7, abs=0.05)
    assert printed_random_bound(GAME, fixed(5.0)) == pytest.approx(539.2, abs=0.05)
    assert random >= printed_random_bound(GAME, fixed(5.0))
    assert price_of_anarchy(GAME, low, fixed(5.0)) < printed_random_bound(GAME, fixed(5.0))


def test_price_of_anarchy_of_the_equilibrium() -> None:
    """1.10 has 1.43 (R = 5) and 1.17 (R = 10) for unconverged sweeps; by search 1.35 and 1.16."""
    assert price_of_anarchy(GAME, solved(5.0).rho, fixed(5.0)) == pytest.approx(1.35, abs=0.01)
    assert price_of_anarchy(GAME, solved(5.0, by_costates, 0.1).rho, fixed(5.0)) == pytest.approx(
        1.43, abs=0.1
    )
    assert price_of_anarchy(GAME, solved(10.0).rho, fixed(10.0)) == pytest.approx(1.16, abs=0.01)
    assert price_of_anarchy(GAME, solved(10.0, by_costates).rho, fixed(10.0)) == pytest.approx(1.17, abs=0.02)
    assert welfare(GAME, solved(1.0).rho, fixed(1.0)) < 0


def test_no_levels_beat_the_social_optimum() -> None:
    best = welfare(GAME, social_optimum(GAME, fixed(5.0)), fixed(5.0))
    rng = np.random.default_rng(0)
    for _ in range(20):
        levels = rng.uniform(0.01, 12, (GAME.rounds + 1, N))
        assert welfare(GAME, levels, fixed(5.0)) <= best
        assert price_of_anarchy(GAME, levels, fixed(10.0)) >= 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"privacy_weight": np.full(N, 1.0)}, "strictly between 0 and 1"),
        ({"rho0": np.full(N, 13.0)}, r"rho0 must lie in \[0.01, 12\]"),
        ({"rho0": np.full(N, np.nan)}, "rho0 must lie"),
        ({"size": np.full(3, 600.0)}, "of one length"),
        ({"cohort": 101}, "cohort is 101; expected 1 to 100"),
        ({"gamma": 1.0}, "gamma is 1"),
    ],
)
def test_a_game_that_cannot_be_played_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        replace(GAME, **change)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="damping is 0"):
        equilibrium(GAME, 5.0, damping=0.0)
    with pytest.raises(InputError, match="the reward is -1"):
        equilibrium(GAME, -1.0)
