"""Figures of the papers that need no training, as tables: the game of Yuan and Wang (mean field, welfare,
cost, use of a round's budget), and how adaptive sampling draws.

Run: python benchmarks/figures.py > results/figures.md
"""

from dataclasses import replace
from datetime import UTC, datetime

import numpy as np

from discretion.methods import pldp_sampling
from discretion.population import Floats, Population
from discretion.problems import cohorts
from discretion.problems.equilibrium import equilibrium
from discretion.problems.incentives import Game
from discretion.problems.welfare import all_at, social_optimum, welfare

CLIENTS, ROUNDS = 100, 30
REWARDS = (1.0, 5.0, 10.0, 20.0)
ROUNDS_SHOWN = (0, 1, 2, 5, 10, 20, 30)


def game_of(cohort: int, seed: int = 1) -> Game:
    """The paper's: levels U(0.01, 12), privacy weights U(0, 1), 600 records each."""
    random = np.random.default_rng(seed)
    levels, weights = random.uniform(0.01, 12, CLIENTS), random.uniform(0, 1, CLIENTS)
    return Game(levels, weights, np.full(CLIENTS, 600.0), ROUNDS, cohort)


def table(head: list[str], rows: list[list[str]]) -> None:
    print("| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print()


def mean_field(game: Game) -> None:
    print("## Figure 3: the mean field phi(t), and how many iterations find it\n")
    rows = []
    for reward in REWARDS:
        found = equilibrium(game, reward)
        costates = equilibrium(game, reward, "costates", 1.0, tolerance=1e-3, iterations=50)
        ours = f"{found.report.iterations}, {'yes' if found.report.converged else 'no'}"
        theirs = f"{costates.report.iterations}, {'yes' if costates.report.converged else 'no'}"
        rows.append([f"{reward:g}", *(f"{found.phi[t]:.2f}" for t in ROUNDS_SHOWN), ours, theirs])
    head = [
        "reward",
        *(f"t = {t}" for t in ROUNDS_SHOWN),
        "search: iterations, at rest",
        "costates: the same",
    ]
    table(head, rows)


def worth(game: Game) -> None:
    print("## Figure 5: social welfare, sum over clients and rounds of rho R - varphi rho²\n")
    rows = []
    for reward in REWARDS:
        offer = np.full(ROUNDS + 1, reward)
        found = equilibrium(game, reward)
        kept = np.tile(game.rho0, (ROUNDS + 1, 1))
        every = (social_optimum(game, offer), found.rho, kept, all_at(game, game.rho_low))
        rows.append([f"{reward:g}", *(f"{welfare(game, rho, offer):,.0f}" for rho in every)])
    head = [
        "reward",
        "social optimum",
        "equilibrium (FedPCS)",
        "first levels kept",
        "all at 0.01 (the paper's random)",
    ]
    table(head, rows)


def cost(weight: float, rho: Floats, offer: Floats, drawn: Floats) -> float:
    """(13) without 1/t, the mean over rounds; clients count with their chances."""
    return float(np.mean(np.sum(drawn * (0.5 * weight / rho + 0.5 * offer[:, None] * rho), axis=1)))


def costs(reward: float = 5.0) -> None:
    print(f"## Figure 6: the server's cost of a round at reward {reward:g}, gamma 0.5\n")
    rows = []
    for share in (0.2, 0.5, 0.8):
        game = game_of(round(share * CLIENTS))
        found = equilibrium(game, reward)
        alone = np.tile(game.rho0, (ROUNDS + 1, 1))
        same = np.full((ROUNDS + 1, CLIENTS), game.cohort / CLIENTS)
        by_level = cohorts.inclusion(cohorts.by_level(found.rho), game.cohort)
        row = [f"{share:g}"]
        for weight in (3e-10, 1.0, 100.0):
            row += [f"{cost(weight, found.rho, found.reward, by_level):.1f}"]
            row += [f"{cost(weight, alone, found.reward, same):.1f}"]
        rows.append(row)
    names = ("as printed", "1", "100")
    head = [
        "sampling rate",
        *(f"{who}, accuracy weight {name}" for name in names for who in ("FedPCS", "random")),
    ]
    table(head, rows)


def budget_use(game: Game, reward: float = 5.0) -> None:
    print("## Figure 7: use of a round's budget B_t that falls from 700 to 300, and the sampling rate\n")
    found, random = equilibrium(game, reward), np.random.default_rng(0)
    rows = []
    for t in (0, 5, 10, 15, 20, 25, 29):
        budget = 700 - 400 * t / (ROUNDS - 1)
        # accuracy weight so large that the server takes whom it may
        chosen, _ = cohorts.within_round(found.rho[t], budget, reward, 0.5, 1e9)
        order = random.permutation(CLIENTS)
        taken = np.cumsum(game.rho0[order]) <= budget
        used = float(found.rho[t][chosen].sum() / budget)
        alone = float(game.rho0[order][taken].sum() / budget)
        rows.append(
            [f"{t}", f"{budget:.0f}", f"{100 * used:.1f} %", f"{chosen.mean():.2f}"]
            + [f"{100 * alone:.1f} %", f"{taken.mean():.2f}"]
        )
    table(["t", "B_t", "FedPCS uses", "its rate", "random uses", "its rate"], rows)


def sampling() -> None:
    print("## How adaptive sampling draws: 100 clients, epsilon U(0.5, 5), 10 draws a round, 24 rounds\n")
    random = np.random.default_rng(3)
    epsilon = np.sort(random.uniform(0.5, 5, CLIENTS))
    size = random.integers(300, 900, CLIENTS)
    population = Population.of(epsilon, 1e-5, size)
    even = replace(population, size=np.full(CLIENTS, 600))
    rows = []
    for name, who in (("600 records each", even), ("300 to 900 records", population)):
        for mode in (True, False):
            q = pldp_sampling.probabilities(who, 10, 24, mode)
            fifths = [f"{100 * part.sum():.1f} %" for part in np.split(q, 5)]
            about = [f"{np.corrcoef(q, x)[0, 1]:+.2f}" if np.ptp(x) else "-" for x in (epsilon, who.size)]
            rows.append([f"{name}, {'printed (47)' if mode else 'turns planned'}", *fifths, *about])
    fifths = [f"epsilon {epsilon[20 * i]:.1f} to {epsilon[20 * i + 19]:.1f}" for i in range(5)]
    table(["", *fifths, "correlation with epsilon", "with size"], rows)


def main() -> None:
    print("# Figures that need no training\n")
    print(f"Made by `python benchmarks/figures.py` on {datetime.now(UTC):%Y-%m-%d}. The game: 100 clients,")
    print("levels U(0.01, 12), privacy weights U(0, 1), 600 records each, T = 30, K = 20 (but in Figure 6).")
    print("One seed.\n")
    game = game_of(20)
    mean_field(game)
    worth(game)
    costs()
    budget_use(game)
    sampling()


if __name__ == "__main__":
    main()
