"""Runs on Flower, with a real SuperLink, nodes and guards on loopback, TLS and node keys."""

from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from discretion import config
from discretion.accounting import Certificate
from discretion.accounting.spent import TIGHT
from discretion.messages import AnyOrder
from discretion.plan import Plan
from discretion.population import Population
from discretion.runs import RunFolder, load_data, set_up
from kills import killed_run
from network import Network


def flat(tensors: dict[str, np.ndarray]) -> np.ndarray:
    return np.concatenate([tensors[name].ravel() for name in sorted(tensors)])


def model_of(folder: Path) -> np.ndarray:
    return flat(safetensors.numpy.load_file(folder / "model.safetensors"))


def test_a_run_on_flower_is_the_run_in_one_process(network: Network) -> None:
    network.renew(5)
    network.run("far").require()
    network.do("run", "config.toml", "--out", "near", "--no-report")
    far, near = (model_of(network.folder / name) for name in ("far", "near"))
    np.testing.assert_allclose(far, near, atol=1e-5)
    certificate = Certificate.from_json((network.folder / "far" / "certificate.json").read_text())
    for i, name in enumerate(certificate.clients):
        with network.ledger(name) as ledger:
            assert ledger.spent()[0] == pytest.approx(certificate.spent[i], rel=1e-9)
    heard = network.heard("far")
    assert [each["round"] for each in heard] == [1, 2, 3]
    assert all(each["asked"] == each["answered"] for each in heard)


def test_a_budget_that_ends_early_refuses_from_that_round_on(network: Network) -> None:
    """When its first order comes, the owner of c2 withdraws all that a third round would need."""
    network.renew(5)
    lowered: list[float] = []

    def lower(order: AnyOrder) -> None:
        if order.kind == "train" and not lowered:
            plan = Plan.from_json(RunFolder(network.folder / "early").plan.read_text())
            with network.ledger("c2") as ledger:
                me, delta = np.array([2]), ledger.population.delta
                lowered.extend(TIGHT.epsilon(plan.steps(n).of(me), delta)[0] for n in (2, 3))
                ledger.change_budget("c2", sum(lowered) / 2 - ledger.budget[0], "withdrawn")

    network.doors["c2"].before = lower
    network.run("early", "plan.rate=1.0", "plan.rounds=4", "seed=6").require()
    heard = network.heard("early")
    assert [sorted(each["refused"]) for each in heard] == [[], [], ["c2"], ["c2"]]
    assert all(each["answered"] == each["asked"] - len(each["refused"]) for each in heard)
    with network.ledger("c2") as ledger:
        assert ledger.spent()[0] == pytest.approx(lowered[0])
    network.do("report", "early")
    report = (network.folder / "early" / "report.html").read_text()
    assert "c2 in early from round 3" in report and "its budget does not allow round 3" in report


def test_lost_replies_never_leave_less_noise_than_planned(network: Network) -> None:
    """Updates are next to nothing here, so that what moves the model is noise."""
    network.renew(None)
    check_noise(network, "lost", "top_up", 4)


def check_noise(network: Network, name: str, missing: str, rounds: int) -> None:
    for door in network.doors.values():
        door.lose = 0.2
    shares = ("plan.method=concert", "plan.options.average=0", "plan.rate=1.0", f"clients.missing={missing}")
    still = ("train.learning_rate=1e-30", "train.randomness=cryptographic", f"plan.rounds={rounds}")
    network.run(name, *shares, *still).require()
    folder, heard = RunFolder(network.folder / name), network.heard(name)
    assert len(heard) == rounds and all(each["answered"] + each["lost"] == 5 for each in heard)
    moved = rounds if missing == "top_up" else sum(each["lost"] == 0 for each in heard)
    (phase,) = Plan.from_json(folder.plan.read_text()).phases
    settings = config.read(folder.config)
    start = set_up(settings, load_data(settings), Population.from_csv(folder.population)).clients
    step = model_of(folder.path) - flat(start.named(start.initial()))
    planned = phase.noise[0] * phase.weight[0] * moved**0.5
    assert step.std() == pytest.approx(planned, rel=5 / (2 * len(step)) ** 0.5, abs=1e-6)


def test_a_killed_server_app_and_guard_leave_ledgers_right(network: Network) -> None:
    network.renew(None)
    killed = [killed_run(network, f"killed-{i}", each, 1) for i, each in enumerate(("guard", "server app"))]
    assert network.check_ledgers("killed-0", "killed-1") > 0 and killed == [1, 1]
