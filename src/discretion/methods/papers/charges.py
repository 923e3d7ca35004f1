"""What each paper charges, what Rényi says and what PLD says: a line for each setting of the five papers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from discretion.accounting.papers import (
    adaptive_sampling,
    fixed_size,
    groups,
    incentives,
    selection,
    time_adaptive,
)
from discretion.accounting.papers.opacus import Opacus
from discretion.accounting.pld import Pld
from discretion.accounting.renyi import Renyi
from discretion.accounting.solve import noise_multiplier
from discretion.accounting.spent import Accountant
from discretion.population import Floats
from discretion.steps import Steps

Run = Literal["coins", "fixed number", "all", "turns seen"]
RUNS: dict[Run, str] = {
    "coins": "everybody tosses a secret coin: Rényi and PLD bound epsilon from above",
    "fixed number": "so many are drawn without replacement: PLD bounds epsilon from below, Rényi from above",
    "all": "nobody is sampled: PLD is exact",
    "turns seen": "somebody is drawn now and then, which is seen: PLD is exact",
}
Verdict = Literal["kept", "broken", "unproven"]

TIGHT_TO = 2e-3  # of PLD, relative


@dataclass(frozen=True)
class Comparison:
    """One client under one paper's noise. Multipliers are standard deviation over sensitivity by one clip.

    What would be needed is for the same rate with secret coins, or for the expected number of turns drawn
    beforehand. Of noise that changes over rounds it is the same shape, smaller or larger, and all three
    multipliers are quadratic means.
    """

    paper: str
    source: str  # of the noise, in the paper
    setting: str
    run: Run  # which sampling the epsilons are for
    epsilon: float  # promised by the paper
    delta: float
    multiplier: float  # by the paper
    epsilon_renyi: float  # of that noise
    epsilon_pld: float
    needed_renyi: float  # multiplier that keeps the promise
    needed_pld: float

    @property
    def ratio(self) -> float:
        """How many times the noise that PLD asks for."""
        return self.multiplier / self.needed_pld

    @property
    def verdict(self) -> Verdict:
        """Whether the paper's noise keeps its promise."""
        if self.epsilon_pld > self.epsilon * (1 + TIGHT_TO):
            return "broken"
        upper = self.epsilon_renyi if self.run == "fixed number" else self.epsilon_pld
        return "kept" if upper <= self.epsilon * (1 + TIGHT_TO) else "unproven"


@dataclass(frozen=True, eq=False)
class _Case:
    """Clients of one setting, (K,) each, or a single number for all."""

    paper: str
    source: str
    run: Run
    settings: Sequence[str]
    epsilon: Floats
    delta: float
    rate: Floats | float
    rounds: int
    multiplier: Floats

    def rows(self) -> list[Comparison]:
        delta, rate = (np.broadcast_to(x, self.epsilon.shape) for x in (self.delta, self.rate))
        if self.run == "fixed number":
            spent = [
                bound(rate, self.multiplier, self.rounds, delta)
                for bound in (fixed_size.at_most, fixed_size.at_least)
            ]
        elif self.run == "turns seen":
            draws = np.full(len(rate), self.rounds)
            spent = [
                bound(rate, draws, self.multiplier, delta)
                for bound in (adaptive_sampling.epsilon_renyi, adaptive_sampling.epsilon_exact)
            ]
        else:
            steps = Steps.same(rate, self.multiplier, self.rounds)
            spent = [accountant.epsilon(steps, delta) for accountant in (Renyi(), Pld())]
        needed = [self._needed(rate, delta, accountant) for accountant in (Renyi(), Pld())]
        return self.table(*spent, *needed)

    def _needed(self, rate: Floats, delta: Floats, accountant: Accountant) -> Floats:
        if self.run != "turns seen":
            return noise_multiplier(self.epsilon, delta, rate, self.rounds, accountant)
        turns = np.maximum(1, np.round(rate * self.rounds)).astype(int)
        one = np.ones(1)
        return np.array(
            [
                noise_multiplier(e * one, d * one, one, n, accountant)[0]
                for e, d, n in zip(self.epsilon, delta, turns.tolist(), strict=True)
            ]
        )

    def table(self, *columns: Floats) -> list[Comparison]:
        lines = np.column_stack([self.multiplier, *columns]).tolist()
        return [
            Comparison(self.paper, self.source, setting, self.run, epsilon, self.delta, *line)
            for setting, epsilon, line in zip(self.settings, self.epsilon.tolist(), lines, strict=True)
        ]


def comparison() -> list[Comparison]:
    """All five papers, in order. Takes some seconds."""
    cases = [*_selection(), *_incentives(), *_equal_rounds()]
    later = [*_adaptive_sampling(), *_groups()]
    return [
        *(row for case in cases for row in case.rows()),
        *_saving(),
        *(row for case in later for row in case.rows()),
    ]


def _selection() -> list[_Case]:
    settings: list[tuple[float, int, list[float], Run]] = [
        (0.213, 50, [0.5, 1.0, 10.0], "fixed number"),
        (0.1, 50, [1.0], "fixed number"),
        (0.1, 50, [1.0], "coins"),
        (0.1, 250, [10.0], "fixed number"),
        (0.1, 1, [12.0, 14.0], "fixed number"),
    ]
    cases = []
    for rate, steps, budgets, run in settings:
        epsilon = np.array(budgets)
        one = np.ones(len(epsilon))
        noise = selection.multiplier(epsilon, 1e-5 * one, rate * one, steps)
        text = f"records, rate {rate:g}, {steps} step{'s' if steps > 1 else ''}"
        cases.append(
            _Case("Xu, Zhang and Huang", "(7)", run, [text] * len(one), epsilon, 1e-5, rate, steps, noise)
        )
    return cases


def _incentives() -> list[_Case]:
    delta, printed = np.array([1e-5]), "Proposition 1"
    epsilon = np.array([1.0, 10.0, 30.0])
    noise = incentives.multiplier(incentives.from_epsilon(epsilon, np.full(3, 1e-5)))
    cases = [
        _Case(
            "Yuan and Wang", printed, "all", ["rho from epsilon, one round"] * 3, epsilon, 1e-5, 1.0, 1, noise
        )
    ]
    for rho, rounds, size, text in (
        (12.0, 1, 1, "rho 12, one round"),
        (0.01, 30, 1, "rho 0.01 in each of 30 rounds"),
        (0.01, 1, 600, "rho 0.01, one round, clipped as printed, 600 records"),
    ):
        promised = incentives.to_epsilon(np.array([rho * rounds]), delta)
        spent = incentives.true_rho(np.array([rho]), np.array([float(size)]))
        noise = incentives.multiplier(spent)
        cases.append(_Case("Yuan and Wang", printed, "all", [text], promised, 1e-5, 1.0, rounds, noise))
    return cases


BUDGETS = np.array([10.0, 20.0, 30.0])  # of Kiani et al. on FMNIST
ROUNDS, RATE = 25, np.full(3, 0.9)
LAYERS = 8
SAVING = time_adaptive.Saving(ROUNDS, RATE, np.array([0.5, 0.6, 0.7]), np.full(3, 13))


def _equal_rounds() -> list[_Case]:
    noise = noise_multiplier(BUDGETS, np.full(3, 1e-5), RATE, ROUNDS, Opacus())
    return [
        _Case("Kiani et al.", source, "coins", [text] * 3, BUDGETS, 1e-5, RATE, ROUNDS, multiplier)
        for source, text, multiplier in (
            ("Algorithm 5", "rate 0.9, 25 equal rounds", noise),
            ("section 5", f"the same, each of {LAYERS} layers clipped at c", noise / np.sqrt(LAYERS)),
        )
    ]


def _saving() -> list[Comparison]:
    delta = np.full(3, 1e-5)
    steps = time_adaptive.set_privacy_params(SAVING, BUDGETS, delta)
    noise = np.sqrt((steps.multiplier**2).mean(axis=0))
    text = [f"rate {q:g} until round 13, then 0.9, 25 rounds" for q in SAVING.saving_rate]
    case = _Case("Kiani et al.", "Algorithm 1", "coins", text, BUDGETS, 1e-5, RATE, ROUNDS, noise)
    accountants: tuple[Accountant, ...] = (Opacus(), Pld())
    spent = [accountant.epsilon(steps, delta) for accountant in accountants]
    needed = [noise * _scale(steps, delta, accountant) for accountant in accountants]
    return case.table(*spent, *needed)


def _scale(steps: Steps, delta: Floats, accountant: Accountant) -> Floats:
    """(N,) the factor for all multipliers that just uses up the budgets, by secants on logarithms."""

    def excess(log_scale: Floats) -> Floats:
        scaled = Steps(steps.rate, steps.multiplier * np.exp(log_scale), steps.count)
        return np.asarray(np.log(accountant.epsilon(scaled, delta) / BUDGETS))

    before, at_before = np.zeros(len(BUDGETS)), excess(np.zeros(len(BUDGETS)))
    now = at_before  # as if epsilon were one over the noise
    while np.abs(at_now := excess(now)).max() >= 1e-4:
        step = at_now * (now - before) / (at_now - at_before)
        before, at_before, now = now, at_now, now - step
    return np.exp(now)


def _adaptive_sampling() -> list[_Case]:
    cases = []
    each = np.array([5e-6])  # delta' and delta''' alike
    delta = float(adaptive_sampling.total_delta(each, each)[0])
    for epsilon, turns in ((0.5, 5.0), (1.0, 10.0), (5.0, 0.001)):
        draws = 500
        rate = np.array([turns / draws])
        bound = adaptive_sampling.turns_bound(rate, draws, each)
        noise = adaptive_sampling.output_multiplier(np.array([epsilon]), each, bound)
        text = [f"{turns:g} of {draws} draws expected"]
        budget = np.array([epsilon])
        cases.append(
            _Case("personalised LDP", "Theorem 1", "turns seen", text, budget, delta, rate, draws, noise)
        )
    return cases


def _groups() -> list[_Case]:
    cases = []
    small = groups.TABLE_1["FMNIST"]
    delta = float(small.delta[0])
    for rate, budgets in ((0.02, small.epsilon), (0.01, [3.0]), (0.005, [3.0]), (0.001, [0.5])):
        epsilon = np.array(budgets)
        one = np.ones(len(epsilon))
        noise = groups.theorem_1(epsilon, delta * one, rate * one, small.rounds)
        text = [f"FMNIST, rate {rate:g}, {small.rounds} rounds"] * len(one)
        cases.append(
            _Case(
                "Xu, Hu and Kotevska", "Theorem 1", "coins", text, epsilon, delta, rate, small.rounds, noise
            )
        )
    for name, published in groups.TABLE_3.items():
        setting = groups.TABLE_1[name]
        for rates, variance in zip((setting.equal_rates, setting.rates), published, strict=True):
            text = [f"{name}, rate {q:g}, {setting.rounds} rounds" for q in rates]
            cases.append(
                _Case(
                    "Xu, Hu and Kotevska",
                    "Table III",
                    "fixed number",
                    text,
                    setting.epsilon,
                    float(setting.delta[0]),
                    rates,
                    setting.rounds,
                    np.sqrt(variance),
                )
            )
    return cases
