"""Formulas that only tests compare with: objectives of the papers, printed bounds and defects."""

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtrc, ndtri

from discretion.accounting.solve import noise_multiplier
from discretion.arrays import Floats, Ints
from discretion.errors import PlanError
from discretion.methods.papers.appendix import SLOPE, turns_bound
from discretion.methods.papers.kiani import Saving
from discretion.methods.papers.opacus import Opacus
from discretion.methods.papers.xu_hu import Setting, weights
from discretion.methods.solvers.cohorts import ROUNDING
from discretion.methods.solvers.incentives import Game, welfare
from discretion.methods.solvers.selection import _variance, select
from discretion.plan.steps import Steps
from support.best_reward import PaidGame

# appendix


MINMAX_SLOPE = 1.702  # the other usual one


def tail(rate: Floats, draws: int, turns: Floats) -> Floats:
    """(N,) the exact probability of more than `turns` uploads."""
    return np.asarray(bdtrc(np.floor(turns), draws, rate))


# kiani


def part(saving: Saving) -> Floats:
    """(T, N) parts of a round's share that are spent, by the paper: (q_n / q)² while saving.

    Defect: divergence grows like q² only for small rates and much noise, not at q = 0.9: while saving,
    a client spends more than this.
    """
    return np.asarray((saving.rates() / saving.rate) ** 2)


def spending(saving: Saving) -> Floats:
    """(T, N) the share of the budget spent in each round, by the recursion (1)."""
    return _allotted(saving) * part(saving)


def _allotted(saving: Saving) -> Floats:
    """(T, N) the share that a round at the spending rate would cost: an even part of what is left."""
    shares = []
    left = np.ones(len(saving.rate))
    for t, spent in enumerate(part(saving), start=1):
        shares.append(left / (saving.rounds - t + 1))
        left = left - shares[-1] * spent
    return np.array(shares)


def spending_closed_form(saving: Saving) -> Floats:
    """(T, N) the same by Lemma 1. Never falls (Theorem 1)."""
    total, square = saving.rounds, (saving.saving_rate / saving.rate) ** 2
    i = np.arange(1, total)[:, None]
    shares = []
    for t, spent in enumerate(part(saving), start=1):
        last = np.minimum(t, saving.spend_from)  # (N,) no more is saved from there on
        kept = np.where(i < last, 1 - square / (total - last + 1 + i), 1.0).prod(axis=0)
        shares.append(kept * spent / (total - last + 1))
    return np.array(shares)


def noise_by_lemma_4(saving: Saving, multiplier: Floats) -> Steps:
    """Each round's noise where divergence is taken as 2 a q² / sigma², as in section 4.1.

    `multiplier` (N,) is what equal rounds at the spending rate would need. Defect: see `Saving.part`; the
    budget is overspent by some per cent.
    """
    noise = multiplier / np.sqrt(saving.rounds * _allotted(saving))
    return Steps(saving.rates(), noise, np.ones(saving.rounds, dtype=np.int64))


# xu_hu


def cohort_of(setting: Setting) -> float:
    """q n, the number of clients that a round is meant to have."""
    return setting.rate * setting.clients


KEPT = np.array([0.7, 0.8, 0.9])  # k_m / d, the part of each group's sum that Top-k keeps


def opacus_multiplier(epsilon: Floats, delta: Floats, rate: Floats, rounds: int) -> Floats:
    """(M,) noise multiplier by which Table III was made: not Theorem 1 but Opacus.

    Defect: Opacus' sampling is by independent coins; the algorithm draws a fixed number. See `fixed_size`.
    """
    return noise_multiplier(epsilon, delta, rate, rounds, Opacus())


def gain(drawn: Floats, weight: Floats, cohort: float) -> float:
    """By how much of a mean update of the cohort the model moves; 1 for the plain mean."""
    return float((weight * drawn).sum() / cohort)


def noise_to_signal(drawn: Floats, multiplier: Floats, weight: Floats, cohort: float) -> float:
    """Variance of the noise in a coordinate where the gain is made 1, in units of (C / (q n))²."""
    return float((weight**2 * multiplier**2).sum() / gain(drawn, weight, cohort) ** 2)


def noise_objective(drawn: Floats, multiplier: Floats) -> float:
    """What Problem 1 minimises, without what does not change: sum of omega² sigma² / r²."""
    return float(((drawn * multiplier) ** 2).sum() / (drawn**2).sum() ** 2)


def printed_noise(variance: Floats, clip: float) -> float:
    """Lambda of Table III for groups drawn at equal rates: the mean over groups.

    Defect: not what the next function computes, so that the two columns cannot be compared.
    """
    return float(clip**2 * variance.mean())


def printed_weighted_noise(variance: Floats, clip: float, drawn: Floats, kept: Floats) -> float:
    """Lambda of Table III for optimal rates: weighted, and divided by the number of groups.

    Defect: Top-k after the noise is credited with removing its share of it; it keeps the largest part.
    """
    return float(clip**2 * (weights(drawn) * variance * kept).sum() / len(variance))


# xu_zhang


def composition(epsilon: Floats, delta: Floats, uses: int) -> Floats:
    """(N,) noise multiplier of Lemma 2, after Kairouz, Oh and Viswanath 2015.

    Defect: said to hold for any epsilon, but too little noise from about 170 on (at delta 1e-5).
    """
    return np.asarray(np.sqrt(8 * uses * np.log(math.e + epsilon / delta)) / epsilon)


# adaptive_sampling


def printed_objective(rate: Floats, weight: Floats, draws: int) -> float:
    """sum of B_n (sqrt(q_n) + 1 / sqrt(K q_n)), (47).

    Defect: the first term lacks sqrt(K), and both stand for a tail bound's margin, which is the larger part
    only for less than about 46 uploads. So those who need most noise are drawn most.
    """
    return float((weight * (np.sqrt(rate) + 1 / np.sqrt(draws * rate))).sum())


def exact_objective(
    rate: Floats, weight: Floats, draws: int, rounds: int, delta: Floats, slope: float = SLOPE
) -> float:
    """sum of B_n (K - 1 + 1/q_n) / K times the bound on uploads, of which (47) keeps a part."""
    uploads = turns_bound(rate, draws * rounds, delta, slope)
    return float((weight * (draws - 1 + 1 / rate) / draws * uploads).sum())


def planned_objective(rate: Floats, variance: Floats, noise: Floats) -> float:
    """sum of a_n / q_n + b_n q_n where uploads are counted when planning; see `planned_rates`."""
    return float((variance / rate + noise * rate).sum())


# cohorts


def by_level(rho: Floats) -> Floats:
    """Return the paper's (…, N) distribution: a client is drawn in proportion to its privacy level."""
    return np.asarray(rho / rho.sum(axis=-1, keepdims=True))


def importance_weights(theta: Floats, x: Floats, cohort: int) -> Floats:
    """Return (N,) weights theta/(K x): unbiased if clients are drawn from x with replacement, and only then.

    Defect: the paper draws without replacement, where these weights sum to more than 1 in expectation. For
    such draws see `inclusion` and `unbiased_weights`.
    """
    return np.asarray(theta / (cohort * x))


def by_noise(theta: Floats, rho: Floats) -> Floats:
    """(N,) the distribution with least noise under `importance_weights`: x ~ theta sigma, sigma² ~ 1/rho."""
    return by_level(theta / np.sqrt(rho))


def noise_variance(weights: Floats, x: Floats, rho: Floats, cohort: int) -> float:
    """Expected variance of the weighted sum's noise, in units of a client's at rho = 1, K draws from x."""
    return float(np.sum(cohort * x * weights**2 / rho))


def printed_ratio(
    line: float, start: float, budget: float, v: float, gamma: float
) -> tuple[float, float, float]:
    """Theorem 7: reward R*, cohort K* and multiplier delta, for clients that all answer by line R + start.

    Defect: the cost falls in nothing but rho, so the condition on K gives delta = -(v/rho² + (1-gamma) R),
    and delta >= 0 forces a negative reward; K* knows no upper end at N.
    """
    level = (2 * line * v / (1 - gamma)) ** (1 / 3)
    reward = (level - start) / line
    return reward, budget / level, -(v / level**2 + (1 - gamma) * reward)


def within_budget(
    rho: Floats, total: Floats, takes_part: NDArray[np.bool_], how: Literal["stop", "scale"]
) -> Floats:
    """(T, N) levels that a client may spend in the rounds it takes part in; 0 elsewhere.

    "stop" refuses a round that would pass the client's total (N,), and takes the later ones that fit;
    it needs no knowledge of later rounds. "scale" lowers all levels of a client by one factor.

    Guarantees: no client's levels sum to more than its total; no level is raised.
    """
    asked = np.where(takes_part, rho, 0.0)
    if how == "scale":
        with np.errstate(divide="ignore", invalid="ignore"):
            factor = np.nan_to_num(total * (1 - ROUNDING) / asked.sum(axis=0), nan=1.0, posinf=1.0)
        return np.asarray(asked * np.minimum(factor, 1.0))
    spent = np.zeros(asked.shape[1])
    granted = np.zeros_like(asked)
    for t in range(len(asked)):
        fits = spent + asked[t] <= total
        granted[t] = np.where(fits, asked[t], 0.0)
        spent = spent + granted[t]
    return granted


# groups


def objective(
    drawn: Floats, multiplier: Floats, learning_rate: float, local_steps: int, cohort: float, top_k: bool
) -> float:
    """What Problem 1 minimises, as printed:

    sum of omega (mu4 (1 + phi) + mu5 (1 - sqrt(phi)) omega sigma² / r²).

    With `top_k`, phi is phi* of Remark 3, else 0. `cohort` is q n, or 1 for weights that sum to 1.

    Defect: phi is no bound on what Top-k leaves out, which for equal coordinates is sqrt(phi). Nearly all of
    the value is mu4, a constant, so that a solver stops far from the minimum.
    """
    omega, step = weights(drawn) / cohort, learning_rate * local_steps
    mu4 = 32 * step + learning_rate + learning_rate / local_steps
    noise = omega * multiplier**2 / drawn**2
    left_out = np.clip(2 * noise / (step * mu4), 0, 1) if top_k else np.zeros(len(drawn))  # 1 - k*/d
    return float((omega * (mu4 * (1 + left_out**2) + 4 / step * (1 - left_out) * noise)).sum())


def weight_bias(drawn: Floats, weight: Floats, size: Ints) -> float:
    """How far groups count for more or less than their share of the clients: 0 is fair, 2 the most."""
    part = weight * drawn
    return float(np.abs(part / part.sum() - size / size.sum()).sum())


def pooled_noise_to_signal(rate: Floats, multiplier: Floats, size: Ints) -> float:
    """Noise to signal, in units of (C / (q n))², if all groups are in one sum under one noise.

    Group m, asked at rate q_m, needs the multiplier sigma_m; one noise is that for a clip ~ 1 / sigma_m.
    With rates chosen so that all sigma_m are equal, the clips are, too, and this is sigma².
    """
    return float((rate * size).sum() / (rate * size / multiplier).sum()) ** 2


def top_k_energy(kept: Floats) -> Floats:
    """(...,) the part of a Gaussian vector's energy in the largest `kept` part of its coordinates.

    So much of the noise Top-k keeps where noise dominates; the paper takes it to be `kept` itself.
    """
    threshold = -ndtri(np.asarray(kept) / 2)
    density = np.exp(-(threshold**2) / 2) / np.sqrt(2 * np.pi)
    return np.asarray(kept + 2 * threshold * density)


# incentives


def printed_accuracy_weight(game: PaidGame) -> float:
    """The accuracy weight that the paper's cost (13) has: mean of (theta/|D|)², of the order 1e-10."""
    return float(np.mean((game.theta / game.size) ** 2))


# selection


def sweep(share: Floats, noise: Floats, weights: Floats) -> Floats:
    """Return (W, N) probabilities of Problem 1 for each of the weights."""
    return np.stack([select(share, noise, float(weight)) for weight in weights])


def threshold(share: Floats, noise: Floats, intercept: Floats | float = 0.0) -> float:
    """The largest weight at which nobody's probability differs from its share.

    With V alone it is 4 sum V u² / (max V u - min V u)²: infinite where V u is the same for everybody.
    """
    gap = float(np.ptp(intercept + 2 * noise * share))
    return 16 * _variance(share, noise, intercept) / gap**2 if gap > 0 else float("inf")


# time_adaptive


def optimal_shape(weight: Floats, rates: Floats) -> Floats:
    """(T, N) noise multipliers, up to a factor, for rounds of importance w_t, (T,): sigma² ~ q² / sqrt(w).

    Guarantees:
        Without sampling, no noise of the same cost has less weighted variance, sum of w_t sigma_t². With
        sampling this takes divergence as q² / sigma², and is near the best only.
    """
    if not (np.isfinite(weight) & (weight > 0)).all():
        raise PlanError("a round without weight would get infinite noise: expected finite numbers above 0")
    return np.asarray(rates * weight[:, None] ** -0.25)


def weighted_noise(weight: Floats, rates: Floats, multiplier: Floats) -> Floats:
    """(N,) mean over rounds, by importance, of the noise's variance in a mean update: sigma² / q²."""
    return np.asarray(weight @ (multiplier / rates) ** 2 / weight.sum())


# welfare


def unbounded_optimum(game: Game, reward: Floats) -> Floats:
    """Return the (T+1, N) levels of greatest welfare by the paper, R/(2 varphi).

    Defect: levels that no client may choose; with varphi uniform on (0, 1) the mean of that optimum over
    populations is infinite.
    """
    return np.asarray(reward[:, None] / (2 * game.privacy_weight))


def unbounded_price(game: Game, rho: Floats, reward: Floats) -> float:
    """Return the price of anarchy against the paper's unbounded optimum, where rho is worth something."""
    return welfare(game, unbounded_optimum(game, reward), reward) / welfare(game, rho, reward)


def printed_random_bound(game: Game, reward: Floats) -> float:
    """Proposition 4: random participation costs at least this. Sound against the unbounded optimum."""
    return float(np.mean(reward) * np.mean(1 / game.privacy_weight) / (4 * game.rho_low))


def printed_level_bound(game: Game, reward: Floats) -> float:
    """Theorem 6: drawing by level costs at most this as rho_high grows.

    Defect: (37a) turns rho_high upside down. Welfare at rho_high falls without end as it grows, and
    there is no bound.
    """
    return float(np.max(reward) * np.mean(1 / game.privacy_weight) / 2)
