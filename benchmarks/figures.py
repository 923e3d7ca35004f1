"""Figures of the papers that need no training, as tables and pictures: the game of Yuan and Wang (mean field,
welfare, cost, use of a round's budget), how adaptive sampling draws, how Kiani et al. spend, and whom Xu,
Zhang and Huang select.

Run: python benchmarks/figures.py > results/figures.md; pictures go to results/figures/
"""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from costates import by_costates

from discretion.accounting import certify
from discretion.accounting.certificate import Spending
from discretion.arrays import Floats
from discretion.methods import make_plan, pldp_sampling, privacy_aware
from discretion.methods.solvers import cohorts
from discretion.methods.solvers.incentives import Game, equilibrium, social_optimum, welfare
from discretion.plan import budgets
from discretion.plan.plan import Accounting
from discretion.plan.population import Population
from discretion.report.chart import Chart, Series, Style, linear, rounds
from discretion.report.picture import HEIGHT, draw
from discretion.report.plan_page import selection_chart
from discretion.tasks.partitions import varied_sizes

CLIENTS, ROUNDS = 100, 30
REWARDS = (1.0, 5.0, 10.0, 20.0)
ROUNDS_SHOWN = (0, 1, 2, 5, 10, 20, 30)
PICTURES = Path(__file__).parents[1] / "results" / "figures"


def game_of(cohort: int, seed: int = 1) -> Game:
    """The paper's: levels U(0.01, 12), privacy weights U(0, 1), 600 records each."""
    random = np.random.default_rng(seed)
    levels, weights = random.uniform(0.01, 12, CLIENTS), random.uniform(0, 1, CLIENTS)
    return Game(levels, weights, ROUNDS, cohort)


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
        costates = equilibrium(game, reward, by_costates, 1.0, tolerance=1e-3, iterations=50)
        ours = f"{found.iterations}, {'yes' if found.converged else 'no'}"
        theirs = f"{costates.iterations}, {'yes' if costates.converged else 'no'}"
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
        every = (social_optimum(game, offer), found.rho, kept, np.full_like(found.rho, game.rho_low))
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
        by_level = cohorts.inclusion(found.rho, game.cohort)
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


SPENDERS = {"spend_as_you_go": "spend as you go", "idp_fedavg": "IDP-FedAvg", "dp_fedavg": "DP-FedAvg"}
MODES: dict[Accounting, str] = {"tight": "tight mode", "paper": "paper mode"}


def picture(name: str, title: str, charts: dict[str, Chart]) -> None:
    (PICTURES / name).write_text(draw(title, charts), encoding="utf-8")
    print(f"![{title}](figures/{name})\n")


def spending_of(method: str, accounting: Accounting, population: Population) -> Spending:
    given = {"rounds": 25, "rate": 0.9, "clip": 1.0, "accounting": accounting}
    return certify(make_plan(method, population, given), population).spending


def spending() -> None:
    print("## Kiani et al., Figure 2: true epsilon (by PLD) spent until a round, by budget\n")
    print(
        "100 clients, budgets 10, 20 and 30 (34, 43 and 23 %), delta 1e-5, T = 25, q = 0.9. DP-FedAvg\n"
        "treats all alike, as budgets of 10. Against one other client, who knows its\n"
        "own share of the noise. Paper mode leaves some of each budget unspent.\n"
    )
    epsilon = budgets.draw("10-20-30", CLIENTS, np.random.default_rng(0))
    population = Population.of(epsilon, 1e-5, np.full(CLIENTS, 600))
    shown, rows = (5, 10, 12, 13, 15, 20, 25), []
    for accounting, mode in MODES.items():
        lines: list[Series] = []
        for dash, (method, name) in zip(("solid", "dash", "dot"), SPENDERS.items(), strict=True):
            found = spending_of(method, accounting, population)
            for hue, (budget, spent) in enumerate(zip(found.budget, found.epsilon, strict=True)):
                at = np.searchsorted(found.rounds, shown)
                rows.append([mode, name, f"{budget:g}", *(f"{spent[k]:.2f}" for k in at)])
                if method != "dp_fedavg" or hue == 0:
                    label = f"all, {name}" if method == "dp_fedavg" else f"budget {budget:g}, {name}"
                    colour = "--method-none" if method == "dp_fedavg" else f"--method-{hue + 1}"
                    at_round = [f"{value:.1f}" for value in spent]
                    look = Style(colour, "", dash)
                    lines.append(Series(label, found.rounds, spent.tolist(), look, shown=at_round))
        title = f"Epsilon spent, {mode} (solid: spend as you go, dashed: IDP-FedAvg)"
        highest = max(max(line.y) for line in lines)
        chart = Chart(tuple(lines), rounds(25, 6), linear("Epsilon", 0.0, 1.05 * highest, 6), HEIGHT)
        picture(f"spending-{accounting}.svg", title, {"": chart})
    table(["mode", "method", "budget", *(f"round {t}" for t in shown)], rows)


def selection() -> None:
    print("## Xu, Zhang and Huang, Figure 3: whom privacy-aware selection draws\n")
    print(
        "100 clients, epsilon U(0, 1), delta 1e-5, sizes as U(0.5, 1.5) of 60,000 records, r = 0.1. The\n"
        "weights eta D are not printed in the paper; in tight mode noise is for 24 rounds of 2 steps. A\n"
        "dot's colour is its chance of a draw: violet where it is small, ochre where it is largest.\n"
    )
    random = np.random.default_rng(4)
    epsilon = np.sort(budgets.draw("uniform:0,1", CLIENTS, random))
    size = varied_sizes(60_000, CLIENTS, random)
    population, rows = Population.of(epsilon, 1e-5, size), []
    for accounting, mode in MODES.items():
        drawing = privacy_aware.PlannedDraws(population, 24, 10 / CLIENTS, 2, 0.1, accounting)
        panels = {f"weight {weight:,.0f}": drawing.probabilities(weight) for weight in (2.2e6, 1.5e4)} | {
            "unbiased": size / size.sum()
        }
        title = f"Chance of a draw by budget and records (vertical), {mode}"
        charts = {name: selection_chart(population, chance, name) for name, chance in panels.items()}
        picture(f"selection-{accounting}.svg", title, charts)
        for name, p in panels.items():
            fifths = [f"{100 * part.sum():.1f} %" for part in np.split(p, 5)]
            about = [f"{np.corrcoef(p, x)[0, 1]:+.2f}" for x in (epsilon, size)]
            rows.append([f"{mode}, {name}", *fifths, *about])
    fifths = [f"epsilon {epsilon[20 * i]:.2f} to {epsilon[20 * i + 19]:.2f}" for i in range(5)]
    table(["", *fifths, "correlation with epsilon", "with size"], rows)


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    print("# Figures that need no training\n")
    print(
        f"Made by `python benchmarks/figures.py` on {datetime.now(UTC):%Y-%m-%d}. The game: 100 clients,\n"
        "levels U(0.01, 12), privacy weights U(0, 1), 600 records each, T = 30, K = 20 but in Figure 6;\n"
        "one seed.\n"
    )
    game = game_of(20)
    mean_field(game)
    worth(game)
    costs()
    budget_use(game)
    sampling()
    spending()
    selection()


if __name__ == "__main__":
    main()
