"""The contract that every method keeps in both modes; a new one is tested by having its row in the table."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from discretion import budgets
from discretion.accounting import Certificate, certify
from discretion.errors import BudgetError, ConfigError
from discretion.ledger import Ledger
from discretion.methods import METHODS, Method, find, make_plan
from discretion.orders import Order, Statistics, Updates
from discretion.pick import Reading
from discretion.plan import Plan
from discretion.population import Population
from discretion.release import merged, noisy_sum
from discretion.train import State, next_state, train

SETTINGS = {"rounds": 6, "rate": 0.2, "clip": 0.8}
POPULATIONS = {
    "usual": Population.of(budgets.draw("groups:1,3,6", 30, np.random.default_rng(0)), 1e-4, 10),
    "one public": Population.of([1.0, 3.0, np.inf, 6.0, 3.0, 1.0], 1e-4, [5, 10, 20, 10, 5, 10]),
    "single": Population.of([2.0], 1e-4),
    "equal": Population.of([2.0] * 5, 1e-4),
    "all public": Population.of([np.inf] * 3, 1e-4),
    "far apart": Population.of([0.5, 10.0, 1e3], 1e-5),
}

READERS = ("power_of_choice", "aocs", "fed_cbs", "delta")
# name, parameters: every method in both modes, and the readers with statistics that they pay for
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in METHODS},
    **{
        f"{name}, paper": (name, {"accounting": "paper"})
        for name in METHODS
        if "accounting" in METHODS[name].parameters
    },
    **{f"{name}, paid": (name, {"read_share": 0.2}) for name in READERS},
    "pldp_sampling, output": ("pldp_sampling", {"perturb": "output"}),
}


@cache
def planned(case: str, population: str = "usual") -> Plan:
    name, more = CASES[case]
    settings = {k: v for k, v in SETTINGS.items() if k in METHODS[name].parameters}
    return make_plan(name, POPULATIONS[population], settings | more)


@cache
def certified(case: str, population: str = "usual") -> Certificate:
    return certify(planned(case, population), POPULATIONS[population])


def promises(case: str) -> bool:
    """Whether this is held to its clients' budgets."""
    return not case.endswith("paper") and case != "fedavg" and case not in READERS


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[case for case in CASES if promises(case)])
def tight(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=METHODS)
def method(request: pytest.FixtureRequest) -> Method:
    return METHODS[request.param]


class Stub:
    """Clients that pull the model to their own number, or nowhere; noisy where that is asked of them."""

    def __init__(self, pull: bool = True, statistics: bool = True) -> None:
        self.pull, self.may_be_read = pull, statistics

    def updates(self, order: Order) -> Iterator[Updates]:
        size = len(order.model)
        change = np.sin(order.clients[:, None] + np.arange(size)) - order.model
        change = change * self.pull
        if (noisy := order.noisy) is not None:
            for i in range(len(order.clients)):
                source = noisy.source(i)
                for _ in range(noisy.steps):
                    change[i] += noisy_sum(np.zeros(size), float(noisy.noise[i]), source)
        yield Updates(order.clients, change.astype(np.float32))

    def statistics(self, order: Order, reading: Reading) -> Statistics:
        assert self.may_be_read
        numbers = {"class_balance": 4, "diversity": 2}.get(reading.rule, 1)
        value = np.abs(np.sin(order.clients[:, None] + np.arange(numbers)))
        return Statistics(np.arange(len(value)), value)


# the plan


def test_planning_twice_gives_the_same_plan(case: str) -> None:
    plan = planned(case)
    assert planned.__wrapped__(case).digest() == plan.digest()
    name, more = CASES[case]
    assert plan.method == name
    assert plan.rounds == SETTINGS["rounds"]
    assert plan.accounting == more.get("accounting", "tight")
    assert set(plan.parameters) == set(METHODS[name].parameters)


def test_the_plan_survives_json(case: str) -> None:
    plan = planned(case)
    again = Plan.from_json(plan.to_json())
    assert again.to_json() == plan.to_json()
    assert again.digest() == plan.digest()


# the budget


def test_it_certifies_for_everybody_and_uses_the_budget(tight: str) -> None:
    certificate, budget = certified(tight), POPULATIONS["usual"].epsilon
    certificate.require(planned(tight))
    assert (certificate.spent <= budget).all()
    assert np.max(certificate.spent / budget) > 0.995  # it is there to be used
    steps = planned(tight).steps()
    absent = ((steps.rate * steps.count) == 0).all(axis=0)
    assert (certificate.spent[absent] == 0).all()
    assert (certificate.spent[~absent] > 0).all()


@pytest.mark.parametrize("case", ["fedavg", *sorted(READERS)])
def test_who_reads_raw_data_or_adds_no_noise_says_so(case: str) -> None:
    certificate = certified(case)
    assert certificate.promises_nothing
    assert (certificate.reads == "nothing") == (case == "fedavg")
    with pytest.raises(BudgetError, match="no privacy"):
        certificate.require(planned(case))
    certificate.require(planned(case), accept_no_privacy=True)


def test_statistics_that_are_paid_for_leave_less_for_training() -> None:
    for name in READERS:
        paid, raw = planned(f"{name}, paid"), planned(name)
        assert all((phase.read > 0).all() for phase in paid.phases if phase.read is not None)
        assert all((phase.read == 0).all() for phase in raw.phases if phase.read is not None)
        assert (paid.phases[0].noise > raw.phases[0].noise).all()


@pytest.mark.parametrize("case", [case for case in CASES if case.endswith("paper")])
def test_in_paper_mode_it_says_what_it_truly_costs(case: str) -> None:
    plan, certificate = planned(case), certified(case)
    assert not np.isnan(certificate.spent).any()
    assert certificate.promises_nothing == (CASES[case][0] in READERS)
    if len(certificate.overspent):
        with pytest.raises(BudgetError):
            certificate.require(plan)
    certificate.require(plan, accept_no_privacy=True)


def test_published_noise_that_does_not_suffice_is_found_out() -> None:
    """Fixed numbers charged as coins, levels for a round without an end, a share that another knows."""
    for name in ("gdpfed", "gdpfed_opc", "gdpfed_plus", "pfa", "fedpcs", "random"):
        assert len(certified(f"{name}, paper").overspent) > 0, name
    for name in ("dp_fedavg", "idp_fedavg", "privacy_aware", "pldp_sampling"):
        assert len(certified(f"{name}, paper").overspent) == 0, name


def test_spending_starts_at_nothing_and_never_falls(case: str) -> None:
    spending = certified(case).spending
    assert (spending.epsilon[:, 0] == 0).all()
    assert (spending.epsilon[:, 1:] >= spending.epsilon[:, :-1]).all()


def test_one_phase_of_many_rounds_costs_what_many_phases_of_one_cost(case: str) -> None:
    plan = planned(case)
    single = tuple(replace(p, rounds=1) for p in plan.phases for _ in range(p.rounds))
    many = tuple(replace(p, rounds=3) for p in plan.phases)
    apart = tuple(p for phase in many for p in [replace(phase, rounds=1)] * 3)
    for one, other in ((plan.phases, single), (many, apart)):
        a, b = (replace(plan, phases=phases).steps() for phases in (one, other))
        for found, expected in ((a.rate, b.rate), (a.multiplier, b.multiplier), (a.count, b.count)):
            np.testing.assert_array_equal(found, expected)


def test_with_a_fifth_less_noise_it_no_longer_certifies(tight: str) -> None:
    plan = planned(tight)
    less = tuple(replace(p, noise=0.8 * p.noise) for p in plan.phases)
    assert len(certify(replace(plan, phases=less), POPULATIONS["usual"]).overspent) > 0
    if plan.reading is not None:
        less = tuple(replace(p, read=0.8 * p.read) for p in plan.phases if p.read is not None)
        assert len(certify(replace(plan, phases=less), POPULATIONS["usual"]).overspent) > 0


# the run


def test_zero_updates_come_out_as_the_planned_noise(case: str) -> None:
    """Pool by pool, measured to 5 % in the first round; readers keep all that they ask."""
    size, plan = 6_000, planned(case)
    if plan.reading is not None:
        plan = replace(plan, reading=replace(plan.reading, choose=30))
    plan = replace(plan, combine=replace(plan.combine, rule="sum", keep=(), memory=0, by="largest"))
    phase = plan.phases[0]
    releases = phase.releases if phase.turns is not None else np.ones(len(phase.noise))
    pools = [np.arange(len(phase.noise))] if merged(plan, phase) else np.arange(len(phase.noise))[:, None]
    for pool in pools:
        weight = np.zeros(len(phase.noise))
        weight[pool] = phase.weight[pool]
        alone = replace(plan, phases=(replace(phase, weight=weight),))
        state = State.start(np.zeros(size, np.float32))
        moved = next_state(alone, Stub(pull=False), state, run="r", seed=5).model
        # no client is clipped here: what was noisy before is far above the clip of one record's gradient
        expected = np.sqrt(np.sum(releases * (weight * phase.noise) ** 2))
        assert moved.std() == pytest.approx(expected, rel=0.05)


def test_interrupted_and_resumed_it_ends_with_the_same_model_and_the_certified_cost(
    case: str, tmp_path: Path
) -> None:
    plan, certificate, population = planned(case), certified(case), POPULATIONS["usual"]

    def go(name: str, stop_after: int) -> State:
        last = State.start(np.zeros(7, np.float32))
        for part in (stop_after, plan.rounds):
            with Ledger(tmp_path / name, population) as ledger:
                rounds = train(
                    *(plan, certificate, Stub(statistics=plan.reading is not None), ledger, last),
                    run="r",
                    seed=3,
                    accept_no_privacy=True,
                )
                for last in rounds:
                    if last.round == part < plan.rounds:
                        break  # kept, but never committed
                if last.round == plan.rounds:
                    spent = ledger.spent()
        if (
            plan.sampling == "fixed_size"
        ):  # the ledger charges without sampling; a certificate may know better
            assert (spent >= certificate.spent).all()
        else:
            np.testing.assert_array_equal(spent, certificate.spent)
        return last

    whole, broken = go("whole", plan.rounds), go("broken", 2)
    assert whole.model.tobytes() == broken.model.tobytes()
    assert np.isfinite(whole.model).all() and whole.model.any()


@pytest.mark.parametrize("population", [name for name in POPULATIONS if name != "usual"])
def test_any_population_can_be_planned_certified_and_trained(case: str, population: str) -> None:
    plan, certificate = planned(case, population), certified(case, population)
    certificate.require(plan, accept_no_privacy=not promises(case))
    assert not np.isnan(certificate.spent).any()
    state = State.start(np.zeros(7, np.float32))
    for _ in range(2):
        state = next_state(plan, Stub(), state, run="r", seed=1)
    assert np.isfinite(state.model).all()


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
            wrong = {k: v for k, v in (SETTINGS | change).items() if k in method.parameters}
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


def test_every_method_says_what_it_is(method: Method) -> None:
    for text in (method.title, method.protects, method.reads, method.idea, method.paper):
        assert text
    assert method.plan.__doc__ and all(name in method.plan.__doc__ for name in method.parameters)
    plan = planned(method.name)
    assert method.unit in (plan.unit, "none")
    assert ("raw" in method.reads) == (plan.reading is not None)


def test_no_method_is_long() -> None:
    source = Path(__file__).parent.parent / "src" / "discretion" / "methods"
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
    many_rounds = make_plan("privacy_aware", POPULATIONS["usual"], SETTINGS | {"rounds": 300})
    turns = sum(phase.turns for phase in many_rounds.phases)  # drawn, so that few would show nothing
    assert turns[generous].mean() > turns[strict].mean()


def test_individual_budgets_need_less_noise_than_the_strictest() -> None:
    noise = {name: float(planned(name).phases[0].noise[0]) for name in METHODS}
    assert noise["fedavg"] == 0 < noise["idp_fedavg_sampling"] < noise["dp_fedavg"]
    assert noise["idp_fedavg"] < noise["dp_fedavg"]


def test_no_more_clients_are_asked_than_was_said() -> None:
    for case in CASES:  # a cohort of fedpcs_adaptive is as large as a round's budget allows
        if promises(case) and not case.endswith("paid") and case != "fedpcs_adaptive":
            for population in ("usual", "far apart"):
                asked = SETTINGS["rate"] * len(POPULATIONS[population])
                assert planned(case, population).cohort <= max(asked, 1.0) * 1.001, case
