"""The contract that every method keeps; a new method is tested by having its row in the table."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from discretion import budgets
from discretion.accounting import certify
from discretion.errors import ConfigError
from discretion.ledger import Ledger
from discretion.methods import METHODS, Method, find, make_plan
from discretion.plan import Plan
from discretion.population import Population
from discretion.train import Order, State, Updates, next_state, train

SETTINGS = {"rounds": 6, "rate": 0.2, "clip": 0.8}


@pytest.fixture(scope="module")
def population() -> Population:
    return Population.of(budgets.draw("groups:1,3,6", 30, np.random.default_rng(0)), 1e-4, 10)


@pytest.fixture(scope="module", params=METHODS)
def method(request: pytest.FixtureRequest) -> Method:
    return METHODS[request.param]


@pytest.fixture(scope="module")
def plan(method: Method, population: Population) -> Plan:
    return planned(method, population)


def planned(method: Method, population: Population) -> Plan:
    return make_plan(method.name, population, {k: v for k, v in SETTINGS.items() if k in method.parameters})


class Zeros:
    """Clients whose true update is zero, and that remember the largest clip-sized update asked."""

    def __init__(self, size: int) -> None:
        self.size = size

    def updates(self, order: Order) -> Iterator[Updates]:
        yield Updates(order.clients, np.zeros((len(order.clients), self.size), np.float32))


class Drifting:
    """Clients that pull the model to their own number."""

    def updates(self, order: Order) -> Iterator[Updates]:
        pull = np.sin(order.clients[:, None] + np.arange(len(order.model)))
        yield Updates(order.clients, (pull - order.model).astype(np.float32))


def private(method: Method) -> bool:
    return method.unit != "none"


def test_planning_twice_gives_the_same_plan(method: Method, population: Population, plan: Plan) -> None:
    assert planned(method, population).digest() == plan.digest()
    assert plan.method == method.name
    assert plan.rounds == SETTINGS["rounds"]


def test_the_plan_survives_json(plan: Plan) -> None:
    again = Plan.from_json(plan.to_json())
    assert again.to_json() == plan.to_json()
    assert again.digest() == plan.digest()


def test_it_certifies_for_everybody_or_says_that_it_protects_nobody(
    method: Method, population: Population, plan: Plan
) -> None:
    certificate = certify(plan, population)
    if private(method):
        certificate.require(plan)
        assert (certificate.spent <= population.epsilon).all()
        assert np.max(certificate.spent / population.epsilon) > 0.995  # the budget is there to be used
    else:
        assert certificate.promises_nothing


def test_spending_starts_at_nothing_and_never_falls(
    method: Method, population: Population, plan: Plan
) -> None:
    spending = certify(plan, population).spending
    assert (spending.epsilon[:, 0] == 0).all()
    if private(method):
        assert (np.diff(spending.epsilon, axis=1) >= 0).all()


def test_one_phase_of_many_rounds_costs_what_many_phases_of_one_cost(
    method: Method, population: Population, plan: Plan
) -> None:
    single = tuple(replace(p, rounds=1) for p in plan.phases for _ in range(p.rounds))
    apart = certify(replace(plan, phases=single), population)
    np.testing.assert_array_equal(apart.spent, certify(plan, population).spent)


def test_with_a_fifth_less_noise_it_no_longer_certifies(
    method: Method, population: Population, plan: Plan
) -> None:
    if private(method):
        less = replace(plan, phases=tuple(replace(p, noise=0.8 * p.noise) for p in plan.phases))
        assert len(certify(less, population).overspent) > 0


def test_zero_updates_come_out_as_the_planned_noise(plan: Plan) -> None:
    size = 20_000
    state = State.start(np.zeros(size, np.float32))
    phase = plan.phases[0]
    moved = next_state(plan, Zeros(size), state, run="r", seed=5).model
    expected = np.sqrt(np.sum((phase.weight * phase.noise) ** 2))
    assert moved.std() == pytest.approx(expected, rel=0.03)


def test_interrupted_and_resumed_it_ends_with_the_same_model_and_the_certified_cost(
    method: Method, population: Population, plan: Plan, tmp_path: Path
) -> None:
    certificate = certify(plan, population)

    def go(name: str, stop_after: int) -> State:
        last = State.start(np.zeros(7, np.float32))
        for part in (stop_after, plan.rounds):
            with Ledger(tmp_path / name, population) as ledger:
                rounds = train(
                    plan, certificate, Drifting(), ledger, last, run="r", seed=3, accept_no_privacy=True
                )
                for last in rounds:
                    if last.round == part < plan.rounds:
                        break  # kept, but never committed
        with Ledger(tmp_path / name, population) as ledger:
            np.testing.assert_array_equal(ledger.spent(), certificate.spent)
        return last

    whole, broken = go("whole", plan.rounds), go("broken", 2)
    assert whole.model.tobytes() == broken.model.tobytes()


def test_a_public_client_breaks_nothing(method: Method, population: Population) -> None:
    epsilon = population.epsilon.copy()
    epsilon[3] = np.inf
    mixed = replace(population, epsilon=epsilon)
    if private(method):
        made = planned(method, mixed)
        certify(made, mixed).require(made)


def test_a_single_client_equal_budgets_or_only_public_clients_break_nothing(method: Method) -> None:
    if private(method):
        for epsilon in ([2.0], [2.0] * 5, [np.inf] * 3):
            clients = Population.of(epsilon, 1e-4)
            made = planned(method, clients)
            certify(made, clients).require(made)


def test_generous_clients_are_heard_more_than_strict_ones(population: Population) -> None:
    strict, generous = population.epsilon == 1, population.epsilon == 6
    by_clip = planned(find("idp_fedavg"), population).phases[0]
    assert by_clip.clip[generous].min() > by_clip.clip[strict].max()
    assert by_clip.clip.mean() == pytest.approx(SETTINGS["clip"])
    by_rate = planned(find("idp_fedavg_sampling"), population).phases[0]
    assert by_rate.rate[generous].min() > by_rate.rate[strict].max()
    assert by_rate.rate.mean() == pytest.approx(SETTINGS["rate"], rel=1e-3)


def test_individual_budgets_need_less_noise_than_the_strictest(population: Population) -> None:
    noise = {
        name: float(planned(METHODS[name], population).phases[0].noise[0])
        for name in ("fedavg", "dp_fedavg", "idp_fedavg", "idp_fedavg_sampling")
    }
    assert noise["fedavg"] == 0 < noise["idp_fedavg_sampling"] < noise["dp_fedavg"]
    assert noise["idp_fedavg"] < noise["dp_fedavg"]


def test_budgets_far_apart_break_nothing(method: Method) -> None:
    if private(method):
        clients = Population.of([0.5, 10.0, 1e4], 1e-5)
        made = planned(method, clients)
        certify(made, clients).require(made)
        assert made.phases[0].rate.mean() <= SETTINGS["rate"] * 1.001


def test_settings_that_cannot_be_are_refused(method: Method, population: Population) -> None:
    for change in ({"rate": 0.0}, {"rate": 1.5}, {"rounds": 0}, {"clip": 0.0}):
        wrong = {k: v for k, v in (SETTINGS | change).items() if k in method.parameters}
        if set(change) <= set(wrong):
            with pytest.raises(ConfigError):
                make_plan(method.name, population, wrong)


def test_unknown_methods_and_parameters_name_the_nearest(population: Population) -> None:
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
    source = Path(__file__).parent.parent / "src" / "discretion" / "methods"
    for path in source.glob("*.py"):
        assert len(path.read_text().splitlines()) <= 150
