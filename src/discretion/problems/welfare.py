"""What the game of incentives is worth to all clients together, and what selfishness costs."""

import numpy as np

from discretion.population import Floats
from discretion.problems.incentives import Game


def welfare(game: Game, rho: Floats, reward: Floats) -> float:
    """Sum over rounds and clients of rho R - varphi rho² (30), for levels rho (T+1, N)."""
    return float(np.sum(rho * reward[:, None] - game.privacy_weight * rho**2))


def social_optimum(game: Game, reward: Floats, bounded: bool = True) -> Floats:
    """(T+1, N) levels of greatest welfare, R/(2 varphi), within [rho_low, rho_high].

    Defect of the paper: `bounded=False`, levels that no client may choose; with varphi uniform on (0, 1)
    the mean of that optimum over populations is infinite.
    """
    free = reward[:, None] / (2 * game.privacy_weight)
    return np.clip(free, game.rho_low, game.rho_high) if bounded else free


def all_at(game: Game, level: float) -> Floats:
    """(T+1, N) the same level for all: rho_low under random participation, rho_high in the paper's worst."""
    return np.full((game.rounds + 1, len(game.rho0)), level)


def price_of_anarchy(game: Game, rho: Floats, reward: Floats, bounded: bool = True) -> float:
    """Greatest welfare over that of rho; infinite where rho is worth nothing or less to the clients.

    Guarantees: at least 1 if `bounded` and rho lies within [rho_low, rho_high].
    """
    achieved = welfare(game, rho, reward)
    if achieved <= 0:
        return float("inf")
    return welfare(game, social_optimum(game, reward, bounded), reward) / achieved


def printed_random_bound(game: Game, reward: Floats) -> float:
    """Proposition 4: random participation costs at least this. Sound against the unbounded optimum."""
    return float(np.mean(reward) * np.mean(1 / game.privacy_weight) / (4 * game.rho_low))


def printed_level_bound(game: Game, reward: Floats) -> float:
    """Theorem 6: drawing by level costs at most this as rho_high grows.

    Defect: (37a) turns rho_high upside down. Welfare at rho_high falls without end as it grows, and
    there is no bound.
    """
    return float(np.max(reward) * np.mean(1 / game.privacy_weight) / 2)
