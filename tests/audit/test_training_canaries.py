"""One training run with canaries gives a lower bound that holds, and finds a run without noise."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from discretion.accounting import certify
from discretion.audit import training_canaries
from discretion.audit.training_canaries import Guessed, _directions, _Game, audit_training
from discretion.cli import audit as command
from discretion.errors import PlanError
from discretion.methods import make_plan
from discretion.plan.grid import Grid
from discretion.plan.phase import Clipping, Phase
from discretion.plan.plan import Plan
from discretion.plan.population import Population
from discretion.training import loop, release
from discretion.training.loop import State
from discretion.training.orders import Order, Updates
from discretion.training.server_update import PLAIN
from support.commands import Cli
from support.small_run import SMALL
from support.training_clients import UpdatesOnly

PEOPLE = Population.of([1.0] * 200 + [20.0] * 200 + [np.inf] * 4, 1e-5, 10)


class Pulling(UpdatesOnly):
    """Clients that all pull the model the same way, further than their clips."""

    def updates(self, order: Order) -> Iterator[Updates]:
        yield Updates(order.clients, np.ones((len(order.clients), len(order.model)), np.float32))


def trained(
    method: str, *, people: Population = PEOPLE, seed: int = 0, runs: int = 1, **more: Any
) -> list[Guessed]:
    """Audit training of 2,000 parameters, in a plan that is changed by `more`."""
    plan = make_plan(method, people, {"rounds": 4, "rate": 0.5, "clip": 1.0})
    start = State.start(np.zeros(2000, np.float32))
    given: Any = (replace(plan, **more), people, certify(plan, people), Pulling(), start)
    return audit_training(*given, run="audit", seed=seed, server=PLAIN, runs=runs)


@pytest.mark.parametrize("method", ["idp_fedavg", "gdpfed"])
def test_bounds_of_one_run_are_below_the_certificate(method: str) -> None:
    strict, loose = trained(method)[:2]
    assert (strict.canaries, loose.canaries) == (100, 100) and 20 < loose.guesses <= 100
    assert not strict.contradicted and strict.at_least < strict.certified
    assert not loose.contradicted and 0.08 * loose.certified < loose.at_least < loose.certified
    assert loose.at_least >= loose.interfering > 1.3 * loose.any_mechanism > 0.4


def test_several_runs_show_more_than_half_of_epsilon() -> None:
    people = Population.of([20.0] * 200, 1e-5, 10)
    (found,) = trained("idp_fedavg", people=people, runs=8)
    assert found.canaries == 800 and not found.contradicted
    assert found.certified / 2 < found.at_least < found.certified


def test_canaries_reach_their_clips_in_layers_and_on_a_grid() -> None:
    """A layer without room for a direction of each canary is left out, and the others are orthogonal."""
    people = Population.of([20.0] * 200, 1e-5, 10)
    plan = make_plan("idp_fedavg", people, {"rounds": 4, "rate": 0.5, "clip": 1.0})
    whole = trained("idp_fedavg", people=people)[0].at_least
    assert whole > 1
    for layers in ((1000, 1000), (1500, 490, 10)):
        found = trained("idp_fedavg", people=people, clipping=Clipping(layers=layers))[0]
        assert 0.3 * whole < found.at_least < found.certified and not found.contradicted
    direction = _directions(replace(plan, clipping=Clipping(layers=(1500, 490, 10))), 100, 2000, 0)
    assert direction @ direction.T == pytest.approx(2 / 3 * np.eye(100), abs=1e-5)
    assert (direction[:, -10:] == 0).all()
    grid = trained("idp_fedavg", people=people, grid=Grid(2.0**-20, 2000))[0]
    assert grid.at_least > 0.3 * whole and not grid.contradicted


def test_a_replaced_canary_sends_the_opposite() -> None:
    people = Population.of([20.0] * 200, 1e-5, 10)
    phase = Phase.one_pool(3, np.ones(200), np.ones(200), 2.0)
    plan = Plan("mine", people.client, (phase,), adjacency="replace")
    given: Any = (plan, people, certify(plan, people), Pulling(), State.start(np.zeros(500, np.float32)))
    (found,) = audit_training(*given, run="audit", seed=0, server=PLAIN)
    assert 0.3 * found.certified < found.at_least < found.certified and not found.contradicted


def test_the_attack_is_chosen_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever training releases, the numbers of guesses are the same."""
    people = Population.of([20.0] * 100, 1e-5, 10)
    (before,) = trained("idp_fedavg", people=people)
    monkeypatch.setattr(_Game, "played", lambda self, *given: iter([np.zeros(len(self.canary))]))
    (after,) = trained("idp_fedavg", people=people)
    assert after.guesses == before.guesses > 0 and after.correct != before.correct


def test_the_chance_of_a_contradiction_is_at_most_as_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a chance of one half, far fewer than half of 12 audits of correct code contradict it."""
    monkeypatch.setattr(training_canaries, "CHANCE", 0.5)
    people = Population.of([4.0] * 60, 1e-5, 10)
    found = [trained("idp_fedavg", people=people, seed=seed)[0] for seed in range(12)]
    assert sum(each.at_least > 0 for each in found) > 0
    assert sum(each.contradicted for each in found) < 10
    assert all(each.contradicted or each.at_least < each.certified for each in found)


@pytest.mark.parametrize("fault", [1e-6, 0.5])
def test_a_run_with_less_noise_is_found(fault: float, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = release.release

    def quiet(plan: Any, phase: Any, *rest: Any) -> Any:
        return whole(plan, replace(phase, noise=fault * phase.noise), *rest)

    monkeypatch.setattr(loop, "release", quiet)
    found = trained("idp_fedavg", people=Population.of([8.0] * 200, 1e-5, 10), runs=6)[0]
    assert found.contradicted and found.at_least > found.certified


@pytest.mark.parametrize(
    ("people", "size"),
    [(Population.of([1.0, 2.0, 3.0], 1e-5, 10), 2), (Population.of([np.inf], 1e-5, 10), 9)],
)
def test_canaries_without_room_or_promise_are_refused(people: Population, size: int) -> None:
    given = {"rounds": 1, "rate": 1.0}
    plan = (
        make_plan("idp_fedavg", people, given | {"clip": 1.0})
        if size == 2
        else make_plan("fedavg", people, given)
    )
    rest: Any = (plan, people, certify(plan, people), Pulling(), State.start(np.zeros(size, np.float32)))
    with pytest.raises(PlanError, match="has room: attack the plan instead"):
        audit_training(*rest, run="audit", seed=0, server=PLAIN)


def test_plans_that_protect_records_are_refused() -> None:
    with pytest.raises(PlanError, match="attack its plan instead"):
        trained("concert_records")


def test_the_command_attacks_a_training_run_with_its_data(discretion: Cli, tmp_path: Path) -> None:
    settings = tmp_path / "config.toml"
    settings.write_text(SMALL.replace("rounds = 8", 'method = "idp_fedavg"\nrounds = 3'))
    done = discretion("audit", str(settings), "--train")
    assert done.code == 0 and "one training run" in done.out.replace("\n", " ")
    record = json.loads(discretion("audit", str(settings), "--train", "--games", "2", "--json").out)
    assert [each["name"] for each in record["guessed"]] == ["ε 4", "ε 8", "ε 16"]
    assert record["runs"] == 2 and sum(each["canaries"] for each in record["guessed"]) == 22
    refused = discretion("audit", str(settings), "--train", "-c", "train.randomness=cryptographic")
    assert refused.code == 2 and "simulations only" in refused.err


def test_a_contradiction_of_training_ends_with_exit_code_3(
    discretion: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = Guessed(
        "ε 4", 50, 30, 30, certified=4.0, at_least=4.5, interfering=2.0, any_mechanism=1.0, contradicted=True
    )
    monkeypatch.setattr(command, "audit_training", lambda *given, **more: [odd])
    settings = tmp_path / "config.toml"
    settings.write_text(SMALL)
    for form in ([], ["--json"]):
        done = discretion("audit", str(settings), "--train", *form)
        assert done.code == 3 and "is contradicted for clients of" in " ".join(done.err.split())
        assert "4.5" in done.out
