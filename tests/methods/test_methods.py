"""The contract that every method keeps in both modes; a new one is tested by being registered."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from discretion.accounting import Certificate, certify
from discretion.errors import ConfigError
from discretion.methods import METHODS, Method, find, make_plan
from discretion.plan.plan import Plan
from discretion.plan.population import Population
from discretion.testing import CLAUSES, POPULATIONS, Trial
from discretion.testing.contract import SETTINGS, check, clauses_of

READERS = ("power_of_choice", "aocs", "fed_cbs", "delta")
ORDER = (
    *("fedavg", "concert", "concert_records", "dp_fedavg", "adaptive_clipping", "idp_fedavg"),
    *(
        "idp_fedavg_sampling",
        "spend_as_you_go",
        "gdpfed",
        "gdpfed_opc",
        "gdpfed_plus",
        "pfa",
        "privacy_aware",
    ),
    *("unbiased", "unbiased_compensated", "power_of_choice", "fedpcs", "fedpcs_adaptive", "random", "aocs"),
    *("fed_cbs", "delta", "pldp_sampling"),
)
# name, parameters: every method in both modes, and the readers with statistics that they pay for
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in METHODS},
    **{
        f"{name}, paper": (name, {"accounting": "paper"})
        for name in METHODS
        if "accounting" in METHODS[name].parameters
    },
    **{f"{name}, paid": (name, {"read_share": 0.2}) for name in READERS},
    "unbiased_compensated, epsilon": ("unbiased_compensated", {"by": "epsilon"}),
    "pldp_sampling, output": ("pldp_sampling", {"perturb": "output"}),
}


@cache
def trial(case: str, population: str = "usual") -> Trial:
    name, more = CASES[case]
    return Trial(METHODS[name], more, POPULATIONS[population])


def planned(case: str, population: str = "usual") -> Plan:
    return trial(case, population).plan


def certified(case: str) -> Certificate:
    return trial(case).certificate


@pytest.fixture(params=METHODS)
def method(request: pytest.FixtureRequest) -> Method:
    return METHODS[request.param]


# the contract


@pytest.mark.parametrize(
    ("case", "clause"), [(case, clause) for case in CASES for clause in clauses_of(trial(case))]
)
def test_it_keeps_the_contract(case: str, clause: str) -> None:
    check(trial(case), clause)


@pytest.mark.parametrize("population", [name for name in POPULATIONS if name != "usual"])
@pytest.mark.parametrize("case", CASES)
def test_any_population_can_be_planned_certified_and_trained(case: str, population: str) -> None:
    check(trial(case, population), "any_population_can_be_planned_and_trained")


def test_every_clause_is_asked_of_the_methods_that_it_is_about() -> None:
    asked = {case: set(clauses_of(trial(case))) for case in CASES}
    assert set().union(*asked.values()) == set(CLAUSES)
    nobody = {case for case in CASES if "no_privacy_is_said" in asked[case]}
    assert nobody == {"fedavg", *READERS}
    for case in CASES:
        held = case not in nobody and not case.endswith("paper")
        assert ("every_budget_is_kept_and_used" in asked[case]) == held
        assert ("paper_mode_says_its_true_cost" in asked[case]) == case.endswith("paper")
        assert ("it_says_what_it_is" in asked[case]) == (case in METHODS)


def test_methods_stand_in_their_order() -> None:
    assert tuple(METHODS) == ORDER


def test_statistics_that_are_paid_for_leave_less_for_training() -> None:
    for name in READERS:
        paid, raw = planned(f"{name}, paid"), planned(name)
        assert all((phase.read > 0).all() for phase in paid.phases if phase.read is not None)
        assert all((phase.read == 0).all() for phase in raw.phases if phase.read is not None)
        assert (paid.phases[0].noise > raw.phases[0].noise).all()


def test_published_noise_that_does_not_suffice_is_found_out() -> None:
    """Fixed numbers charged as coins, levels for a round without an end, a share that another knows."""
    for name in ("gdpfed", "gdpfed_opc", "gdpfed_plus", "pfa", "fedpcs", "random"):
        assert len(certified(f"{name}, paper").overspent) > 0, name
    for name in ("dp_fedavg", "idp_fedavg", "privacy_aware", "pldp_sampling"):
        assert len(certified(f"{name}, paper").overspent) == 0, name


def test_each_group_starts_to_spend_in_a_round_of_its_own() -> None:
    """The transition rounds 7, 13 and 19 of Kiani et al.'s Table 10, one saving rate for all."""
    people = Population(("a", "b", "c"), np.array([10.0, 20.0, 30.0]), np.full(3, 1e-5), np.full(3, 9))
    settings = {"rounds": 25, "rate": 0.9, "clip": 1.0, "saving_low": 0.5, "saving_high": 0.5}
    plan = make_plan("spend_as_you_go", people, settings | {"transition_low": 0.26, "transition_high": 0.74})
    rates = np.array([phase.rate for phase in plan.phases])
    assert [int(np.argmax(rate > 0.5)) + 1 for rate in rates.T] == [7, 13, 19]
    spent = certify(plan, people).spent / people.epsilon
    assert (spent <= 1).all() and spent.min() > 0.99


# settings


WRONG: list[dict[str, Any]] = [
    *({"rate": 0.0}, {"rate": 1.5}, {"rate": np.nan}, {"rounds": 0}, {"rounds": 2.5}, {"clip": 0.0}),
    *({"clip": np.inf}, {"batch": 0.0}, {"batch": 1.1}, {"steps": 0}, {"groups": 0}, {"memory": 0}),
    *(
        {"quantile": 1.0},
        {"clip_learning_rate": 0.0},
        {"bit_noise": -1.0},
        {"transition_low": 1.0},
        {"transition_high": -0.1},
    ),
    *({"saving_low": 0.0}, {"saving_low": 0.9, "saving_high": 0.5}, {"read_share": 1.0}, {"candidates": 0.5}),
    *({"by": "x"}, {"perturb": "x"}, {"accounting": "x"}, {"tradeoff": -1.0}, {"reward": -1.0}),
    *({"budget_start": 0.0}, {"rounds": "6"}, {"average": 1.0}, {"average": -0.1}),
]


def test_settings_that_cannot_be_are_refused(method: Method) -> None:
    for change in WRONG:
        if set(change) <= set(method.parameters):
            wrong = {k: v for k, v in {**SETTINGS, **change}.items() if k in method.parameters}
            with pytest.raises(ConfigError):
                make_plan(method.name, POPULATIONS["usual"], wrong)


def test_every_wrong_setting_is_one_of_some_method() -> None:
    for change in WRONG:
        assert any(set(change) <= set(method.parameters) for method in METHODS.values()), change


def test_unknown_methods_and_parameters_name_the_nearest() -> None:
    population = POPULATIONS["usual"]
    with pytest.raises(ConfigError, match="Did you mean 'dp_fedavg'"):
        find("dp_fedavgg")
    with pytest.raises(ConfigError, match="Known: fedavg"):
        find("xyz")
    with pytest.raises(ConfigError, match="no parameter 'clipp'. Did you mean 'clip'"):
        make_plan("dp_fedavg", population, {**SETTINGS, "clipp": 1})
    with pytest.raises(ConfigError, match="no parameter 'zzz'"):
        make_plan("dp_fedavg", population, {**SETTINGS, "zzz": 1})
    with pytest.raises(ConfigError, match="needs rate, clip"):
        make_plan("dp_fedavg", population, {"rounds": 3})


def test_no_method_is_long() -> None:
    source = Path(__file__).parents[2] / "src" / "discretion" / "methods"
    for path in source.glob("*.py"):
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 150, path.name


# what budgets buy


def test_generous_clients_are_heard_more_than_strict_ones() -> None:
    epsilon = POPULATIONS["usual"].epsilon
    strict, generous = epsilon == 1, epsilon == 6
    by_clip = planned("idp_fedavg").phases[0]
    assert by_clip.clip[generous].min() > by_clip.clip[strict].max()
    assert by_clip.clip.mean() == pytest.approx(SETTINGS["clip"])
    by_rate = planned("idp_fedavg_sampling").phases[0]
    assert by_rate.rate[generous].min() > by_rate.rate[strict].max()
    assert by_rate.rate.mean() == pytest.approx(SETTINGS["rate"], rel=1e-3)
    many_rounds = make_plan("privacy_aware", POPULATIONS["usual"], {**SETTINGS, "rounds": 300})
    rounds = [phase.turns for phase in many_rounds.phases if phase.turns is not None]
    turns = np.sum(rounds, axis=0)  # drawn, so that few would show nothing
    assert turns[generous].mean() > turns[strict].mean()


def test_individual_budgets_need_less_noise_than_the_strictest() -> None:
    noise = {name: float(planned(name).phases[0].noise[0]) for name in METHODS}
    assert noise["fedavg"] == 0 < noise["idp_fedavg_sampling"] < noise["dp_fedavg"]
    assert noise["idp_fedavg"] < noise["dp_fedavg"]


def test_no_more_clients_are_asked_than_was_said() -> None:
    for case in CASES:  # a cohort of fedpcs_adaptive is as large as a round's budget allows
        if trial(case).protects and not case.endswith("paid") and case != "fedpcs_adaptive":
            for population in ("usual", "far apart"):
                asked = SETTINGS["rate"] * len(POPULATIONS[population])
                assert planned(case, population).cohort <= max(asked, 1.0) * 1.001, case
