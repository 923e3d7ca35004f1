"""Game of incentives by the maximum principle, as Yuan and Wang print it and as it should read.

Clients that answer by these costates do not come to rest in general, and their paths need not be best:
figures.py shows it, and tests/methods/papers pins it. Plans are made by search instead.
"""

from functools import partial

import numpy as np

from discretion.arrays import Floats
from discretion.methods.solvers.incentives import Game, chance, play


def slope_of_chance(game: Game, rho: Floats, phi: Floats) -> Floats:
    """Return how fast the chance to be drawn, 1 - (1-x)^K with x = rho/(N phi), grows with rho."""
    x = np.minimum(rho / (len(game.rho0) * phi), 1.0)
    return np.asarray(game.cohort / (len(game.rho0) * phi) * (1 - x) ** (game.cohort - 1))


def slopes(game: Game, rho: Floats, phi: Floats, literal: bool = False) -> tuple[Floats, Floats]:
    """Return what a higher level gains per unit of reward, and its loss of privacy; each (T+1, N).

    The paper's Q, and its -M without the controls' part. `literal` leaves out the factor K/(N phi) in M,
    as Theorem 1 prints it.
    """
    chosen, slope = chance(game, rho, phi[:, None]), slope_of_chance(game, rho, phi[:, None])
    steep = _steepness(game, slope, phi, literal)
    return chosen + slope * rho, game.privacy_weight * (2 * rho * chosen + steep * rho**2)


def costates(game: Game, rho: Floats, reward: Floats, literal: bool = False) -> tuple[Floats, Floats]:
    """Return costates lambda and the controls that follow, before projection to [0, 1]; each (T+1, N).

    The levels rho (T+1, N) are those around which the maximum principle is written; phi is their mean.
    """
    phi = rho.mean(axis=1)
    chosen = chance(game, rho, phi[:, None])
    steep = _steepness(game, slope_of_chance(game, rho, phi[:, None]), phi, literal)
    gained, lost = slopes(game, rho, phi, literal)
    costate, wanted = np.zeros_like(rho), np.zeros_like(rho)
    later = np.zeros_like(game.rho0)
    for t in range(game.rounds, -1, -1):
        if t < game.rounds:
            wanted[t] = later * (rho[t] - phi[t]) / (2 * (1 - game.privacy_weight) * chosen[t])
        alpha = np.clip(wanted[t], 0.0, 1.0)
        steadiness = steep[t] * (1 - game.privacy_weight) * alpha**2
        later = alpha * later + gained[t] * reward[t] - lost[t] - steadiness
        costate[t] = later
    return costate, wanted


def _steepness(game: Game, slope: Floats, phi: Floats, literal: bool) -> Floats:
    return slope * len(game.rho0) * phi[:, None] / game.cohort if literal else slope


def by_costates(game: Game, expected: Floats, reward: Floats, literal: bool = False) -> tuple[Floats, Floats]:
    """Return controls by the maximum principle around the levels (T+1, N) expected, and their levels."""
    alpha = np.clip(costates(game, expected, reward, literal)[1], 0.0, 1.0)
    return alpha, play(game, alpha)[0]


as_printed = partial(by_costates, literal=True)  # with the formula of Theorem 1, which lacks a factor
