"""The audit's bounds come near to what is certified, never above; no correct plan is accused."""

import json
from dataclasses import replace
from datetime import datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from discretion.accounting import Certificate, certify
from discretion.audit import attack, canaries, statements
from discretion.audit.attack import FOUND, Audit, Claimed, Shown, audit, playable, read_audit, to_json
from discretion.audit.canaries import Canaries, ClientGame, Trials
from discretion.audit.chance_checks import Noise
from discretion.audit.lower_bound import Claim, Tally
from discretion.methods import METHODS, make_plan
from discretion.plan.grid_choice import on_finest_grid
from discretion.plan.phase import Clipping, Phase
from discretion.plan.plan import Plan
from discretion.plan.population import Population
from discretion.plan.steps import Steps
from discretion.runs.read import read_run
from discretion.testing import POPULATIONS, Trial
from discretion.training.loop import next_state
from discretion.training.server_update import PLAIN, Server
from support.commands import Cli
from support.small_run import SMALL

PEOPLE = Population.of([2.0] * 20 + [6.0] * 20, 1e-5, 10)
READERS = ("power_of_choice", "aocs", "fed_cbs", "delta")
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in METHODS},
    **{f"{name}, paid": (name, {"read_share": 0.2}) for name in READERS},
    "pfa, paper": ("pfa", {"accounting": "paper"}),
    "pldp_sampling, output": ("pldp_sampling", {"perturb": "output"}),
}


def plan_of(method: str, people: Population = PEOPLE, **more: Any) -> Plan:
    return make_plan(method, people, {"rounds": 8, "rate": 0.4, "clip": 1.0, **more})


def certified(plan: Plan, people: Population = PEOPLE) -> Certificate:
    return certify(plan, people)


def looked(plan: Plan, people: Population = PEOPLE, games: int = 30, **more: Any) -> Audit:
    return audit(plan, people, certify(plan, people), games=games, **more)


@pytest.mark.parametrize(("method", "against"), [("idp_fedavg", "clients"), ("concert", "server")])
def test_the_bound_is_at_least_half_of_epsilon_and_below_the_certificate(method: str, against: Any) -> None:
    plan = plan_of(method)
    found = audit(plan, PEOPLE, certify(plan, PEOPLE), against=(against,))
    assert found.contradictions == () and len(found.shown) == 2
    for each in found.shown:
        assert each.certified >= 1.99 and each.trials == 22_500
        assert each.certified / 2 < each.at_least < each.certified
        assert each.any_mechanism < each.at_least
        assert each.noise == pytest.approx(1, abs=0.02) and each.coins == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("case", CASES)
def test_no_method_of_the_contract_is_accused(case: str) -> None:
    name, more = CASES[case]
    trial = Trial(METHODS[name], more, POPULATIONS["usual"])
    if not playable(trial.certificate):
        return
    found = audit(trial.plan, trial.population, trial.certificate, games=20)
    assert found.contradictions == () and found.shown and found.games == 20
    for each in found.shown:
        assert each.at_least < each.certified or each.at_least == 0
        if trial.plan.reading is None:  # else data decides, and a class may never be drawn
            assert each.noise == pytest.approx(1, abs=0.15)


def with_public_turns() -> Plan:
    """Each client's own pool, opened by 0, 1 or 3 public turns, and closed in the second phase for half."""
    some = np.resize([0, 1, 3], len(PEOPLE))
    phase = Phase(
        rounds=3,
        rate=np.ones(len(some)),
        clip=np.ones(len(some)),
        noise=np.full(len(some), 2.0),
        pool=np.arange(len(some)),
        weight=np.linspace(0.5, 1.5, len(some)),
        turns=some,
    )
    later = replace(phase, turns=np.resize([1, 0], len(some)), weight=-phase.weight)
    return Plan("mine", PEOPLE.client, (phase, later))


def with_closed_pools() -> Plan:
    """Two pools, the second of which is open in the second phase only."""
    pool, rate = np.resize([0, 1], len(PEOPLE)), np.full(len(PEOPLE), 0.5)
    noise, weight = np.array([2.0, 3.0]), np.array([0.1, 0.2])
    first = Phase(3, rate * (pool == 0), np.ones(len(pool)), noise, pool, weight)
    return Plan("mine", PEOPLE.client, (first, replace(first, rate=rate)))


def in_layers() -> Plan:
    return replace(plan_of("idp_fedavg"), clipping=Clipping(layers=(500, 10, 3)))


def on_a_grid() -> Plan:
    return plan_of("idp_fedavg").on_grid(2.0**-20, 1000)


def shares_on_a_grid() -> Plan:
    return on_finest_grid(plan_of("concert"), 1000)


def from_the_system() -> Plan:
    return replace(plan_of("idp_fedavg"), randomness="cryptographic")


PLANS = [with_public_turns, with_closed_pools, in_layers, on_a_grid, shares_on_a_grid, from_the_system]


@pytest.mark.parametrize("make", PLANS)
def test_no_kind_of_plan_is_accused(make: Any) -> None:
    found = looked(make(), games=60, server=Server(momentum=0.5))
    assert found.contradictions == ()
    for each in found.shown:
        assert each.at_least < each.certified and each.noise == pytest.approx(1, abs=0.06)


def test_layers_and_grids_are_attacked_as_well_as_other_plans() -> None:
    """The model of the game is small, but every canary reaches its clip."""
    for make in (in_layers, on_a_grid):
        found = looked(make(), games=150, against=("clients",))
        assert found.shown[1].at_least > 2.5


def test_a_round_without_clients_is_played() -> None:
    people = Population.of([6.0], 1e-5, 10)
    assert looked(plan_of("dp_fedavg", people), people).contradictions == ()


def test_attacks_learn_only_from_games_that_do_not_count() -> None:
    """Whatever the other games show, the learned attack and its threshold are the same."""
    plan = plan_of("dp_fedavg")
    game = ClientGame(plan, Canaries.of(plan, np.ones(40), np.zeros(40, dtype=np.int64), 0), "public")
    found = Trials.together(game.play(number, 0, Noise(game.size)) for number in range(12))
    learning = found.game % attack.LEARN == 0
    assert learning.sum() == len(learning) / 4
    seen = np.where(learning[:, None], found.seen, -found.seen)
    other = replace(found, seen=seen, inside=found.inside ^ ~learning)
    one, two = (attack._learned(each, learning) for each in (found, other))
    assert np.array_equal(one[learning], two[learning]) and not np.array_equal(one, two)
    assert attack._threshold(one, found.inside, learning, 0.01) == attack._threshold(
        two, other.inside, learning, 0.01
    )


def test_the_chance_of_an_accusation_is_at_most_as_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a chance of one half, far fewer than half of 20 audits of correct code accuse."""
    monkeypatch.setattr(attack, "CHANCE", 0.5)
    people = Population.of([1.0] * 6 + [6.0] * 6, 1e-5, 10)
    plan = plan_of("pfa", people, rounds=4)
    certificate = certify(plan, people)
    found = [
        audit(plan, people, certificate, games=20, seed=seed, against=("clients",)) for seed in range(20)
    ]
    assert sum(each.contradicted for each in found) < 14  # a chance of 1 in 17 if it were one half


def test_a_bound_above_the_certificate_is_always_a_contradiction() -> None:
    """Also where the plan is executed as written, and only the certificate says too little."""
    plan = plan_of("idp_fedavg")
    true = certify(plan, PEOPLE)
    low = replace(true, epsilon={who: epsilon / 4 for who, epsilon in true.epsilon.items()})
    found = audit(plan, PEOPLE, low, games=150, against=("clients",))
    assert found.contradicted
    for each in found.shown:
        assert (FOUND in each.contradictions) == (each.at_least > each.certified)


@pytest.mark.parametrize("tally", [Tally(9000, 10_000, 10, 10_000), Tally(1000, 1000, 0, 1000)])
def test_no_bound_of_counts_exceeds_epsilon_without_a_contradiction(tally: Tally) -> None:
    """The certified epsilon lies just below each bound in turn, whatever the curve allows."""
    steps = Steps.same(np.ones(1), np.array([0.1]), 1)  # a claim that these counts do not refute
    bound, anyway, odd = Claimed(1000.0, 1e-5, Claim(steps)).bounds(tally, 0.01)
    assert not odd and bound > anyway > 1
    for least in (bound, anyway):
        assert Claimed(0.999 * least, 1e-5, Claim(steps)).bounds(tally, 0.01)[2]
    assert Claimed(0.999 * anyway, 1e-5, None).bounds(tally, 0.01) == (anyway, anyway, True)


def test_lower_bounds_are_rounded_down() -> None:
    assert [statements.at_least(x) for x in (0.0, 2.9996, 0.012349, 12.49)] == ["0", "2.99", "0.0123", "12.4"]


def test_adversaries_that_see_the_same_are_played_once() -> None:
    parts: list[float] = []
    found = looked(plan_of("idp_fedavg"), games=10, progress=parts.append)
    assert parts == pytest.approx(np.arange(1, 11) / 10)
    public, clients = ([e for e in found.shown if e.adversary == who] for who in ("public", "clients"))
    assert [replace(each, adversary="clients") for each in public] == clients
    parts.clear()
    assert len(looked(plan_of("gdpfed"), games=10, progress=parts.append).shown) == 6
    assert len(parts) == 20 and parts[-1] == 1


def test_the_number_of_games_follows_from_trials_or_time() -> None:
    game = attack._game(plan_of("dp_fedavg"), np.ones(40), PEOPLE.classes()[1], "public", PLAIN, 0)
    assert attack._enough(game) == 1500  # 20 canaries of each class
    long = attack._game(
        plan_of("dp_fedavg", rounds=1000), np.ones(40), PEOPLE.classes()[1], "public", PLAIN, 0
    )
    assert attack._enough(long) == 200
    found = audit(
        plan_of("dp_fedavg"), PEOPLE, certified(plan_of("dp_fedavg")), seconds=0.0, against=("public",)
    )
    assert found.games == attack.FEWEST


def test_classes_without_a_finite_epsilon_are_left_out() -> None:
    people = Population.of([2.0] * 4 + [np.inf] * 2, 1e-5, 10)
    plan = plan_of("idp_fedavg", people)
    found = looked(plan, people, games=10, against=("public",))
    epsilon = certify(plan, people).epsilon["public"]
    assert [each.name for each in found.shown] == [
        name
        for k, name in enumerate(people.classes()[0])
        if np.isfinite(epsilon[people.classes()[1] == k]).any()
    ]


# the command


def config(path: Path, method: str, more: str = "") -> Path:
    path.write_text(SMALL.replace("rounds = 8", f'method = "{method}"\nrounds = 4') + more)
    return path


def test_the_command_shows_lower_bounds_beside_the_certificate(discretion: Cli, tmp_path: Path) -> None:
    settings = config(tmp_path / "config.toml", "idp_fedavg")
    done = discretion("audit", str(settings), "--games", "30")
    assert done.code == 0 and "epsilon against whoever sees the models and other clients" in done.out
    for word in ("ε 4", "ε 8", "ε 16", "certified", "attacked", "noise", "coins", "30 games"):
        assert word in done.out
    record = json.loads(discretion("audit", str(settings), "--seconds", "0.01", "--json").out)
    assert record["audited"] and record["contradictions"] == [] and len(record["shown"]) == 6
    assert set(record["shown"][0]) == {f for f in Shown.__dataclass_fields__}


def test_an_audit_of_a_run_is_kept_in_its_folder(discretion: Cli, tmp_path: Path) -> None:
    settings, run = config(tmp_path / "config.toml", "idp_fedavg"), tmp_path / "run"
    assert discretion("run", str(settings), "--out", str(run)).code == 0
    done = discretion("audit", str(run), "--games", "20", "--seed", "5")
    assert done.code == 0 and f"discretion report {run}" in "".join(done.err.splitlines())
    kept = json.loads((run / "audit.json").read_text())
    assert kept["plan"] == json.loads((run / "certificate.json").read_text())["plan"]
    assert (kept["seed"], kept["asked_games"], kept["asked_seconds"]) == (5, 20, None)
    assert kept["discretion"] == version("discretion")
    assert datetime.fromisoformat(kept["made"]).utcoffset() == timedelta(0)
    assert discretion("audit", str(run), "-c", "plan.rounds=3").code == 2
    found = read_audit(read_run(run))
    assert found is not None and json.loads(to_json(found)) == kept
    again = discretion("audit", str(run), "--games", "20", "--seed", "5", "--json")
    repeated = json.loads(again.out)
    assert {name: repeated[name] for name in kept if name != "made"} == {
        name: value for name, value in kept.items() if name != "made"
    }


def test_a_contradiction_ends_with_exit_code_3(
    discretion: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = next_state

    def quiet(plan: Plan, *rest: Any, **more: Any) -> Any:
        less = tuple(replace(phase, noise=0.5 * phase.noise) for phase in plan.phases)
        return whole(replace(plan, phases=less), *rest, **more)

    monkeypatch.setattr(canaries, "next_state", quiet)
    settings = config(tmp_path / "config.toml", "idp_fedavg")
    done = discretion("audit", str(settings), "--games", "40")
    assert done.code == 3 and "there is less noise than planned" in done.err


def test_what_promises_nothing_has_nothing_to_audit(discretion: Cli, tmp_path: Path) -> None:
    for method in ("fedavg", "power_of_choice"):
        settings = config(tmp_path / "config.toml", method)
        done = discretion("audit", str(settings))
        assert done.code == 0 and "nothing to audit" in done.err
        assert json.loads(discretion("audit", str(settings), "--json").out)["audited"] is False


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--games 20 --seconds 3", "give one of them"),
        ("--train --seconds 3", "number of training runs"),
        ("--games 9", "expected at least 10"),
        ("--seconds 0", "found --seconds 0, expected a number above 0"),
        ("--seconds nan", "expected a number above 0"),
    ],
)
def test_options_that_would_be_ignored_are_refused(options: str, said: str, discretion: Cli) -> None:
    done = discretion("audit", "config.toml", *options.split())
    assert done.code == 2 and said in " ".join(done.err.split())
