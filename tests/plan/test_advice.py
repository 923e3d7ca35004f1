"""Noise over signal of plans, and what is recommended."""

import math

import numpy as np
import pytest

from discretion.methods import make_plan
from discretion.plan import advice, budgets
from discretion.plan.advice import Option, noise_to_signal, options, recommended
from discretion.plan.phase import Phase
from discretion.plan.plan import Plan
from discretion.plan.population import Population

PEOPLE = Population.of(budgets.draw("groups:1,3,6", 60, np.random.default_rng(0)), 1e-4, 50)


def planned(method: str, rate: float = 0.1, rounds: int = 8, clip: float = 0.5) -> Plan:
    return make_plan(method, PEOPLE, {"rounds": rounds, "rate": rate, "clip": clip})


def test_noise_over_signal_by_hand() -> None:
    phase = Phase.one_pool(4, np.array([0.5, 1.0]), np.array([2.0, 1.0]), noise=3.0)
    people = Population.of([1.0, 1.0], 1e-5)
    last, whole = noise_to_signal(Plan(method="m", clients=people.client, phases=(phase,)), people)
    assert last == pytest.approx(3.0 / (0.5 * 2 + 1))
    assert whole == pytest.approx(last / 2)


def test_noise_of_records_is_over_the_batch() -> None:
    plan = planned("unbiased")
    phase = plan.phases[-1]
    turns = phase.turns
    assert turns is not None
    noise = math.sqrt(5 * (turns * (phase.noise / (0.1 * 50)) ** 2).sum())
    assert noise_to_signal(plan, PEOPLE)[0] == pytest.approx(noise / (5 * turns.sum() * 0.5))


def test_the_clip_does_not_matter() -> None:
    for method in ("concert", "concert_records", "dp_fedavg", "gdpfed"):
        one, other = (noise_to_signal(planned(method, clip=clip), PEOPLE) for clip in (0.1, 2.0))
        assert one == pytest.approx(other, rel=1e-6)


def test_without_noise_or_signal() -> None:
    plan = make_plan("fedavg", PEOPLE, {"rounds": 2, "rate": 0.5})
    assert noise_to_signal(plan, PEOPLE) == (math.inf, math.inf)  # nothing is clipped: no bound on the mean
    assert recommended([Option(0.1, 2, 6.0, math.inf, math.inf)], 2) is None
    assert recommended([], 2) is None


def test_more_participation_is_less_noise_and_the_least_that_is_near_is_recommended() -> None:
    found = options(lambda rate, rounds: planned("concert", rate, rounds), PEOPLE, 0.1, 8)
    assert {option.rounds for option in found} == {4, 8, 16}
    same = [option for option in found if option.rounds == 8]
    noise = [option.noise_of_run for option in sorted(same, key=lambda option: option.rate)]
    assert noise == sorted(noise, reverse=True) and noise[0] > 1.2 * noise[-1]
    chosen = recommended(found, 8)
    assert chosen is not None
    for option in same:
        near = option.noise_of_run <= advice.NEAR * min(noise)
        assert near == (option.rate >= chosen.rate)
