"""Privacy levels of all clients over the rounds, from the game of incentives; and what the game is worth."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from discretion.accounting import gaussian
from discretion.arrays import Floats, Ints
from discretion.methods.registry import Details
from discretion.methods.solvers.incentives import Game, equilibrium, price_of_anarchy, welfare
from discretion.plan.population import Population

LOWEST, HIGHEST = 0.01, 12.0  # privacy levels that the paper allows
PLAYERS = 1000  # at most; each stands for several clients where there are more


def first_levels(population: Population, rounds: int, rate: float) -> Floats:
    """Return (N,) first levels: the trait rho, or else the budget divided over the mean number of draws."""
    if "rho" in population.traits:
        return np.clip(population.traits["rho"], LOWEST, HIGHEST)
    return np.clip(lifetime(population) / max(rate * rounds, 1.0), LOWEST, HIGHEST)


def lifetime(population: Population) -> Floats:
    """Return (N,) the largest total rho of Gaussian releases that stays within each budget, exactly."""
    return np.asarray(gaussian.shift_of(population.epsilon, population.delta) ** 2 / 2 * (1 - 1e-9))


def levels(population: Population, rounds: int, rate: float, reward: float) -> Floats:
    """Return the (T, N) levels of the game's equilibrium."""
    game, player = game_of(population, rounds, rate)
    return equilibrium(game, reward).rho[:rounds, player]


def game_of(population: Population, rounds: int, rate: float) -> tuple[Game, Ints]:
    """Return the game, and the (N,) number of the player that stands for each client.

    In a mean field, one player may stand for all clients of its kind.
    """
    rho = first_levels(population, rounds, rate)
    weight = population.traits.get("privacy_weight", np.full(len(population), 0.5))
    order = np.lexsort([population.size, weight, rho])
    players = min(len(order), PLAYERS)
    picked = order[np.linspace(0, len(order) - 1, players).round().astype(np.int64)]
    cohort = min(max(1, round(rate * players)), players)
    game = Game(rho[picked], weight[picked], rounds, cohort)
    player = np.empty(len(order), dtype=np.int64)
    player[order] = np.arange(len(order)) * players // len(order)
    return game, player


def explain(population: Population, parameters: Mapping[str, Any]) -> Details:
    """Return the mean field, the payments, the distance from an equilibrium, and the price of anarchy."""
    game, _ = game_of(population, parameters["rounds"], parameters["rate"])
    found = equilibrium(game, parameters["reward"])
    low, median, high = np.quantile(found.rho, (0.1, 0.5, 0.9), axis=1)
    worth, price = (measure(game, found.rho, found.reward) for measure in (welfare, price_of_anarchy))
    return Details(
        rounds={
            "Privacy level (rho) of an upload, as played in the game": {
                "mean of all clients (the mean field)": found.phi,
                "one client in ten is above": high,
                "median client": median,
                "one client in ten is below": low,
            },
            "What the server pays": {
                "for each unit of privacy level": found.reward,
                "to a mean client that is drawn": found.reward * found.phi,
            },
        },
        numbers={
            "iterations of the search": found.iterations,
            "largest gap between the mean expected and the mean played": found.gap,
            "an equilibrium was found (1: yes, 0: no)": float(found.converged),
            "largest share of its utility that a client gives up": float(found.regret.max()),
            "share of clients that could gain more than 1 %": found.exploitable,
            "social welfare, for each client and round": worth / found.rho.size,
            "price of anarchy (1: as good as planned for all)": price,
        },
    )
