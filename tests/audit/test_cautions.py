"""Every warning: when it comes, that it names the number and what to change, and when it does not come."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import discretion as dn
from discretion.audit import cautions
from discretion.audit.cautions import Caution
from discretion.methods import METHODS
from discretion.plan.advice import noise_to_signal
from discretion.runs.config import make
from discretion.runs.execute import execute
from discretion.runs.prepare import prepare
from discretion.runs.read import Run

SETTINGS = {"rounds": 30, "rate": 0.5, "clip": 0.3}
GOOD = dn.Population.of(np.repeat([2.0, 4.0, 8.0], 50), 1e-5, 10)


def of_plan(people: dn.Population, method: str = "idp_fedavg", **more: float) -> dict[str, Caution]:
    taken = {
        name: value for name, value in {**SETTINGS, **more}.items() if name in METHODS[method].parameters
    }
    plan = dn.make_plan(method, people, taken)
    found = cautions.of_plan(plan, people, dn.certify(plan, people))
    assert len({caution.kind for caution in found}) == len(found)
    return {caution.kind: caution for caution in found}


def test_a_sound_plan_has_no_warning() -> None:
    assert of_plan(GOOD) == {}
    assert of_plan(GOOD, "concert_records") == {}


@pytest.mark.parametrize(
    "delta, told",
    [(0.9, "publish one of 150 clients"), (1 / 150, "publish one of 150"), (0.02, "publish one of 150")],
)
def test_a_delta_of_a_client_or_more_promises_nothing(delta: float, told: str) -> None:
    found = of_plan(replace(GOOD, delta=np.full(150, delta)))["delta"]
    assert (
        f"{delta:g} for 150 of 150 clients" in found.found and told in found.why and "1e-05" in found.change
    )
    assert "delta" not in of_plan(replace(GOOD, delta=np.full(150, 0.9 / 150)))


def test_a_delta_is_compared_with_what_is_protected() -> None:
    """1 in 200 is little for four clients, and too much for one record of 1,000."""
    people = dn.Population.of([1.0, 1.0, 2.0, 2.0], 0.005, [1000, 100, 100, 100])
    assert "delta" not in of_plan(people)
    found = of_plan(people, "concert_records")["delta"]
    assert "1 of 4 clients" in found.found and "1,000 records" in found.why
    rare = of_plan(dn.Population.of([1.0] * 4, 0.02, 10))["delta"]
    assert "chance of 2.0%" in rare.why


def test_public_clients_need_no_delta() -> None:
    people = dn.Population.of([math.inf, *[4.0] * 150], [0.9, *[1e-5] * 150], 10)
    assert of_plan(people) == {}


def test_an_epsilon_that_hardly_protects_is_named_with_its_odds() -> None:
    people = replace(GOOD, epsilon=np.array([1e6, *[8.0] * 149]))
    found = of_plan(people)["epsilon"]
    assert (
        "1 of 150 clients" in found.found and "all but certain" in found.why and "10 or less" in found.change
    )
    assert "epsilon" not in of_plan(replace(GOOD, epsilon=np.full(150, 20.0)))
    assert "a client’s data were used" in found.why
    assert "one record of a client was used" in of_plan(people, "concert_records")["epsilon"].why


def test_a_whole_hospital_is_protected_where_patients_may_be_meant() -> None:
    hospitals = dn.Population.of([8.0] * 12, 1e-5, 250)
    found = of_plan(hospitals)["unit"]
    assert "12 clients" in found.found and "250 records" in found.found and "concert_records" in found.change
    assert "unit" not in of_plan(hospitals, "concert_records")
    assert "unit" not in of_plan(replace(hospitals, size=np.full(12, 5)))


def test_noise_far_above_signal_is_named() -> None:
    few = dn.Population.of([1.0] * 12, 1e-5, 5)
    plan = dn.make_plan("idp_fedavg", few, SETTINGS)
    found = of_plan(few)["noise"]
    assert f"{noise_to_signal(plan, few)[1]:.2g} times" in found.found and "--advise" in found.change
    tiny = dn.Population.of([0.001] * 12, 1e-5, 5)
    assert "method for records" not in of_plan(tiny, "concert_records")["noise"].change


def test_plans_without_privacy_are_not_warned_of_budgets() -> None:
    people = dn.Population.of([1e6] * 12, 0.9, 250)
    assert of_plan(people, "fedavg") == {}


def test_clients_that_are_never_asked_are_counted() -> None:
    plan = dn.make_plan("idp_fedavg", GOOD, SETTINGS)
    (phase,) = plan.phases
    without = replace(plan, phases=(replace(phase, rate=np.where(np.arange(150) < 3, 0.0, phase.rate)),))
    (found,) = cautions.of_plan(without, GOOD, dn.certify(without, GOOD))
    assert found.kind == "never" and found.found.startswith("3 of 150 clients")


def test_rounds_that_ask_nobody_are_counted() -> None:
    found = of_plan(GOOD, rate=0.001)["empty"]
    assert f"{30 * 0.999**150:.0f} of 30 rounds" in found.found and "0.02" in found.change
    assert "empty" not in of_plan(GOOD, rate=0.02)


def small(folder: Path, **changes: str) -> Run:
    people = {"clients": 140, "budgets": "groups:8"}
    plan = {"method": "dp_fedavg", "rounds": 12, "rate": 0.5, "clip": 0.3}
    record = {"population": people, "data": {"name": "digits"}, "plan": plan, "train": {"threads": 1}}
    return prepare(
        make(record, [f"{name.replace('__', '.')}={value}" for name, value in changes.items()]), folder
    )


def test_a_run_that_learns_has_no_warning(tmp_path: Path) -> None:
    run = execute(small(tmp_path / "run", train__epochs="3"))
    assert run.history.accuracy[-1] > 0.5 and cautions.of_run(run) == ()


def test_a_run_that_diverges_and_ends_at_chance_says_so_first(tmp_path: Path) -> None:
    run = execute(
        small(tmp_path / "run", population__budgets="groups:0.05", train__server_learning_rate="10")
    )
    diverged, chance, *rest = cautions.of_run(run)
    assert (diverged.kind, chance.kind) == ("diverged", "chance") and diverged.trained and chance.trained
    assert "2.3" in diverged.why and "server_learning_rate" in diverged.change
    assert f"{run.history.accuracy[-1]:.1%}" in chance.found and f"{run.about.majority:.1%}" in chance.why
    assert [caution.kind for caution in rest] == ["noise"] and not rest[0].trained


def test_at_the_threshold_of_noise_a_small_model_stays_near_chance(tmp_path: Path) -> None:
    """The reason for MOST_NOISE: beside it, training with less noise learns."""
    drowned = execute(small(tmp_path / "drowned", population__budgets="groups:0.12", train__epochs="3"))
    ratio = noise_to_signal(drowned.plan, drowned.population)[1]
    assert 1 < ratio / cautions.MOST_NOISE < 3
    assert drowned.history.accuracy[-1] < 0.3


def test_results_are_judged_by_what_is_on_record(tmp_path: Path) -> None:
    run = small(tmp_path / "run")
    assert run.about.classes == 10 and 0.1 < (run.about.majority or 0) < 0.15

    def kinds(of: Run, accuracy: float, loss: float, finished: bool = True) -> list[str]:
        return [each.kind for each in cautions.of_result(of, 3, accuracy, loss, finished)]

    assert kinds(run, 0.9, 0.3) == []
    assert kinds(run, 0.1, 2.4, finished=False) == []  # as a new model is
    assert kinds(run, 0.1, 2.4) == ["chance"]
    assert kinds(run, 0.5, 4056.0, finished=False) == ["diverged"]
    unknown = replace(run, about=run.about.model_copy(update={"classes": 0, "majority": None}))
    assert kinds(unknown, 0.0, 4056.0) == []
    assert kinds(unknown, 0.0, math.inf) == ["diverged"]
    (found,) = cautions.of_result(run, 3, 0.5, 4056.0, False)
    assert found.found == "The loss is 4,056 after round 3"


def test_figures_on_records_of_clients_are_called_not_private(tmp_path: Path) -> None:
    run = small(tmp_path / "run")
    data = run.config.data.model_copy(update={"partition": "natural"})
    natural = replace(run, config=run.config.model_copy(update={"data": data}))
    for found in cautions.of_result(natural, 3, 0.1, math.inf, True):
        assert "not private" in found.found
    for found in cautions.of_result(run, 3, 0.1, math.inf, True):
        assert "not private" not in found.found
