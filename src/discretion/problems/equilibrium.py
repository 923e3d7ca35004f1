"""Where the game of incentives comes to rest, and how far from rest the answer is."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from discretion.errors import InputError
from discretion.population import Floats, Ints
from discretion.problems.best_response import respond, types_of, values
from discretion.problems.incentives import Game, best_reward, costates, play, project, utility

By = Literal["search", "costates", "printed"]
FINER = 401  # states of the search for regret, so that the search for equilibria does not judge itself


@dataclass(frozen=True, eq=False)
class Convergence:
    """How much of an equilibrium was found; nothing here is assumed."""

    iterations: int
    gap: float  # largest |phi expected - phi that the controls chosen for it bring about|
    reward_gap: float  # largest |reward expected - reward the server then prefers|; 0 if it is fixed
    converged: bool  # both gaps within tolerance
    regret: Floats  # (sample,) share of its best utility that a client gives up, against phi as played
    clients: Ints  # (sample,) whose regret it is

    @property
    def exploitable(self) -> float:
        """Share of the sampled clients that could gain more than 1 %."""
        return float(np.mean(self.regret > 0.01))


@dataclass(frozen=True, eq=False)
class Equilibrium:
    """What everybody does. Levels follow from the controls, and phi is the mean of the levels."""

    rho: Floats  # (T+1, N)
    alpha: Floats  # (T+1, N)
    reward: Floats  # (T+1,)
    phi: Floats  # (T+1,)
    report: Convergence


def equilibrium(
    game: Game,
    reward: float | None,
    by: By = "search",
    damping: float = 0.5,
    tolerance: float = 5e-3,
    iterations: int = 60,
    sample: int = 20,
) -> Equilibrium:
    """The fixed point of the mean field, at a constant reward or, with None, at the server's own.

    `by` says how clients answer: "search" by dynamic programming; "costates" by the maximum principle,
    whose paths need not be best; "printed" with the formula of Theorem 1, which lacks a factor.
    Where no fixed point is reached, the iterate of least gap is returned and the report says so. Clients
    switch between far-off levels, so with N clients gaps much below 1/N of a level may not exist.

    Guarantees: the levels returned are those that the controls returned bring about.
    """
    if not 0 < damping <= 1:
        raise InputError(f"damping is {damping:g}; expected above 0 and at most 1")
    if reward is not None and reward < 0:
        raise InputError(f"the reward is {reward:g}; expected at least 0, or None for the server's own")
    types = types_of(game.privacy_weight)
    expected = np.tile(game.rho0, (game.rounds + 1, 1))
    offer = np.full(game.rounds + 1, 1.0 if reward is None else reward)
    least, best = np.inf, (np.zeros_like(expected), offer, 0.0, 0.0)
    count = 0
    while count < iterations:
        count += 1
        phi = expected.mean(axis=1)
        if by == "search":
            alpha, rho = respond(game, types, values(game, types, phi, offer), offer)
        else:
            alpha = project(costates(game, expected, offer, literal=by == "printed")[1])
            rho, _ = play(game, alpha)
        gap = float(np.max(np.abs(rho.mean(axis=1) - phi)))
        wanted = best_reward(game, rho, offer, by == "printed") if reward is None else offer
        reward_gap = float(np.max(np.abs(wanted - offer)))
        if gap + reward_gap < least:
            least, best = gap + reward_gap, (alpha, offer, gap, reward_gap)
        if max(gap, reward_gap) <= tolerance:
            break
        expected = expected + damping * (rho - expected)
        offer = offer + damping * (wanted - offer)
    alpha, offer, gap, reward_gap = best
    rho, phi = play(game, alpha)
    clients, regret = regrets(game, alpha, offer, sample)
    report = Convergence(count, gap, reward_gap, max(gap, reward_gap) <= tolerance, regret, clients)
    return Equilibrium(rho, alpha, offer, phi, report)


def regrets(game: Game, alpha: Floats, reward: Floats, sample: int) -> tuple[Ints, Floats]:
    """Clients, evenly over privacy weights, and the share of its best utility that each gives up.

    The better controls are played out, so a regret is one that a client could really avoid;
    the search is on a grid, so a regret of 0 means that none was found.
    """
    rho, phi = play(game, alpha)
    order = np.argsort(game.privacy_weight, kind="stable")
    picked = order[np.unique(np.linspace(0, len(order) - 1, min(sample, len(order))).astype(np.int64))]
    own = np.unique(np.append(game.privacy_weight[picked], [0.0, 1.0]))
    better, levels = respond(game, own, values(game, own, phi, reward, FINER), reward, phi)
    best = utility(game, levels, better, phi, reward)[picked]
    mine = utility(game, rho, alpha, phi, reward)[picked]
    scale = np.maximum(np.maximum(np.abs(best), np.abs(mine)), np.finfo(float).tiny)
    return picked, np.maximum(best - mine, 0.0) / scale
