"""The contract finds what is broken, and says it in a sentence."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from discretion.errors import ConfigError
from discretion.methods import METHODS, method
from discretion.methods.parameters import Dropout, Rate, Rounds, UpdateClip
from discretion.methods.registry import of_function
from discretion.plan.plan import Plan
from discretion.plan.population import Population
from discretion.testing import Trial, check_method
from discretion.testing.contract import check

NONE, SOME = {"dropout": 0.0}, {"dropout": 0.4}
Change = Callable[[Plan], Plan]
FACTS: dict[str, Any] = {
    **{"title": "Test", "idea": "As DP-FedAvg.", "paper": "none", "reads": "budgets"},
    **{"unit": "client", "noise_at": "server", "promise": "clients"},
}


def changed(change: Change, **facts: Any) -> Callable[..., Plan]:
    """DP-FedAvg with a change to its plan, declared as said."""

    @method(**FACTS | facts)
    def plan(population: Population, rounds: Rounds, rate: Rate, clip: UpdateClip) -> Plan:
        return change(METHODS["dp_fedavg"].plan(population, rounds, rate, clip))

    return plan


def noise(factor: float) -> Change:
    return lambda plan: replace(plan, phases=tuple(replace(p, noise=factor * p.noise) for p in plan.phases))


def same(plan: Plan) -> Plan:
    return plan


def only_many(plan: Plan) -> Plan:
    if len(plan.clients) == 1:
        raise ConfigError("expected at least two clients")
    return plan


def one_round_less(plan: Plan) -> Plan:
    return replace(plan, phases=(replace(plan.phases[0], rounds=5),))


BROKEN: dict[str, tuple[Callable[..., Plan], str]] = {
    "too little noise": (changed(noise(0.8)), "every budget is kept and used: .* would overspend"),
    "too much noise": (
        changed(noise(1.2)),
        r"no client spends more than \d+\.\d% of its budget; expected 99.5%",
    ),
    "chance": (
        changed(lambda plan: noise(1 + np.random.random() / 1e6)(plan)),
        "planned twice, the plan differs",
    ),
    "rounds": (changed(one_round_less), "the plan has 5 rounds; expected 6"),
    "unit": (changed(same, unit="record"), "unit record is declared, the plan has client"),
    "noise_at": (changed(same, noise_at="clients"), "noise_at clients is declared, the plan has server"),
    "promise": (changed(same, promise="server"), "promise server is declared, the plan has clients"),
    "none": (changed(same, unit="none"), "noise_at server is declared"),
    "raw": (changed(same, reads_raw=True), "reads_raw and what the plan reads disagree"),
    "colluding": (
        changed(lambda plan: replace(plan, colluding=2)),
        "by default the plan has colluding 2 and dropout 0.0; expected 1, 0",
    ),
    "idea": (changed(same, idea=""), "there is no idea"),
    "single": (
        changed(only_many),
        "any population can be planned and trained: expected at least two clients",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_clause_is_said(name: str) -> None:
    plan, message = BROKEN[name]
    with pytest.raises(AssertionError, match=f"^test_contract:plan: (.*: )?{message}"):
        check_method(plan)


def test_a_method_that_breaks_nothing_passes() -> None:
    check_method(changed(same))
    check_method(changed(same), Population.of([1.0, 2.0, 4.0], 1e-5, 7))
    check_method("fedavg")
    check_method("dp_fedavg")


def undeclared(population: Population, rounds: Rounds, rate: Rate, clip: UpdateClip) -> Plan:
    """Plan as DP-FedAvg does."""
    return METHODS["dp_fedavg"].plan(population, rounds, rate, clip)


def test_a_function_that_declares_nothing_is_held_to_the_rest_of_the_contract() -> None:
    check_method(undeclared)


@method(**FACTS)
def deaf(population: Population, rounds: Rounds, rate: Rate, clip: UpdateClip) -> Plan:
    return METHODS["dp_fedavg"].plan(population, rounds, rate, 1.0)


@method(**FACTS)
def careless(population: Population, rounds: Rounds, rate: Rate, clip: UpdateClip) -> Plan:
    return noise(1.0 if rounds < 20 else 0.5)(METHODS["dp_fedavg"].plan(population, rounds, rate, clip))


def test_parameters_count_and_other_settings_keep_budgets_too() -> None:
    with pytest.raises(AssertionError, match="the plan does not depend on clip"):
        check_method(deaf)
    with pytest.raises(AssertionError, match="with another rounds a client spends more than its budget"):
        check_method(careless)


def dropping(change: Callable[[Plan, float], Plan]) -> Callable[..., Plan]:
    """GDPFed with a change to its plans, which knows the share that may drop out."""

    @method(**FACTS | {"noise_at": "secure_sum", "promise": "server"})
    def plan(
        population: Population, rounds: Rounds, rate: Rate, clip: UpdateClip, dropout: Dropout = 0.0
    ) -> Plan:
        made = METHODS["gdpfed"].plan(population, rounds, rate, clip, dropout=dropout)
        return change(made, dropout)

    return plan


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda plan, _: replace(plan, dropout=0.0), "the plan has dropout 0.0; expected 0.3"),
        (
            lambda plan, share: noise(0.8 if share else 1.0)(plan),
            "with drop-outs a client spends more than its budget",
        ),
        (
            lambda plan, share: noise(1.2 if share else 1.0)(plan),
            "with drop-outs no client spends more than 7",
        ),
    ],
)
def test_drop_outs_are_held_to_the_contract(change: Callable[[Plan, float], Plan], message: str) -> None:
    trial = Trial(of_function(dropping(change)))
    with pytest.raises(AssertionError, match=message):
        check(trial, "drop_outs_are_provided_for")
    check(Trial(of_function(dropping(lambda plan, _: plan))), "drop_outs_are_provided_for")


@pytest.mark.parametrize("name", ["gdpfed", "gdpfed_opc", "gdpfed_plus"])
def test_a_late_parameter_changes_no_plan_until_it_is_used(name: str) -> None:
    population, given = Population.of([1.0, 2.0, 4.0], 1e-5, 7), {"rounds": 3, "rate": 0.5, "clip": 1.0}
    plain, none, some = (METHODS[name].make(population, given | more) for more in ({}, NONE, SOME))
    assert plain.digest() == none.digest() != some.digest()
    assert "dropout" not in plain.parameters and some.parameters["dropout"] == 0.4


def test_shares_too_small_for_drop_outs_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = Trial(METHODS["gdpfed"])
    monkeypatch.setattr(Plan, "shares", lambda plan, phase: phase.holders)
    with pytest.raises(AssertionError, match="of the clients that stay are less than the noise"):
        check(trial, "drop_outs_are_provided_for")


def test_an_error_of_the_method_itself_names_the_clause() -> None:
    with pytest.raises(AssertionError, match="plan: .*: ZeroDivisionError: integer division"):
        check_method(changed(lambda plan: replace(plan, colluding=1 // 0)))


def test_no_protection_that_is_declared_but_not_true_is_found() -> None:
    plan = changed(same, unit="none", noise_at=None, promise=None)
    with pytest.raises(AssertionError, match=re.escape("epsilon is finite, but no protection is declared")):
        check_method(plan)


def test_importing_the_contract_needs_no_pytest() -> None:
    script = "import sys, json, discretion.testing; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not {"pytest", "torch", "_pytest"} & set(json.loads(done.stdout))
