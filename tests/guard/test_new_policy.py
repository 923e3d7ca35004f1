"""A policy written for a plan lets in that plan, and nothing beyond it."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from discretion.errors import ConfigError, Refusal
from discretion.guard import checks, policy
from discretion.guard.policy import new_policy
from discretion.plan.plan import Plan
from discretion.plan.selection_rules import Reading
from support.guarding import PEOPLE, SEED, SHAPES, cryptographic, one_pool, own_pools, plan_of

READ: dict[str, Any] = {"turns": np.ones(5, np.int64), "read": np.full(5, 9.0), "batch": np.full(5, 0.1)}
PLANS = {
    "seeded": plan_of(own_pools(6)),
    "cryptographic": cryptographic(plan_of(own_pools(6))),
    "two turns": plan_of(own_pools(6, turns=np.full(5, 2))),
    "trusted server": plan_of(one_pool(6), noise_at="server", promise="clients"),
    "secure sum": plan_of(one_pool(6), noise_at="secure_sum"),
    "statistics": plan_of(own_pools(6, **READ), noise_at="steps", reading=Reading("norm", 2, 1.0)),
}


def written(plan: Plan, path: Path) -> policy.Policy:
    path.write_text(
        new_policy(
            plan,
            PEOPLE,
            1,
            operator="ab" * 32,
            model=("linear", SHAPES),
            data=policy.Data(name="digits", records="records.txt"),
            epochs=0,
            steps=5,
            seed=SEED,
        )
    )
    return policy.read(path)


@pytest.mark.parametrize("name", PLANS)
def test_the_plan_is_let_in_and_a_longer_one_is_not(name: str, tmp_path: Path) -> None:
    plan = PLANS[name]
    said = written(plan, tmp_path / "GUARD.toml")
    checks.require(checks.plan_problems(said, plan, 1))
    longer = replace(plan, phases=(replace(plan.phases[0], rounds=7),))
    with pytest.raises(Refusal, match="rounds: this plan has 7, the policy allows at most 6"):
        checks.require(checks.plan_problems(said, longer, 1))


def test_a_policy_has_the_clients_own_entry(tmp_path: Path) -> None:
    said = written(PLANS["cryptographic"], tmp_path / "GUARD.toml")
    assert (said.client, said.epsilon, said.delta, said.size) == ("c1", 4.0, 1e-5, 40)
    assert said.operators == {"here": "ab" * 32} and said.models == {"linear": SHAPES}
    assert said.data.records == str(tmp_path / "records.txt")
    assert (said.test_seed, said.trust_server, said.against) == (None, False, "server")
    assert said.rule == "adaptive"
    assert (said.ceilings.epochs, said.ceilings.steps) == (1, 5)
    assert written(PLANS["seeded"], tmp_path / "GUARD.toml").test_seed == SEED


@pytest.mark.parametrize(("name", "value"), [("epsilon", "true"), ("epsilon", '"8"'), ("colluding", "false")])
def test_a_budget_is_a_number(name: str, value: str, tmp_path: Path) -> None:
    """Read as 1 or 0, true and false would be budgets and bounds that nobody meant."""
    path = tmp_path / "GUARD.toml"
    written(PLANS["seeded"], path)
    text = re.sub(rf"(?m)^{name} = .*$", f"{name} = {value}", path.read_text())
    path.write_text(text)
    with pytest.raises(ConfigError, match=f"{name}: expected a (whole )?number"):
        policy.read(path)
