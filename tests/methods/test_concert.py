"""Concert: rates first, then clips, and no noise that another plan in the same mould would save."""

import numpy as np
import pytest

from discretion.accounting import certify
from discretion.methods import make_plan
from discretion.plan import budgets
from discretion.plan.advice import noise_to_signal
from discretion.plan.plan import Plan
from discretion.plan.population import Population


def people(mix: str, clients: int, delta: float = 1e-5) -> Population:
    return Population.of(budgets.draw(mix, clients, np.random.default_rng(0)), delta, 100)


def planned(method: str, population: Population, rounds: int, rate: float) -> Plan:
    return make_plan(method, population, {"rounds": rounds, "rate": rate, "clip": 0.5})


@pytest.mark.parametrize(
    ("mix", "clients", "rounds", "rate"), [("0.5-1.5-3", 600, 50, 0.02), ("10-20-30", 100, 25, 0.9)]
)
def test_everybody_spends_its_whole_budget(mix: str, clients: int, rounds: int, rate: float) -> None:
    population = people(mix, clients)
    plan = planned("concert", population, rounds, rate)
    spent = certify(plan, population).spent
    assert (spent <= population.epsilon).all() and (spent >= 0.998 * population.epsilon).all()
    (phase,) = plan.phases
    assert phase.rate.mean() == pytest.approx(rate, rel=1e-3)
    assert (phase.rate * phase.clip).sum() / phase.rate.sum() == pytest.approx(0.5)


def test_clips_are_equal_but_for_those_who_always_come() -> None:
    population = people("10-20-30", 100)
    (phase,) = planned("concert", population, 25, 0.9).phases
    always = phase.rate > 0.999
    assert (population.epsilon[~always] == 10).all() and (population.epsilon[always] > 10).all()
    assert np.ptp(phase.clip[~always]) < 1e-9 and phase.clip[always].min() > phase.clip[~always].max()
    (rare,) = planned("concert", people("0.5-1.5-3", 60), 50, 0.02).phases
    assert np.ptp(rare.clip) < 2e-3 * rare.clip.mean()


@pytest.mark.parametrize(
    ("mix", "clients", "rounds", "rate"),
    [("0.5-1.5-3", 600, 50, 0.02), ("10-20-30", 100, 25, 0.9), ("2-6-12", 60, 20, 0.4)],
)
def test_no_other_plan_has_less_noise_for_its_signal(
    mix: str, clients: int, rounds: int, rate: float
) -> None:
    """Over the whole run, at the same rounds and participation, by 1 % for the share that may be known."""
    population = people(mix, clients)
    noise = {
        name: noise_to_signal(planned(name, population, rounds, rate), population)[1]
        for name in ("concert", "idp_fedavg", "idp_fedavg_sampling", "dp_fedavg", "gdpfed", "gdpfed_opc")
    }
    for name, found in noise.items():
        assert noise["concert"] <= 1.01 * found, name
    assert noise["concert"] < 0.75 * noise["dp_fedavg"]


def test_turns_that_are_dealt_out_bring_less_noise_than_turns_that_are_drawn() -> None:
    population = people("uniform:0.1,1", 100)
    dealt, drawn = (
        noise_to_signal(planned(name, population, 20, 0.1), population)[1]
        for name in ("concert_records", "privacy_aware")
    )
    assert dealt < 0.97 * drawn


def test_a_whole_number_for_an_average_is_the_same_plan() -> None:
    population = Population.of([1.0, 2.0, 4.0] * 4, 1e-5, 20)
    made = make_plan("concert", population, {"rounds": 3, "rate": 0.5, "clip": 0.5, "average": 0})
    assert Plan.from_json(made.to_json()).digest() == made.digest()
