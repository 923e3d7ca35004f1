"""A guard's metrics: what it did, by few fixed words, and what is left of its budget."""

import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from discretion.clients import transport
from discretion.clients.messages import Answer, AnyOrder, Finish, Join, Train, decode_answer, encode, sign
from discretion.clients.prometheus import text_of
from discretion.errors import ConfigError
from discretion.guard import guard as guards
from discretion.guard import policy
from discretion.guard.guard import Guard
from discretion.guard.metrics import ORDERS, OrderTally, OwnBudget
from discretion.guard.refusal_reasons import OTHER, REASONS, code_of
from discretion.guard.serve import _metrics
from discretion.plan.plan import Plan
from support.exposition import Exposed, parse, scrape
from support.guard_process import Process
from support.guarding import (
    KEY,
    LOCAL,
    RECORDS,
    SHAPES,
    STRANGER,
    cryptographic,
    guard_of,
    ledger_of,
    own_pools,
    plan_of,
    policy_of,
)

PLAN = cryptographic(plan_of(own_pools(6)))
DEAR = cryptographic(plan_of(own_pools(6, noise=0.1)))
ME = 1
ZERO = np.zeros(650, np.float32).tobytes()


def join(plan: Plan = PLAN, **more: Any) -> Join:
    fields = {"client": "c1", "run": "r", "plan": plan.digest(), "size": 40, "model": "linear"}
    return Join(**(fields | {"shapes": SHAPES, "records": RECORDS, "local": asdict(LOCAL)} | more))


def train(round_: int = 1, **more: Any) -> Train:
    phase = PLAN.phases[0]
    fields = {"client": "c1", "run": "r", "plan": PLAN.digest(), "round": round_, "turn": 0, "key": 9}
    fields |= {
        "clip": float(phase.clip[ME]),
        "noise": float(PLAN.own_noise(phase)[ME]),
        "local": asdict(LOCAL),
    }
    return Train(**(fields | more))


def ask(guard: Guard, what: AnyOrder, body: bytes = ZERO, key: Any = KEY) -> Answer:
    return decode_answer(guard.answer(sign(encode(what, body), key)))[0]


def enter(guard: Guard, plan: Plan = PLAN, **more: Any) -> Answer:
    return ask(guard, join(plan, **more), plan.to_json().encode())


def counted(guard: Guard) -> Exposed:
    return parse(text_of(guard.tally.metrics()))


@pytest.fixture
def guard(tmp_path: Path) -> Iterator[Guard]:
    with closing(guard_of(tmp_path, ME, test_seed=None)) as made:
        yield made


def test_orders_are_counted_by_kind_and_outcome(guard: Guard) -> None:
    enter(guard)
    ask(guard, train(1))
    ask(guard, train(1))  # the same numbers once more
    ask(guard, train(2, clip=9.0))
    ask(guard, Finish(client="c1", run="r", plan=PLAN.digest(), rounds=2))
    guard.answer(b"no order")
    found = counted(guard)
    name = "discretion_guard_orders_total"
    assert found.of(name, order="join", outcome="answered") == 1
    assert found.of(name, order="train", outcome="answered") == 2
    assert found.of(name, order="train", outcome="refused") == 1
    assert found.of(name, order="finish", outcome="answered") == 1
    assert found.of(name, order="unreadable", outcome="refused") == 1
    assert found.of("discretion_guard_answer_seconds_count") == 6
    assert found.of("discretion_guard_answer_seconds_sum") > 0


def test_every_reason_has_a_code_of_few(guard: Guard, monkeypatch: pytest.MonkeyPatch) -> None:
    """By real refusals: a reason whose words change without its code would be counted as another one."""
    refused: dict[str, Callable[[], Answer]] = {
        "malformed": lambda: decode_answer(guard.answer(b"no order"))[0],
        "operator": lambda: ask(guard, join(), PLAN.to_json().encode(), STRANGER),
        "budget": lambda: enter(guard, DEAR),
        OTHER: lambda: enter(guard, model="other"),
    }
    for code, reason in refused.items():
        answer = reason()
        assert answer.kind == "refused" and code_of(answer.reason) == code
    assert enter(guard).kind == "done"
    assert code_of(ask(guard, train(), b"short").reason) == "malformed"
    closed = guard._policy.model_copy(update={"hours": "08:00-09:00"})
    monkeypatch.setattr(guard, "_policy", closed)
    monkeypatch.setattr(guard, "_now", lambda: datetime(2026, 1, 1, 12))
    assert code_of(ask(guard, train()).reason) == "hours"
    found = counted(guard).by("discretion_guard_refusals_total", "reason")
    assert found == dict.fromkeys(REASONS, 0) | {
        "malformed": 2,
        "operator": 1,
        "budget": 1,
        OTHER: 1,
        "hours": 1,
    }
    for code, text in (("internal", guards.INSIDE), ("fault", guards.FAULT), ("lost", guards.LOST)):
        assert code_of(text) == code
    assert code_of("the client's ledger refuses this order") == "ledger"
    assert "the client's ledger refuses this order" in Path(guards.__file__).read_text(encoding="utf-8")


def test_no_word_of_an_order_is_told(guard: Guard) -> None:
    enter(guard, model="</metrics> evil", run="evil-run")
    told = text_of(guard.tally.metrics())
    assert "evil" not in told and "c1" not in told
    labels = {value for (_, pairs) in parse(told).samples for name, value in pairs if name != "le"}
    allowed = {*ORDERS, "answered", "refused", *REASONS}
    assert labels <= allowed


def test_what_is_left_is_what_the_ledger_says(guard: Guard, tmp_path: Path) -> None:
    budget = OwnBudget(tmp_path / "c1" / "guard" / "ledger.sqlite")
    enter(guard)
    first = parse(text_of(budget.metrics()))
    ask(guard, train(1))
    found = parse(text_of(budget.metrics()))
    with ledger_of(tmp_path, ME) as ledger:
        assert found.of("discretion_guard_epsilon_spent") == ledger.spent()[0] > 0
        assert found.of("discretion_guard_epsilon_left") == pytest.approx(4.0 - min(ledger.total()[0], 4.0))
    assert first.of("discretion_guard_epsilon_spent") == 0 < first.of("discretion_guard_epsilon_promised")
    assert found.of("discretion_guard_epsilon_budget") == 4 and found.of("discretion_guard_open_runs") == 1
    assert found.of("discretion_guard_ledger_readable") == 1
    assert parse(text_of(budget.metrics())) == found  # not read again


def test_a_ledger_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    budget = OwnBudget(tmp_path / "ledger.sqlite")
    assert parse(text_of(budget.metrics())).samples == {("discretion_guard_ledger_readable", ()): 0}
    (tmp_path / "ledger.sqlite").write_bytes(b"damaged")
    assert parse(text_of(budget.metrics())).samples == {("discretion_guard_ledger_readable", ()): 0}


def test_a_policy_names_an_address_of_this_machine_or_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="this machine only"):
        policy.read(policy_of(tmp_path, ME, metrics="0.0.0.0:9464"))
    assert policy.read(policy_of(tmp_path, ME, metrics="127.0.0.1:9464")).metrics == "127.0.0.1:9464"
    assert policy.read(policy_of(tmp_path, ME, metrics="")).metrics == ""


def test_metrics_are_served_beside_the_guard(guard: Guard, tmp_path: Path) -> None:
    said = policy.read(policy_of(tmp_path, ME, metrics="127.0.0.1:0"))
    enter(guard)
    with _metrics(said, guard) as server:
        assert hasattr(server, "address")
        found = parse(scrape(server.address)[2])
        assert found.of("discretion_guard_orders_total", order="join", outcome="answered") == 1
        assert ask(guard, train()).kind == "done"
        assert parse(scrape(server.address)[2]).of("discretion_guard_epsilon_spent") > 0


def test_a_guard_process_serves_its_metrics(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    path = policy_of(tmp_path, ME, metrics=f"127.0.0.1:{port}")
    process = Process(path).ready()
    try:
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(str(policy.read(path).socket_path))
            transport.send(line, b"no order", 5.0)
            transport.receive(line, 10_000, 5.0)
        found = parse(scrape(f"http://127.0.0.1:{port}/metrics")[2])
        assert found.of("discretion_guard_refusals_total", reason="malformed") == 1
        assert found.of("discretion_guard_epsilon_left") == 4
    finally:
        assert process.end() == 0


def test_a_tally_counts_slow_answers_in_the_last_bucket() -> None:
    tally = OrderTally()
    tally.count("train", "", -1e6)  # began long ago
    found = parse(text_of(tally.metrics()))
    assert found.of("discretion_guard_answer_seconds_bucket", le="600.0") == 0
    assert found.of("discretion_guard_answer_seconds_bucket", le="+Inf") == 1
