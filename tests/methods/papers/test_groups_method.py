"""Xu, Hu and Kotevska: what `gdpfed` and its kin plan in the settings of Table I."""

from functools import cache
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.stats import binom

from discretion.accounting import Certificate, Pld, certify, fixed_size
from discretion.arrays import Floats
from discretion.methods import make_plan
from discretion.methods.papers.opacus import Opacus
from discretion.methods.papers.xu_hu import TABLE_1, TABLE_3, Setting, theorem_1
from discretion.plan.plan import Accounting, Plan
from discretion.plan.population import Population
from discretion.plan.steps import Steps
from support.formulas import KEPT, cohort_of, objective, opacus_multiplier

NAMES = pytest.mark.parametrize("name", TABLE_1)
LOCAL_STEPS = {"FMNIST": 5, "SVHN": 25, "Shakespeare": 30, "CIFAR-10": 5}


@cache
def people(name: str) -> Population:
    setting = TABLE_1[name]
    return Population.of(np.repeat(setting.epsilon, setting.clients // 3), setting.clients**-1.1)


@cache
def planned(method: str, name: str, accounting: Accounting) -> Plan:
    setting = TABLE_1[name]
    shared = {"rounds": setting.rounds, "rate": setting.rate, "clip": setting.clip}
    return make_plan(method, people(name), {**shared, "accounting": accounting})


def of_groups(name: str) -> np.ndarray:
    """A client of each group."""
    return np.arange(3) * (TABLE_1[name].clients // 3)


def certified(method: str, name: str, accounting: Accounting) -> Certificate:
    return certify(planned(method, name, accounting), people(name))


def variances(plan: Plan, setting: Setting) -> np.ndarray:
    return (plan.phases[0].noise / setting.clip) ** 2


def noise_to_signal(plan: Plan, setting: Setting) -> float:
    """In units of (C / (q n))², read off the plan."""
    phase = plan.phases[0]
    gain = (phase.weight[phase.pool] * phase.rate * phase.clip / setting.clip).sum()
    return float(((phase.weight * phase.noise / setting.clip) ** 2).sum() / gain**2 * cohort_of(setting) ** 2)


@pytest.mark.parametrize("name", TABLE_3)
def test_table_3(name: str) -> None:
    """GDPFed to within 0.01; GDPFed+ at our rates, which are nearly the published ones, to within 3 %."""
    setting, (equal, optimal) = TABLE_1[name], TABLE_3[name]
    assert variances(planned("gdpfed", name, "paper"), setting) == pytest.approx(equal, abs=0.01)
    for method in ("gdpfed_opc", "gdpfed_plus"):
        assert variances(planned(method, name, "paper"), setting) == pytest.approx(optimal, rel=0.03)
    strictest = planned("dp_fedavg", name, "paper")
    assert variances(strictest, setting) == pytest.approx(equal[:1], abs=0.01)


RATES = {
    "FMNIST": [0.63, 1.83, 3.54],
    "SVHN": [1.57, 4.58, 8.85],
    "Shakespeare": [3.17, 9.21, 17.62],
    "CIFAR-10": [3.57, 9.59, 16.83],
}


@NAMES
@pytest.mark.parametrize("accounting", ["paper", "tight"])
def test_rates_of_table_1(name: str, accounting: Accounting) -> None:
    """In per cent, as computed from Problem 1; the published ones are within 10 %, but for Shakespeare."""
    for method in ("gdpfed_opc", "gdpfed_plus"):
        rates = planned(method, name, accounting).phases[0].rate[of_groups(name)]
        # in paper mode a whole number of each group is drawn
        near = 0.006 if accounting == "tight" else 100 * 0.51 * len(RATES[name]) / TABLE_1[name].clients
        assert 100 * rates == pytest.approx(RATES[name], abs=near)
        if name != "Shakespeare":
            assert TABLE_1[name].rates == pytest.approx(rates, rel=0.11)
    equal = planned("gdpfed", name, accounting).phases[0].rate
    assert equal == pytest.approx(TABLE_1[name].rate, rel=0.01 if accounting == "paper" else 1e-12)


def test_clients_asked_of_the_strict_group() -> None:
    """On CIFAR-10 "14 clients from the strict group under 3:2:1, compared to only 7 under 2:2:2"."""
    setting, asked = TABLE_1["CIFAR-10"], []
    for sizes in ([200, 200, 200], [300, 200, 100]):
        clients = Population.of(np.repeat(setting.epsilon, sizes), setting.delta[0])
        settings = {"rounds": setting.rounds, "rate": setting.rate, "clip": setting.clip}
        phase = make_plan("gdpfed_plus", clients, settings).phases[0]
        asked.append(round(phase.rate[0] * sizes[0]))
    assert asked == [7, 14]


@NAMES
def test_a_solver_does_not_move_on_the_printed_objective(name: str) -> None:
    """Section 3: it is nearly a constant, so SLSQP ends where it began, at equal rates."""
    setting = TABLE_1[name]

    def value(drawn: Floats) -> float:
        noise = theorem_1(setting.epsilon, setting.delta, drawn / (setting.clients / 3), setting.rounds)
        return objective(drawn, noise, 0.1, LOCAL_STEPS[name], cohort_of(setting), False)

    start: Floats = np.full(3, cohort_of(setting) / 3)
    whole: Any = {"type": "eq", "fun": lambda drawn: drawn.sum() - cohort_of(setting)}
    found = minimize(value, start, method="SLSQP", bounds=[(1e-3, None)] * 3, constraints=whole)
    assert found.success and found.x == pytest.approx(start)


AT_LEAST = {  # of the published noise, at equal rates and at the published ones (4.1)
    "FMNIST": ([2.04, 7.54, 15.4], [2.06, 7.65, 14.5]),
    "CIFAR-10": ([5.5, 24.3, 55.8], [9.6, 24.8, 46.6]),
}


@pytest.mark.parametrize("name", AT_LEAST)
@pytest.mark.parametrize("which", [0, 1])
def test_the_certificate_in_paper_mode_is_no_less_than_what_is_lost_for_sure(name: str, which: int) -> None:
    """A fixed number of clients costs several budgets: between this bound and the certificate's."""
    setting, method = TABLE_1[name], ("gdpfed", "gdpfed_plus")[which]
    plan, who = planned(method, name, "paper"), of_groups(name)
    assert plan.sampling == "fixed_size"
    rate, sigma = plan.phases[0].rate[who], np.sqrt(variances(plan, setting))
    least = fixed_size.at_least(rate, sigma, setting.rounds, setting.delta)
    assert least == pytest.approx(AT_LEAST[name][which], rel=0.025)
    certificate = certified(method, name, "paper")
    assert (certificate.spent[who] >= least).all()
    assert (least > 2.7 * setting.epsilon).all()
    assert len(certificate.overspent) == setting.clients


@NAMES
@pytest.mark.parametrize("method", ["gdpfed", "gdpfed_opc", "gdpfed_plus", "pfa", "idp_fedavg_sampling"])
def test_tight_mode_keeps_every_budget_and_uses_it(name: str, method: str) -> None:
    certificate = certified(method, name, "tight")
    certificate.require(planned(method, name, "tight"))
    assert certificate.share.min() > 0.995
    assert planned(method, name, "tight").sampling == "poisson"


PUBLISHED = {  # noise to signal by Rényi: one noise, GDPFed (4.5); and in one pool by PLD
    "FMNIST": (2.25, 3.68, 0.63),
    "SVHN": (12.9, 16.6, 1.90),
    "Shakespeare": (16.8, 21.4, 2.36),
    "CIFAR-10": (3.52, 4.97, 0.75),
}


@NAMES
def test_one_pool_is_less_noisy_than_groups(name: str) -> None:
    """Section 4: with PLD on both sides, 2.2 to 2.3 times, against GDPFed+ with inverse-variance weights."""
    setting = TABLE_1[name]
    found = [
        noise_to_signal(planned(method, name, accounting), setting)
        for method, accounting in (
            ("dp_fedavg", "paper"),
            ("gdpfed", "paper"),
            ("idp_fedavg_sampling", "tight"),
        )
    ]
    assert found == pytest.approx(PUBLISHED[name], rel=9e-3)
    plus = noise_to_signal(planned("gdpfed_plus", name, "tight"), setting)
    assert 2.1 < plus / found[2] < 2.4
    # tight mode is never noisier than paper mode
    assert plus < noise_to_signal(planned("gdpfed_plus", name, "paper"), setting)
    assert noise_to_signal(planned("gdpfed", name, "tight"), setting) < found[1]


def test_weights_and_what_is_kept() -> None:
    """4.5: published weights move the model by a third (GDPFed) of a mean update; ours by all of it."""
    setting = TABLE_1["FMNIST"]
    gains = {}
    for accounting in ("paper", "tight"):
        phase = planned("gdpfed", "FMNIST", accounting).phases[0]
        gains[accounting] = (phase.weight[phase.pool] * phase.rate).sum()
    assert gains == pytest.approx({"paper": 1 / 3, "tight": 1.0})
    for accounting, by in (("paper", "largest"), ("tight", "last_step")):
        combine = planned("gdpfed_plus", "FMNIST", accounting).combine
        assert combine.rule == "top_k" and combine.by == by
        assert combine.keep == pytest.approx(KEPT)
    people = Population.of([0.5, 1.5, 3.0] * 4, 1e-4)
    options = {"rounds": 5, "rate": 0.5, "clip": 1.0, "kept_low": 0.1, "kept_high": 0.5}
    assert make_plan("gdpfed_plus", people, options).combine.keep == pytest.approx((0.1, 0.3, 0.5))
    assert cohort_of(setting) == 120


@pytest.mark.parametrize(("name", "known", "exact"), [("FMNIST", 1.05, 0.25), ("CIFAR-10", 6.8, 5.29)])
def test_shares_of_those_who_happen_to_come_are_too_little_noise(
    name: str, known: float, exact: float
) -> None:
    """4.10: shares of C² sigma² / r_m where coins decide who comes, at quantiles of how many do.

    Known by Rényi, roughly: 1.19 and 7.09 here. By PLD FMNIST's strictest group stays within its 0.5.
    """
    setting = TABLE_1[name]
    rate, members = setting.rates[:1], setting.clients // 3
    sigma = opacus_multiplier(setting.epsilon[:1], setting.delta[:1], rate, setting.rounds)
    come = binom.ppf((np.arange(setting.rounds) + 0.5) / setting.rounds, members, rate)
    noise = sigma * np.sqrt(come / (rate * members))
    steps = Steps(np.full((setting.rounds, 1), rate), noise[:, None], np.ones(setting.rounds, dtype=np.int64))
    assert Opacus().epsilon(steps, setting.delta[:1]) == pytest.approx(known, rel=0.15)
    assert Pld().epsilon(steps, setting.delta[:1]) == pytest.approx(exact, rel=0.01)
    # here every client of a group holds a share, whoever comes
    plan = planned("gdpfed", name, "tight")
    assert plan.noise_at == "secure_sum"
    assert plan.phases[0].holders.tolist() == [members] * setting.clients
