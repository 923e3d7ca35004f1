"""Epsilon by each paper, by Rényi accounting and by PLD: a line for each setting of the five papers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np

from discretion.accounting import fixed_size
from discretion.accounting.accountant import Accountant
from discretion.accounting.pld import Pld
from discretion.accounting.renyi import Renyi
from discretion.accounting.solve import noise_multiplier
from discretion.arrays import Floats
from discretion.methods.papers import appendix, kiani, xu_hu, xu_zhang, yuan_wang
from discretion.methods.papers.opacus import Opacus
from discretion.plan.steps import Steps

Run = Literal["coins", "fixed number", "all", "turns seen"]
RUNS: dict[Run, str] = {
    "coins": "everybody tosses a secret coin: Rényi and PLD bound epsilon from above",
    "fixed number": "so many are drawn without replacement: PLD bounds epsilon from below, Rényi from above",
    "all": "nobody is sampled: PLD is exact",
    "turns seen": "somebody is drawn now and then, which is seen: PLD is exact",
}
Verdict = Literal["kept", "broken", "unproven"]

TIGHT_TO = 2e-3  # of PLD, relative
ACCOUNTANTS: tuple[Accountant, ...] = (Renyi(), Pld())


@dataclass(frozen=True)
class Comparison:
    """One client under one paper's noise. A multiplier is standard deviation over sensitivity by one clip.

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
        """Return the paper's noise over the noise that PLD asks for."""
        return self.multiplier / self.needed_pld

    @property
    def verdict(self) -> Verdict:
        """Return whether the paper's noise keeps its promise."""
        if self.epsilon_pld > self.epsilon * (1 + TIGHT_TO):
            return "broken"
        upper = self.epsilon_renyi if self.run == "fixed number" else self.epsilon_pld
        return "kept" if upper <= self.epsilon * (1 + TIGHT_TO) else "unproven"


def comparison() -> list[Comparison]:
    """Return the lines of all five papers, in order; takes some seconds."""
    papers = (_selection, _incentives, _equal_rounds, _saving, _adaptive_sampling, _groups)
    return [line for lines in papers for line in lines()]


def _compare(
    paper: str,
    source: str,
    run: Run,
    settings: Sequence[str] | str,
    epsilon: Floats,
    delta: float,
    rate: Floats | float,
    rounds: int,
    multiplier: Floats,
) -> Iterator[Comparison]:
    """Return the lines of (K,) clients; a single setting or rate is that of all."""
    counts = np.full(len(epsilon), rounds)
    deltas, rates = (np.broadcast_to(x, epsilon.shape) for x in (delta, rate))
    if run == "fixed number":
        bounds = (fixed_size.at_most, fixed_size.at_least)
        spent = [bound(rates, multiplier, rounds, deltas) for bound in bounds]
    elif run == "turns seen":
        seen = (appendix.epsilon_renyi, appendix.epsilon_exact)
        spent = [bound(rates, counts, multiplier, deltas) for bound in seen]
        rates, counts = np.ones(len(rates)), np.maximum(1, np.round(rates * counts)).astype(int)
    else:
        steps = Steps.same(rates, multiplier, rounds)
        spent = [accountant.epsilon(steps, deltas) for accountant in ACCOUNTANTS]
    needed = [noise_multiplier(epsilon, deltas, rates, counts, each) for each in ACCOUNTANTS]
    texts = np.broadcast_to(settings, epsilon.shape).tolist()
    return _lines(paper, source, run, texts, delta, epsilon, multiplier, *spent, *needed)


def _lines(
    paper: str, source: str, run: Run, settings: list[str], delta: float, *columns: Floats
) -> Iterator[Comparison]:
    for setting, (epsilon, *found) in zip(settings, np.column_stack(columns).tolist(), strict=True):
        yield Comparison(paper, source, setting, run, epsilon, delta, *found)


def _selection() -> Iterator[Comparison]:
    settings: list[tuple[float, int, list[float], Run]] = [
        (0.213, 50, [0.5, 1.0, 10.0], "fixed number"),
        (0.1, 50, [1.0], "fixed number"),
        (0.1, 50, [1.0], "coins"),
        (0.1, 250, [10.0], "fixed number"),
        (0.1, 1, [12.0, 14.0], "fixed number"),
    ]
    for rate, steps, budgets, run in settings:
        epsilon = np.array(budgets)
        one = np.ones(len(epsilon))
        noise = xu_zhang.multiplier(epsilon, 1e-5 * one, rate * one, steps)
        text = f"records, rate {rate:g}, {steps} step{'s' if steps > 1 else ''}"
        yield from _compare("Xu, Zhang and Huang", "(7)", run, text, epsilon, 1e-5, rate, steps, noise)


def _incentives() -> Iterator[Comparison]:
    case = partial(_compare, "Yuan and Wang", "Proposition 1", "all")
    delta, epsilon = np.array([1e-5]), np.array([1.0, 10.0, 30.0])
    noise = yuan_wang.multiplier(yuan_wang.from_epsilon(epsilon, np.full(3, 1e-5)))
    yield from case("rho from epsilon, one round", epsilon, 1e-5, 1.0, 1, noise)
    for rho, rounds, size, text in (
        (12.0, 1, 1, "rho 12, one round"),
        (0.01, 30, 1, "rho 0.01 in each of 30 rounds"),
        (0.01, 1, 600, "rho 0.01, one round, clipped as printed, 600 records"),
    ):
        promised = yuan_wang.to_epsilon(np.array([rho * rounds]), delta)
        spent = yuan_wang.true_rho(np.array([rho]), np.array([float(size)]))
        yield from case(text, promised, 1e-5, 1.0, rounds, yuan_wang.multiplier(spent))


BUDGETS = np.array([10.0, 20.0, 30.0])  # of Kiani et al. on FMNIST
ROUNDS, RATE = 25, np.full(3, 0.9)
LAYERS = 8
SAVING = kiani.Saving(ROUNDS, RATE, np.array([0.5, 0.6, 0.7]), np.full(3, 13))


def _equal_rounds() -> Iterator[Comparison]:
    noise = noise_multiplier(BUDGETS, np.full(3, 1e-5), RATE, ROUNDS, Opacus())
    for source, text, multiplier in (
        ("Algorithm 5", "rate 0.9, 25 equal rounds", noise),
        ("section 5", f"the same, each of {LAYERS} layers clipped at c", noise / np.sqrt(LAYERS)),
    ):
        yield from _compare("Kiani et al.", source, "coins", text, BUDGETS, 1e-5, RATE, ROUNDS, multiplier)


def _saving() -> Iterator[Comparison]:
    delta = np.full(3, 1e-5)
    steps = kiani.set_privacy_params(SAVING, BUDGETS, delta)
    noise = np.sqrt((steps.multiplier**2).mean(axis=0))
    accountants: tuple[Accountant, ...] = (Opacus(), Pld())
    spent = [accountant.epsilon(steps, delta) for accountant in accountants]
    needed = [noise * _scale(steps, delta, accountant) for accountant in accountants]
    texts = [f"rate {rate:g} until round 13, then 0.9, 25 rounds" for rate in SAVING.saving_rate]
    return _lines("Kiani et al.", "Algorithm 1", "coins", texts, 1e-5, BUDGETS, noise, *spent, *needed)


def _scale(steps: Steps, delta: Floats, accountant: Accountant) -> Floats:
    """Return (N,) factors on all multipliers that just use up the budgets, by secants on logarithms."""

    def excess(log_scale: Floats) -> Floats:
        scaled = replace(steps, multiplier=steps.multiplier * np.exp(log_scale))
        return np.asarray(np.log(accountant.epsilon(scaled, delta) / BUDGETS))

    before, at_before = np.zeros(len(BUDGETS)), excess(np.zeros(len(BUDGETS)))
    now = at_before  # as if epsilon were one over the noise
    while np.abs(at_now := excess(now)).max() >= 1e-4:
        step = at_now * (now - before) / (at_now - at_before)
        before, at_before, now = now, at_now, now - step
    return np.exp(now)


def _adaptive_sampling() -> Iterator[Comparison]:
    case = partial(_compare, "personalised LDP", "Theorem 1", "turns seen")
    each, draws = np.array([5e-6]), 500  # delta' and delta''' alike
    delta = float(appendix.total_delta(each, each)[0])
    for epsilon, turns in ((0.5, 5.0), (1.0, 10.0), (5.0, 0.001)):
        budget, rate = np.array([epsilon]), np.array([turns / draws])
        noise = appendix.output_multiplier(budget, each, appendix.turns_bound(rate, draws, each))
        text = f"{turns:g} of {draws} draws expected"
        yield from case(text, budget, delta, rate, draws, noise)


def _groups() -> Iterator[Comparison]:
    paper, small = "Xu, Hu and Kotevska", xu_hu.TABLE_1["FMNIST"]
    delta, rounds = float(small.delta[0]), small.rounds
    for rate, budgets in ((0.02, small.epsilon), (0.01, [3.0]), (0.005, [3.0]), (0.001, [0.5])):
        epsilon = np.array(budgets)
        one = np.ones(len(epsilon))
        noise = xu_hu.theorem_1(epsilon, delta * one, rate * one, rounds)
        text = f"FMNIST, rate {rate:g}, {rounds} rounds"
        yield from _compare(paper, "Theorem 1", "coins", text, epsilon, delta, rate, rounds, noise)
    table = partial(_compare, paper, "Table III", "fixed number")
    for name, published in xu_hu.TABLE_3.items():
        setting = xu_hu.TABLE_1[name]
        delta, rounds = float(setting.delta[0]), setting.rounds
        for rates, variance in zip((setting.equal_rates, setting.rates), published, strict=True):
            texts = [f"{name}, rate {q:g}, {rounds} rounds" for q in rates]
            yield from table(texts, setting.epsilon, delta, rates, rounds, np.sqrt(variance))
