"""Runs on Flower, with a real SuperLink, nodes and guards on loopback, TLS and node keys."""

import html
import json

import numpy as np
import pytest

from discretion.accounting.accountant import TIGHT
from discretion.clients.messages import AnyOrder
from discretion.plan.plan import Plan
from discretion.runs.folder import RunFolder
from support.flower_checks import check_noise, check_same_as_in_one_process
from support.kills import killed_run
from support.network import Network, until
from support.on_record import epsilon_on_record


def test_a_run_on_flower_is_the_run_in_one_process(network: Network) -> None:
    network.renew(5)
    check_same_as_in_one_process(network)


def test_guards_are_asked_by_flower_before_a_run_and_after_it(network: Network) -> None:
    network.renew(5)
    before = [door.passed for door in network.doors.values()]
    network.do("doctor", "config.toml", "-c", "clients.where=flower")
    assert [door.passed for door in network.doors.values()] == before
    network.complete("asked")
    network.do("ledger", "asked", "--reconcile")
    said = json.loads((network.folder / "asked" / "statements.json").read_text())["clients"]
    assert [each["signed"]["statement"]["rounds"] for each in said] == [3] * 5


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
    network.complete("early", "plan.rate=1.0", "plan.rounds=4", "seed=6")
    heard = network.heard("early")
    assert [sorted(each["refused"]) for each in heard] == [[], [], ["c2"], ["c2"]]
    assert all(each["answered"] == each["asked"] - len(each["refused"]) for each in heard)
    with network.ledger("c2") as ledger:
        assert epsilon_on_record(ledger)[0] == pytest.approx(lowered[0])
    network.do("report", "early")
    report = (network.folder / "early" / "report.html").read_text()
    assert "c2 in early from round 3" in report
    assert "the client's budget does not allow round 3" in html.unescape(report)


def test_lost_replies_never_leave_less_noise_than_planned(network: Network) -> None:
    """Updates are next to nothing here, so that what moves the model is noise."""
    network.renew(None)
    check_noise(network, "lost", "top_up", 3)


def test_a_killed_guard_and_server_app_leave_ledgers_right(network: Network) -> None:
    network.renew(None)
    assert killed_run(network, "killed", ["guard", "server app"]) == 2
    assert network.check_ledgers("killed") > 0


def test_a_submission_that_a_killed_superlink_starts_again_is_ended_first(network: Network) -> None:
    """It had the run folder, so that resuming failed until it was done, or for good."""
    network.renew(None)
    log = network.net / "logs" / "superlink.log"

    def count(words: str) -> int:
        return log.read_text(errors="replace").count(words)

    created, started = count("Created run"), count("Started task")
    running = network.run("again", "train.randomness=cryptographic", "plan.rounds=2")
    until(lambda: count("Created run") > created, "the submission")
    assert network.kill("superlink", "flower-superlink")
    running.kill()
    until(lambda: count("Started task") > started, "the submission to start again")
    resumed = network.resume("again")
    resumed.require()
    assert "still has an earlier submission of this run" in resumed.said()
    assert network.finished("again") and network.check_ledgers("again") > 0
