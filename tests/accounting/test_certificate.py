"""A certificate says what a plan spends, for whom, against whom; and stands for that plan alone."""

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as google
from hypothesis import given, settings
from hypothesis import strategies as st

from discretion.accounting import Certificate, Pld, Renyi, certify, fixed_size, noise_multiplier, spent
from discretion.accounting.accountant import TIGHT
from discretion.accounting.certificate import FORMAT, MOST_POINTS, Spending
from discretion.arrays import Floats
from discretion.errors import BudgetError, LedgerError, PlanError
from discretion.ledger.ledger import Ledger
from discretion.plan.combine import Combine
from discretion.plan.grid import Grid
from discretion.plan.phase import Phase
from discretion.plan.plan import ADVERSARIES, Adversary, NoiseAt, Plan
from discretion.plan.population import Population
from discretion.plan.selection_rules import Reading
from discretion.plan.steps import Steps
from discretion.training.loop import State, train
from discretion.training.orders import Order, Updates
from support.training_clients import UpdatesOnly


class Fixed:
    """An accountant with given answers."""

    name = "fixed"

    def __init__(self, epsilon: list[float]) -> None:
        self.answers = np.array(epsilon)

    def epsilon(self, steps: Steps, delta: np.ndarray) -> np.ndarray:
        return self.answers[: len(delta)]


def gaussian_plan(population: Population, rounds: int = 4, sigma: float = 10.0) -> Plan:
    """Everybody in every round: quick to account for."""
    everyone = np.ones(len(population))
    return Plan("made", population.client, (Phase.one_pool(rounds, everyone, everyone, sigma),))


def fitting(population: Population, rounds: int = 4) -> Plan:
    """The plan that uses the strictest budget whole."""
    sigma = noise_multiplier(
        population.epsilon.min(keepdims=True), population.delta.min(keepdims=True), np.ones(1), rounds
    )[0]
    return gaussian_plan(population, rounds, float(sigma))


# what is in it


def test_a_certificate_says_everything_about_the_promise() -> None:
    population = Population.of([2.0, 4.0, math.inf], [1e-5, 1e-6, 1e-5])
    plan = fitting(population)
    certificate = certify(plan, population)
    assert certificate.plan == plan.digest()
    assert certificate.population == population.digest()
    assert (certificate.method, certificate.rounds, certificate.clients) == ("made", 4, population.client)
    assert (certificate.unit, certificate.adjacency, certificate.noise_at) == (
        "client",
        "add_remove",
        "server",
    )
    assert certificate.accountant == "PLD"
    np.testing.assert_array_equal(certificate.budget, population.epsilon)
    np.testing.assert_array_equal(certificate.delta, population.delta)
    np.testing.assert_array_equal(certificate.spent, spent(plan, population.delta))
    assert set(certificate.epsilon) == {"public", "clients", "server"}
    np.testing.assert_array_equal(spent(plan, 1e-5), spent(plan, np.full(len(population), 1e-5)))


def test_every_epsilon_is_an_upper_bound_at_the_clients_own_delta() -> None:
    """Against a lower bound on the truth for the coins, clips and noise of the plan, by google's library."""
    population = Population.of([9.0, 9.0, 9.0], [1e-3, 1e-5, 1e-5])
    first = Phase(
        rounds=6,
        rate=np.array([0.5, 0.5, 0.2]),
        clip=np.array([1.0, 1.0, 2.0]),
        noise=np.array([2.0, 3.0]),
        pool=np.array([0, 0, 1]),
        weight=np.ones(2),
    )
    second = Phase.one_pool(4, np.full(3, 0.3), np.ones(3), 1.5)
    certificate = certify(Plan("made", population.client, (first, second)), population)

    def bound(client: list[tuple[float, float, int]], delta: float, upper: bool) -> float:
        total = None
        for rate, multiplier, rounds in client:
            step = google.from_gaussian_mechanism(
                multiplier,
                sampling_prob=rate,
                pessimistic_estimate=upper,
                use_connect_dots=upper,
                value_discretization_interval=4e-3,
            ).self_compose(rounds)
            total = step if total is None else total.compose(step)
        assert total is not None
        return float(total.get_epsilon_for_delta(delta))

    same = [(0.5, 2.0, 6), (0.3, 1.5, 4)]
    clients = [(same, 1e-3), (same, 1e-5), ([(0.2, 1.5, 6), (0.3, 1.5, 4)], 1e-5)]
    for name in ("public", "clients"):
        for found, client in zip(certificate.epsilon[name], clients, strict=True):
            assert bound(*client, upper=False) <= found <= 1.01 * bound(*client, upper=True)


def test_against_the_server_that_draws_the_noise_epsilon_is_infinite() -> None:
    population = Population.of([2.0, math.inf])
    assert np.isinf(certify(fitting(population), population).epsilon["server"]).all()


@pytest.mark.parametrize("promise", ADVERSARIES)
def test_the_budget_holds_against_whoever_is_promised(promise: Adversary) -> None:
    population = Population.of([2.0] * 10)
    plan = replace(fitting(population), noise_at="clients", promise=promise, colluding=3)
    certificate = certify(plan, population)
    assert (certificate.promise, certificate.colluding, certificate.noise_at) == (promise, 3, "clients")
    np.testing.assert_array_equal(certificate.spent, certificate.epsilon[promise])
    for name in ADVERSARIES:
        expected = Pld().epsilon(plan.steps(against=name), population.delta)
        np.testing.assert_array_equal(certificate.epsilon[name], expected)
    public, clients, server = (certificate.epsilon[name] for name in ADVERSARIES)
    assert (public < clients).all() and (clients < server).all() and np.isfinite(server).all()
    np.testing.assert_array_equal(certificate.spending.epsilon[:, -1], certificate.spent[:1])
    if promise == "public":
        certificate.require(plan)
    else:
        with pytest.raises(BudgetError, match="10 of 10 clients would overspend"):
            certificate.require(plan)


def test_a_certificate_says_how_many_may_drop_out() -> None:
    population = Population.of([2.0] * 10)
    plan = replace(fitting(population), noise_at="secure_sum", promise="server", dropout=0.2)
    certificate = certify(plan, population)
    assert certificate.dropout == Certificate.from_json(certificate.to_json()).dropout == 0.2
    # one of eight shares is known, where it was one of ten
    assert (certificate.spent > certify(replace(plan, dropout=0.0), population).spent).all()


def test_a_certificate_says_how_noise_is_drawn() -> None:
    population = Population.of([2.0] * 2)
    plan = fitting(population)
    simulated = certify(plan, population)
    assert simulated.randomness == "seeded" and not simulated.grid
    deployed = certify(replace(plan, randomness="cryptographic", grid=Grid(2.0**-10, 100)), population)
    assert deployed.randomness == "cryptographic" and deployed.grid
    again = Certificate.from_json(deployed.to_json())
    assert (again.randomness, again.grid) == (deployed.randomness, deployed.grid)


def test_another_accountant_is_named() -> None:
    population = Population.of([2.0, 2.0])
    plan = fitting(population)
    by_renyi = certify(plan, population, Renyi())
    assert by_renyi.accountant == "Rényi"
    assert (by_renyi.spent > certify(plan, population, Pld()).spent).all()


@pytest.mark.parametrize("client", [("a", "b", "c"), ("b", "a"), ("a",), ("a", "B")])
def test_plan_and_population_must_name_the_same_clients_in_the_same_order(client: tuple[str, ...]) -> None:
    count = len(client)
    other = Population(client, np.ones(count), np.full(count, 0.1), np.ones(count, dtype=int))
    plan = gaussian_plan(Population(("a", "b"), np.ones(2), np.full(2, 0.1), np.ones(2, dtype=int)))
    with pytest.raises(PlanError, match=f"different clients.*2 in the plan, {count} in the population"):
        certify(plan, other)


# the spending curve


@pytest.mark.parametrize("rounds", [1, 2, MOST_POINTS, MOST_POINTS + 1, 300])
def test_spending_starts_at_nothing_never_falls_and_ends_at_what_is_spent(rounds: int) -> None:
    population = Population.of([2.0, 4.0, 2.0, 8.0])
    plan = fitting(population, rounds)
    certificate = certify(plan, population)
    curve = certificate.spending
    assert curve.classes == ("ε 2", "ε 4", "ε 8")
    np.testing.assert_array_equal(curve.budget, [2.0, 4.0, 8.0])
    assert curve.rounds[0] == 0 and curve.rounds[1] == 1 and curve.rounds[-1] == rounds
    assert len(curve.rounds) == min(rounds, MOST_POINTS) + 1
    assert list(curve.rounds) == sorted(set(curve.rounds))
    assert curve.epsilon.shape == (3, len(curve.rounds))
    np.testing.assert_array_equal(curve.epsilon[:, 0], 0)
    assert (np.diff(curve.epsilon, axis=1) >= 0).all()
    np.testing.assert_allclose(curve.epsilon[:, -1], certificate.spent[[0, 1, 3]])


def test_spending_follows_the_client_of_a_class_that_spends_most() -> None:
    population = Population.of([2.0, 2.0, 4.0])
    clip = np.array([0.5, 1.0, 0.7])
    plan = Plan("made", population.client, (Phase.one_pool(4, np.ones(3), clip, 10.0),))
    certificate = certify(plan, population)
    np.testing.assert_array_equal(certificate.spending.epsilon[:, -1], certificate.spent[[1, 2]])


def test_the_share_spent_so_far() -> None:
    curve = Spending((0, 1, 3), ("a", "b"), np.array([2.0, math.inf]), np.array([[0, 1, 2], [0, 9, 9.0]]))
    assert [curve.share(done) for done in (0, 1, 2, 3)] == [0.0, 0.5, 1.0, 1.0]  # never too small
    nothing = replace(curve, epsilon=np.array([[0, math.inf, math.inf]] * 2))
    assert [nothing.share(done) for done in (0, 1, 3)] == [0.0, math.inf, math.inf]


def test_no_noise_for_public_clients_is_certified_without_a_murmur() -> None:
    population = Population.of([1.0, math.inf, math.inf])
    phase = replace(gaussian_plan(population).phases[0], clip=np.array([1.0, math.inf, math.inf]))
    apart = replace(phase, pool=np.array([0, 1, 1]), noise=np.repeat(phase.noise, 2), weight=np.ones(2))
    certificate = certify(Plan("made", population.client, (apart,)), population)
    assert certificate.spent[0] < 1 and np.isinf(certificate.spent[1:]).all()
    assert len(certificate.overspent) == 0 and not certificate.promises_nothing
    np.testing.assert_array_equal(certificate.spending.epsilon[1, 1:], math.inf)


# what it is good for


def test_require_accepts_the_plan_that_was_certified_and_no_other() -> None:
    population = Population.of([2.0, 4.0])
    plan = fitting(population)
    certificate = certify(plan, population)
    certificate.require(plan)
    certificate.require(Plan.from_json(plan.to_json()))
    more = replace(plan, phases=(replace(plan.phases[0], noise=plan.phases[0].noise * 2),))
    for accept in (False, True):
        with pytest.raises(PlanError, match="the plan was changed after it was certified. Plan again"):
            certificate.require(more, accept)


def test_require_refuses_who_overspends_by_the_least() -> None:
    population = Population.of([2.0, 4.0, 1.0])
    plan = gaussian_plan(population)
    at = [2.0, 4.0, 1.0]
    certify(plan, population, Fixed(at)).require(plan)
    for i in range(3):
        above = [math.nextafter(e, math.inf) if k == i else e for k, e in enumerate(at)]
        certificate = certify(plan, population, Fixed(above))
        assert certificate.overspent.tolist() == [i]
        with pytest.raises(BudgetError, match=f"made: 1 of 3 clients would overspend .*c{i}"):
            certificate.require(plan, accept_no_privacy=True)


def test_require_refuses_what_is_not_a_number() -> None:
    population = Population.of([2.0, math.inf])
    certificate = certify(gaussian_plan(population), population, Fixed([math.nan, math.nan]))
    assert certificate.overspent.tolist() == [0, 1] and not certificate.promises_nothing
    with pytest.raises(BudgetError):
        certificate.require(gaussian_plan(population), accept_no_privacy=True)


def test_the_message_names_the_first_and_the_worst() -> None:
    population = Population.of([2.0] * 7, 1e-4)
    plan = gaussian_plan(population)
    with pytest.raises(BudgetError) as caught:
        certify(plan, population, Fixed([2.1, 2.1, 2.1, 9.0, 2.1, 2.1, 2.1])).require(plan)
    assert "made: 7 of 7 clients would overspend (c0, c1, c2, c3, c4 …); worst is client c3" in str(
        caught.value
    )
    assert "epsilon 9 > budget 2 at delta 0.0001. Lower rounds or rate" in str(caught.value)
    with pytest.raises(BudgetError, match=r"\(c3\); worst is client c3: epsilon inf > budget 2"):
        certify(plan, population, Fixed([2.0] * 3 + [math.inf] + [1.0] * 3)).require(plan)


def test_no_privacy_for_anybody_must_be_accepted_aloud() -> None:
    population = Population.of([2.0, 4.0])
    plan = gaussian_plan(population, sigma=0.0)
    certificate = certify(plan, population)
    assert certificate.promises_nothing and certificate.overspent.tolist() == [0, 1]
    with pytest.raises(BudgetError, match="made gives no privacy.*accept_no_privacy to true"):
        certificate.require(plan)
    certificate.require(plan, accept_no_privacy=True)


def test_accepting_no_privacy_for_all_does_not_take_it_from_some() -> None:
    population = Population.of([2.0, 4.0])
    one = gaussian_plan(population).phases[0]
    apart = replace(one, pool=np.arange(2), noise=np.repeat(one.noise, 2), weight=np.ones(2))
    phase = replace(apart, clip=np.array([1.0, math.inf]))
    plan = Plan("made", population.client, (phase,), combine=Combine("top_k", (0.5, 0.5)))
    with pytest.raises(BudgetError, match="1 of 2 clients would overspend"):
        certify(plan, population).require(plan, accept_no_privacy=True)


def test_a_papers_own_noise_may_pass_budgets_where_that_is_accepted_aloud() -> None:
    population = Population.of([2.0, 400.0])
    tight = gaussian_plan(population, sigma=1.0)
    papers = replace(tight, accounting="paper")
    certificate = certify(papers, population)
    assert (certificate.accounting, certify(tight, population).accounting) == ("paper", "tight")
    np.testing.assert_array_equal(certificate.spent, certify(tight, population).spent)
    assert certificate.overspent.tolist() == [0]
    with pytest.raises(BudgetError, match="1 of 2 clients would overspend"):
        certificate.require(papers)
    certificate.require(papers, accept_no_privacy=True)
    with pytest.raises(BudgetError, match="1 of 2 clients would overspend"):
        certify(tight, population).require(tight, accept_no_privacy=True)
    with pytest.raises(PlanError, match="the plan was changed"):
        certificate.require(tight, accept_no_privacy=True)


def test_what_decides_who_trains_is_said() -> None:
    population = Population.of([2.0, 2.0])
    two: dict[str, Any] = {
        "clip": np.ones(2),
        "noise": np.full(2, 9.0),
        "weight": np.ones(2),
        "pool": np.arange(2),
    }
    phase = Phase(1, np.ones(2), **two, batch=np.full(2, 0.5), read=np.full(2, 9.0))
    plan = Plan("made", population.client, (phase,), noise_at="steps", reading=Reading("norm", 1, 1.0))
    assert certify(plan, population).reads == plan.reads == "the norm of the clients' gradients"
    again = Certificate.from_json(certify(plan, population).to_json())
    assert (again.reads, again.accounting) == (plan.reads, "tight")
    assert certify(gaussian_plan(population), population).reads == "nothing"


# a fixed number drawn


def drawn(rate: float, clients: int = 10, rounds: int = 30, **more: Any) -> tuple[Plan, Population]:
    population = Population.of([1.0] * clients)
    phase = Phase.one_pool(rounds, np.full(clients, rate), np.ones(clients), 8.0)
    kind = {"sampling": "fixed_size", "accounting": "paper", "colluding": 0, **more}
    return Plan("made", population.client, (phase,), **kind), population


def bound(rate: float, multiplier: float = 8.0, rounds: int = 30) -> float:
    one = np.ones(1)
    return float(fixed_size.at_most(rate * one, multiplier * one, rounds, 1e-5 * one)[0])


def test_a_fixed_number_costs_the_lesser_of_two_bounds() -> None:
    for rate in (0.1, 0.2):
        plan, population = drawn(rate)
        population = replace(population, delta=np.full(10, 1e-5))
        unsampled = spent(plan, population.delta)
        certificate = certify(plan, population)
        np.testing.assert_allclose(certificate.spent, np.minimum(unsampled, bound(rate)), rtol=1e-12)
        np.testing.assert_array_equal(certificate.epsilon["public"], certificate.spent)
        assert (certificate.spent < unsampled).all()
        low = fixed_size.at_least(np.full(1, rate), np.full(1, 8.0), 30, np.full(1, 1e-5))
        assert (certificate.spent >= low).all()


def test_a_number_that_is_fixed_is_whole() -> None:
    with pytest.raises(PlanError, match="sampling fixed_size needs"):
        drawn(0.16)


def test_who_draws_or_sees_who_was_drawn_gains_nothing_by_the_bound() -> None:
    """Against the server that draws the noise epsilon stays infinite, whoever is drawn."""
    plan, population = drawn(0.2)
    assert np.isinf(certify(plan, population).epsilon["server"]).all()
    served = certify(replace(plan, promise="server"), population)
    assert served.promises_nothing
    shares = replace(plan, noise_at="clients")
    tight = TIGHT.epsilon(shares.steps(against="server"), population.delta)
    np.testing.assert_array_equal(certify(shares, population).epsilon["server"], tight)


@pytest.mark.parametrize("noise_at", ["server", "secure_sum"])
def test_who_knows_that_it_was_left_out_knows_that_others_were_drawn(noise_at: NoiseAt) -> None:
    plan, population = drawn(0.2, noise_at=noise_at, colluding=2)
    population = replace(population, delta=np.full(10, 1e-5))
    certificate = certify(plan, population)
    multiplier = 8.0 * (math.sqrt(0.8) if noise_at == "secure_sum" else 1)
    assert certificate.epsilon["public"][0] == pytest.approx(bound(0.2), rel=1e-12)
    assert certificate.epsilon["clients"][0] == pytest.approx(bound(0.25, multiplier), rel=1e-12)
    np.testing.assert_array_equal(certificate.spent, certificate.epsilon["clients"])
    everyone = certify(replace(plan, colluding=9), population).epsilon["clients"]
    np.testing.assert_array_equal(everyone, spent(replace(plan, colluding=9), population.delta))


def test_without_a_clip_or_an_update_a_fixed_number_costs_all_or_nothing() -> None:
    plan, population = drawn(0.2)
    for clip, cost in ((0.0, 0.0), (math.inf, math.inf)):
        odd = replace(plan, phases=(replace(plan.phases[0], clip=np.full(10, clip)),))
        assert certify(odd, population).spent.tolist() == [cost] * 10
    twice = replace(plan, phases=plan.phases * 2)  # several phases: without amplification
    np.testing.assert_array_equal(certify(twice, population).spent, spent(twice, population.delta))


class Nothing(UpdatesOnly):
    """Clients whose updates are zero."""

    def updates(self, order: Order) -> Iterator[Updates]:
        yield Updates(order.clients, np.zeros((len(order.clients), 2), dtype=np.float32))


@pytest.mark.parametrize("change", [{"epsilon": np.array([50.0, 60.0])}, {"delta": np.array([0.5, 0.5])}])
def test_training_refuses_the_certificate_of_another_population(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    """Whoever changes budgets after certifying must certify again: the report shows the certificate."""
    population = Population.of([2.0, 4.0])
    plan = fitting(population)
    certificate = certify(plan, population)
    start = State.start(np.zeros(2, np.float32))
    with Ledger(tmp_path / "ledger.sqlite", replace(population, **change)) as ledger:
        with pytest.raises((PlanError, LedgerError), match="population"):
            next(train(plan, certificate, Nothing(), ledger, start, run="a", seed=1))
        assert ledger.states("a") == []


# JSON

epsilons = st.floats(0, allow_nan=False)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(epsilons, epsilons.filter(bool), st.floats(1e-300, 0.9)), min_size=1, max_size=5))
def test_json_and_back_is_exact(clients: list[tuple[float, float, float]]) -> None:
    answers, budgets, deltas = zip(*clients, strict=True)
    population = Population.of(list(budgets), list(deltas))
    with np.errstate(all="ignore"):
        certificate = certify(gaussian_plan(population), population, Fixed(list(answers)))
    text = certificate.to_json()
    again = Certificate.from_json(text)
    assert again.to_json() == text
    facts = ("plan", "population", "method", "unit", "adjacency", "noise_at", "rounds", "accountant")
    for name in (*facts, "promise", "colluding", "dropout", "randomness", "grid"):
        assert getattr(again, name) == getattr(certificate, name)
    assert again.clients == certificate.clients
    np.testing.assert_array_equal(again.budget, certificate.budget)
    np.testing.assert_array_equal(again.delta, certificate.delta)
    np.testing.assert_array_equal(again.spent, certificate.spent)
    assert set(again.epsilon) == set(certificate.epsilon)
    for name, values in certificate.epsilon.items():
        np.testing.assert_array_equal(again.epsilon[name], values)
    assert again.spending.rounds == certificate.spending.rounds
    assert again.spending.classes == certificate.spending.classes
    np.testing.assert_array_equal(again.spending.budget, certificate.spending.budget)
    np.testing.assert_array_equal(again.spending.epsilon, certificate.spending.epsilon)


def record() -> dict[str, Any]:
    population = Population.of([2.0, 4.0])
    return dict(json.loads(certify(gaussian_plan(population), population, Fixed([1.0, 1.0])).to_json()))


def test_json_has_facts_that_every_parser_reads() -> None:
    assert record()["format"] == FORMAT
    assert (record()["randomness"], record()["grid"]) == ("seeded", False)
    population = Population.of([2.0, 4.0])
    real = json.loads(certify(gaussian_plan(population), population).to_json())
    assert real["epsilon"]["server"] == ["inf", "inf"]


@pytest.mark.parametrize("key", [key for key in record() if key != "format"])
def test_a_certificate_with_a_part_missing_is_refused(key: str) -> None:
    broken = record()
    del broken[key]
    with pytest.raises(PlanError, match=f"not a Discretion certificate.*{key}"):
        Certificate.from_json(json.dumps(broken))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("format", "discretion-plan/2"),
        ("format", "discretion-certificate/2"),
        ("unit", "house"),
        ("adjacency", "far"),
        ("randomness", "lucky"),
        ("noise_at", "somewhere"),
        ("promise", "nobody"),
        ("colluding", None),
        ("spent", [1.0]),
        ("rounds", "many"),
        ("rounds", float("inf")),
        ("budget", ["much", 1.0]),
        ("budget", [1.0]),
        ("delta", [1e-5]),
        ("delta", [[1e-5], [1e-5]]),
        ("clients", ["c0"]),
        ("epsilon", {"public": [1.0, 1.0]}),
        ("epsilon", {"public": [1.0], "clients": [1.0], "server": ["inf"]}),
        ("epsilon", {"public": [], "clients": [], "server": []}),
        ("epsilon", {"public": 1.0, "clients": 1.0, "server": 1.0}),
        ("epsilon", []),
        ("spending", {}),
        ("spending", None),
        ("spending", {"rounds": [0, 1], "classes": ["a", "b"], "budget": [1, 2], "epsilon": [[0, 1], [0]]}),
        ("spending", {"rounds": [0], "classes": ["a", "b"], "budget": [1, 2], "epsilon": [[0, 1], [0, 1]]}),
        ("spending", {"rounds": [0, 1], "classes": ["a"], "budget": [1, 2], "epsilon": [[0, 1], [0, 1]]}),
        ("spending", {"rounds": [0, 1], "classes": ["a"], "budget": [1], "epsilon": [[0, 1], [0, 1]]}),
        ("spending", {"rounds": [1, 0], "classes": ["a"], "budget": [1], "epsilon": [[0, 1]]}),
        ("spending", {"rounds": [], "classes": ["a"], "budget": [1], "epsilon": [[]]}),
        ("spending", {"rounds": [0, 1], "classes": ["a"], "budget": [1], "epsilon": [[0, -1]]}),
        ("colluding", -1),
        ("rounds", 0),
        ("rounds", True),
        ("rounds", "4"),
    ],
)
def test_what_is_not_a_certificate_is_refused(key: str, value: object) -> None:
    with pytest.raises(PlanError, match="not a Discretion certificate"):
        Certificate.from_json(json.dumps(record() | {key: value}).replace("Infinity", "1e999"))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "{}"])
def test_other_files_are_refused(text: str) -> None:
    with pytest.raises(PlanError, match="not a Discretion certificate"):
        Certificate.from_json(text)


def test_the_share_of_an_infinite_budget_is_nothing() -> None:
    population = Population.of([1.0, math.inf])
    certificate = certify(gaussian_plan(population), population)
    assert certificate.share.tolist() == [certificate.spent[0] / 1.0, 0.0]
    assert certificate.spent[1] > 0


def test_a_plan_that_says_of_itself_what_it_costs_is_refused() -> None:
    class Cheap(Plan):
        def view(self, phase: Phase, adversary: Adversary) -> tuple[Floats, Floats]:
            rate, multiplier = super().view(phase, adversary)
            return rate, 40 * multiplier

    population = Population.of([1.0, 2.0])
    phase = Phase.one_pool(3, np.full(2, 0.5), np.ones(2), noise=1.0)
    with pytest.raises(PlanError, match="expected a Plan of Phases, found Cheap of Phase"):
        certify(Cheap("cheap", population.client, (phase,)), population)
