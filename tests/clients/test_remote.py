"""Clients behind guards: the same model as in one process, the planned noise whoever answers."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from discretion.accounting import certify
from discretion.clients.messages import Answer, decode_order, digest, encode, sign_answer, verified
from discretion.clients.training import LocalTraining, Schedule
from discretion.clients.transport import Sockets
from discretion.errors import PlanError
from discretion.plan.phase import Clipping, Quantile
from discretion.plan.plan import Plan
from discretion.plan.selection_rules import Reading
from discretion.training.orders import Order
from discretion.training.release import missing_noise
from support.guard_process import Process
from support.guarding import (
    KEY,
    PEOPLE,
    Direct,
    charged,
    cryptographic,
    guard_of,
    in_process,
    ledger_of,
    one_pool,
    own_pools,
    plan_of,
    policy_of,
    remote,
    sockets,
    spent_of,
    trained,
)
from support.on_record import epsilon_on_record

STEPS = own_pools(3, 2.0, batch=np.full(5, 0.3), steps=4)
PLANS = {
    "shares of noise": plan_of(one_pool(4)),
    "own noise, several turns": plan_of(own_pools(2, turns=np.array([2, 1, 0, 3, 1]))),
    "noisy steps": plan_of(STEPS, noise_at="steps"),
    "clipped by layers": plan_of(one_pool(3), clipping=Clipping((640, 10))),
    "the server's noise": plan_of(one_pool(4, 2.0), noise_at="server", promise="clients"),
    "picked by norms": plan_of(
        replace(STEPS, turns=np.ones(5, np.int64), read=np.full(5, 20.0)),
        noise_at="steps",
        reading=Reading("norm", 2, 1.0),
    ),
}
LAX = {
    "trust_server": True,
    "against": "clients",
    "epsilon": 100.0,
    "statistics": ["norm"],
    "ceilings": {"turns": 3},
}


def roomy(plan: Plan) -> Plan:
    """What these plans cost is not the question here."""
    certify(plan, replace(PEOPLE, epsilon=np.full(5, 100.0))).require(plan)
    return plan


@pytest.mark.parametrize("name", PLANS)
def test_guards_end_with_the_model_of_one_process(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("support.guarding.PEOPLE", replace(PEOPLE, epsilon=np.full(5, 100.0)))
    plan = roomy(PLANS[name])
    direct = Direct({f"c{i}": guard_of(tmp_path, i, **LAX, unit=plan.unit) for i in range(5)})
    clients = remote(direct, plan)
    there = trained(plan, clients, tmp_path / "there")
    here = trained(plan, in_process(), tmp_path / "here")
    np.testing.assert_allclose(there.model, here.model, atol=1e-5)
    assert np.abs(here.model).max() > 0.1
    assert all(heard.answered == heard.asked and not heard.refused for heard in clients.heard)


def test_local_training_is_the_same_behind_guards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    how = LocalTraining(0, 7, 0.2, 0.5, 0.01, Schedule("cosine"), 4, "sequential")
    monkeypatch.setattr("support.guarding.LOCAL", how)
    plan = plan_of(own_pools(4))
    direct = Direct({f"c{i}": guard_of(tmp_path, i, epsilon=100.0) for i in range(5)})
    monkeypatch.setattr("support.guarding.PEOPLE", replace(PEOPLE, epsilon=np.full(5, 100.0)))
    there = trained(roomy(plan), remote(direct, plan), tmp_path / "there")
    np.testing.assert_allclose(there.model, trained(plan, in_process(), tmp_path / "here").model, atol=1e-5)


def test_on_real_sockets_ledgers_equal_the_certificate(tmp_path: Path) -> None:
    plan = plan_of(one_pool(3))
    guards = [Process(policy_of(tmp_path, i)) for i in range(5)]
    try:
        for guard in guards:
            guard.ready()
        clients = remote(sockets(tmp_path), plan)
        there = trained(plan, clients, tmp_path / "there")
        here = trained(plan, in_process(), tmp_path / "here")
        np.testing.assert_allclose(there.model, here.model, atol=1e-5)
        assert clients.join() == {} and clients.finish(plan.rounds) == {}
    finally:
        codes = [guard.end() for guard in guards]
    assert codes == [0] * 5
    certificate = certify(plan, PEOPLE)
    for i in range(5):
        with ledger_of(tmp_path, i) as ledger:
            assert epsilon_on_record(ledger)[0] == pytest.approx(certificate.spent[i], rel=1e-9)
            assert [state for _, state in ledger.states("r")] == ["committed"] * 3
            assert ledger.runs[0].closed is not None


def test_a_budget_that_ends_early_refuses_from_that_round_on_and_the_run_goes_on(tmp_path: Path) -> None:
    plan = plan_of(own_pools(8))
    direct = Direct({f"c{i}": guard_of(tmp_path, i) for i in range(5)})
    clients = remote(direct, plan)
    assert clients.join() == {}
    with ledger_of(tmp_path, 2) as ledger:
        three = charged(plan, 2, 3)
        ledger.change_budget("c2", three + 1e-6 - 8.0, "withdrawn")
    end = trained(plan, clients, tmp_path / "server")
    assert end.round == 8
    assert [sorted(heard.refused) for heard in clients.heard] == [[]] * 3 + [["c2"]] * 5
    assert clients.heard[3].refused["c2"] == "the client's budget does not allow round 4"
    assert clients.finish(8) == {}
    assert spent_of(tmp_path, 2) == pytest.approx(three)
    for i in (0, 1, 3, 4):
        assert spent_of(tmp_path, i) == pytest.approx(charged(plan, i), rel=1e-9)


def test_a_client_whose_budget_is_too_small_does_not_join(tmp_path: Path) -> None:
    plan = plan_of(own_pools(4))
    guards = {f"c{i}": guard_of(tmp_path, i, **({"epsilon": 0.05} if i == 0 else {})) for i in range(5)}
    clients = remote(Direct(guards), plan)
    assert clients.join() == {"c0": "the client's budget does not allow this plan"}
    assert trained(plan, clients, tmp_path / "server").round == 4
    assert all(heard.refused == clients.heard[0].refused for heard in clients.heard)
    assert spent_of(tmp_path, 0) == 0


def test_lost_answers_never_leave_less_noise_than_planned(tmp_path: Path) -> None:
    """Measured on the sum: updates are zero, because the learning rate is."""
    size, rounds = 650, 12
    plan = cryptographic(plan_of(one_pool(rounds, rate=1.0)))
    direct = Direct({f"c{i}": guard_of(tmp_path, i, test_seed=None) for i in range(5)}, lose=0.2)
    clients = remote(direct, plan)
    clients._local = clients._local.model_copy(update={"learning_rate": 0.0})
    end = trained(plan, clients, tmp_path / "server", seed=None)
    lost = [heard.lost for heard in clients.heard]
    assert sum(lost) >= 5 and max(lost) >= 2
    assert end.velocity.std() == pytest.approx(20.0 / 5, rel=5 / size**0.5)


def test_what_is_missing_of_the_noise_is_what_did_not_come() -> None:
    rng = np.random.default_rng(0)
    for phase in (one_pool(1), own_pools(1), own_pools(1, turns=np.array([2, 1, 0, 3, 1]))):
        plan = plan_of(phase)
        own = plan.own_noise(phase)
        for _ in range(20):
            most = np.ones(5, np.int64) if phase.turns is None else phase.turns
            answers = rng.integers(0, most + 1)
            brought = np.bincount(phase.pool, answers * own**2, len(phase.noise))
            releases = phase.turns if phase.turns is not None else np.ones(len(phase.noise))
            total = brought + phase.noise**2 * missing_noise(plan, phase, answers)
            np.testing.assert_allclose(total, phase.noise**2 * releases)


def test_an_update_that_is_not_finite_brings_no_noise(tmp_path: Path) -> None:
    class Broken(Direct):
        def exchange(self, orders, timeout):  # type: ignore[no-untyped-def]
            for number, (_, order) in enumerate(orders):
                message = verified(order).message
                asked, body = decode_order(message)
                bad = np.full(650, np.nan, np.float32).tobytes() if asked.kind == "train" else b""
                yield number, sign_answer(encode(Answer(kind="done", order=digest(message)), bad), KEY)

    plan = plan_of(one_pool(2, rate=1.0))
    end = trained(plan, remote(Broken({}), plan), tmp_path / "server")
    assert end.velocity.std() == pytest.approx(20.0 / 5, rel=0.15)


def test_answers_that_do_not_fit_count_as_lost(tmp_path: Path) -> None:
    class Odd(Direct):
        def exchange(self, orders, timeout):  # type: ignore[no-untyped-def]
            made = list(super().exchange(orders, timeout))
            yield 0, b""
            yield 0, b"\xff" * 100
            for number, answer in made:
                yield (number + 1) % len(orders), answer  # another one's
            if decode_order(verified(orders[0][1])[1])[0].kind != "train":
                yield from made
            yield from made[:2]
            yield from made[:2]  # a second time

    plan = plan_of(one_pool(1, rate=1.0))
    clients = remote(Odd({f"c{i}": guard_of(tmp_path, i) for i in range(5)}), plan)
    trained(plan, clients, tmp_path / "server")
    (heard,) = clients.heard
    assert (heard.asked, heard.answered, heard.lost) == (5, 2, 3)


def test_statistics_that_do_not_fit_count_as_lost() -> None:
    """Of what one client sends nothing may end the run."""
    plan = PLANS["picked by norms"]

    class Odd:
        def exchange(
            self, orders: Sequence[tuple[str, bytes]], timeout: float
        ) -> Iterator[tuple[int, bytes]]:
            for number, (_, signed) in enumerate(orders):
                message = verified(signed)[1]
                said = encode(Answer(kind="done", order=digest(message)), b"\0" * (4 + (number == 1)))
                yield number, sign_answer(said, KEY)

    clients = remote(Odd(), plan)
    asked = Order(1, 0, np.zeros(650, np.float32), np.arange(5), np.zeros(5, np.int64))
    assert plan.reading is not None
    assert clients.statistics(asked, plan.reading).value.shape == (4, 1)
    assert (clients.heard[-1].answered, clients.heard[-1].lost) == (4, 1)


def test_who_cannot_be_reached_is_lost_and_asked_again(tmp_path: Path) -> None:
    plan = plan_of(one_pool(3, rate=1.0))
    direct = Direct({})
    clients = remote(direct, plan)
    order = Order(1, 5, np.zeros(650, np.float32), np.arange(5), np.zeros(5, np.int64))
    assert list(clients.updates(order)) == [] and clients.heard[0].lost == 5
    direct.guards = {"c1": guard_of(tmp_path, 1)}
    (came,) = clients.updates(replace(order, round=2))
    assert came.clients.tolist() == [1] and came.handed_out and clients.heard[1].lost == 4
    nowhere = remote(Sockets({"c0": tmp_path / "none.sock"}), plan, timeout=1.0)
    assert list(nowhere.updates(order)) == [] and nowhere.join() == {}


def test_plans_that_guards_cannot_see_to_are_refused_before_anything_is_sent() -> None:
    quantile, alike = Clipping(quantile=Quantile()), replace(one_pool(1, rate=0.4), clip=np.full(5, 0.5))
    for plan in (
        plan_of(alike, noise_at="secure_sum", sampling="fixed_size", accounting="paper"),
        plan_of(one_pool(1), noise_at="server", promise="clients", clipping=quantile),
    ):
        with pytest.raises(PlanError, match="guards accept no plan"):
            remote(Direct({}), plan)


def test_a_server_that_starts_again_gets_the_same_answers(tmp_path: Path) -> None:
    plan = cryptographic(plan_of(own_pools(3)))
    direct = Direct({"c0": guard_of(tmp_path, 0, test_seed=None)})
    order = Order(1, 5, np.zeros(650, np.float32), np.arange(1), np.zeros(1, np.int64))
    (first,) = remote(direct, plan).updates(order)
    before = spent_of(tmp_path, 0)
    (again,) = remote(direct, plan).updates(order)
    np.testing.assert_array_equal(first.change, again.change)
    assert spent_of(tmp_path, 0) == before
