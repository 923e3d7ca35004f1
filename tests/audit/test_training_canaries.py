"""One training run with canaries gives a lower bound that holds, and finds a run without noise."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from discretion.accounting import certify
from discretion.audit.training_canaries import Guessed, audit_training
from discretion.errors import PlanError
from discretion.methods import make_plan
from discretion.plan.population import Population
from discretion.training import loop, release
from discretion.training.loop import State
from discretion.training.orders import Order, Updates
from discretion.training.server_update import PLAIN
from support.commands import Cli
from support.small_run import SMALL
from support.training_clients import UpdatesOnly

PEOPLE = Population.of([1.0] * 200 + [8.0] * 200 + [np.inf] * 4, 1e-5, 10)


class Pulling(UpdatesOnly):
    """Clients that all pull the model the same way, further than their clips."""

    def updates(self, order: Order) -> Iterator[Updates]:
        yield Updates(order.clients, np.ones((len(order.clients), len(order.model)), np.float32))


def trained(method: str, seed: int = 0) -> list[Guessed]:
    plan = make_plan(method, PEOPLE, {"rounds": 8, "rate": 0.5, "clip": 1.0})
    start = State.start(np.zeros(2000, np.float32))
    given: Any = (plan, PEOPLE, certify(plan, PEOPLE), Pulling(), start)
    return audit_training(*given, run="audit", seed=seed, server=PLAIN)


@pytest.mark.parametrize("method", ["idp_fedavg", "gdpfed"])
def test_bounds_of_one_run_are_below_the_certificate(method: str) -> None:
    strict, loose = trained(method)[:2]
    assert (strict.canaries, strict.guesses) == (100, 66)
    assert strict.at_least <= strict.certified and 0.1 < loose.at_least < loose.certified
    assert loose.correct > strict.correct and not loose.contradicted


def test_a_run_without_noise_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = release.release

    def quiet(plan: Any, phase: Any, *rest: Any) -> Any:
        return whole(plan, replace(phase, noise=1e-6 * phase.noise), *rest)

    monkeypatch.setattr(loop, "release", quiet)
    found = trained("idp_fedavg")
    assert found[0].correct >= 64 and found[0].contradicted


def test_plans_that_protect_records_are_refused() -> None:
    with pytest.raises(PlanError, match="leave out --train"):
        trained("concert_records")


def test_the_command_attacks_a_training_run_with_its_data(discretion: Cli, tmp_path: Path) -> None:
    settings = tmp_path / "config.toml"
    settings.write_text(SMALL.replace("rounds = 8", 'method = "idp_fedavg"\nrounds = 3'))
    done = discretion("audit", str(settings), "--train")
    assert done.code == 0 and "one training run" in done.out
    record = json.loads(discretion("audit", str(settings), "--train", "--json").out)
    assert [each["name"] for each in record["guessed"]] == ["ε 4", "ε 8", "ε 16"]
    refused = discretion("audit", str(settings), "--train", "-c", "train.randomness=cryptographic")
    assert refused.code == 2 and "simulations only" in refused.err
