"""What the game of incentives says of each client's privacy level, over the rounds; and what it is worth."""

import numpy as np

from discretion.accounting import gaussian
from discretion.methods.details import Details
from discretion.population import Floats, Ints, Population
from discretion.problems import welfare
from discretion.problems.equilibrium import Equilibrium, equilibrium
from discretion.problems.incentives import Game

LOWEST, HIGHEST = 0.01, 12.0  # privacy levels that the paper allows
PLAYERS = 1000  # more clients than this are played by so many


def first_levels(population: Population, rounds: int, rate: float) -> Floats:
    """(N,) the trait rho, or what the budget allows an upload of a client that is drawn as often as the
    mean."""
    if "rho" in population.traits:
        return np.clip(population.traits["rho"], LOWEST, HIGHEST)
    return np.clip(lifetime(population) / max(rate * rounds, 1.0), LOWEST, HIGHEST)


def lifetime(population: Population) -> Floats:
    """(N,) the whole rho of Gaussian releases that stay within the budget, exactly."""
    return np.asarray(gaussian.shift_of(population.epsilon, population.delta) ** 2 / 2 * (1 - 1e-9))


def levels(population: Population, rounds: int, rate: float, reward: float) -> Floats:
    """(T, N) the levels of the game's equilibrium."""
    found, player = equilibrium_of(population, rounds, rate, reward)
    return found.rho[:rounds, player]


def equilibrium_of(
    population: Population, rounds: int, rate: float, reward: float
) -> tuple[Equilibrium, Ints]:
    """The equilibrium, and (N,) which player stands for each client."""
    game, player = game_of(population, rounds, rate)
    return equilibrium(game, reward), player


def game_of(population: Population, rounds: int, rate: float) -> tuple[Game, Ints]:
    """The game, and (N,) which player stands for each client: in a mean field, one of its kind may."""
    rho = first_levels(population, rounds, rate)
    weight = population.traits.get("privacy_weight", np.full(len(population), 0.5))
    kinds = np.stack([rho, weight, population.size])
    order = np.lexsort(kinds[::-1])
    picked = order
    if len(order) > PLAYERS:
        picked = order[np.linspace(0, len(order) - 1, PLAYERS).round().astype(np.int64)]
    cohort = min(max(1, round(rate * len(picked))), len(picked))
    game = Game(rho[picked], weight[picked], kinds[2, picked], rounds, cohort)
    player = np.empty(len(order), dtype=np.int64)
    player[order] = np.arange(len(order)) * len(picked) // len(order)
    return game, player


def explain(population: Population, rounds: int, rate: float, reward: float) -> Details:
    """The mean field, what is paid, how near to rest the game is, and what selfishness costs."""
    game, _ = game_of(population, rounds, rate)
    found = equilibrium(game, reward)
    low, median, high = np.quantile(found.rho, (0.1, 0.5, 0.9), axis=1)
    report, worth = found.report, welfare.welfare(game, found.rho, found.reward)
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
            "iterations of the search": report.iterations,
            "largest gap between the mean expected and the mean played": report.gap,
            "an equilibrium was found (1: yes, 0: no)": float(report.converged),
            "largest share of its utility that a client gives up": float(report.regret.max()),
            "share of clients that could gain more than 1 %": report.exploitable,
            "social welfare, for each client and round": worth / found.rho.size,
            "price of anarchy (1: as good as planned for all)": welfare.price_of_anarchy(
                game, found.rho, found.reward
            ),
        },
    )
