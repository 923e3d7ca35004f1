"""Before a run: a guard lists all that differs, and neither joins nor charges; and what it states, signed."""

import json
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from discretion.clients.declared import Stated, ask_for_statements
from discretion.clients.exchange import Exchange
from discretion.clients.messages import (
    Answer,
    AnyOrder,
    Check,
    Declare,
    Finish,
    Join,
    Train,
    decode_answer,
    encode,
    public_bytes,
    sign,
    sign_answer,
)
from discretion.clients.readiness import NO_ANSWER
from discretion.guard import policy
from discretion.guard.guard import Guard
from discretion.ledger.statement import SignedStatement
from discretion.plan.plan import Plan
from discretion.tasks import models
from discretion.tasks.schema import Schema
from support.guarding import (
    KEY,
    LOCAL,
    RECORDS,
    SHAPES,
    STRANGER,
    Direct,
    charged,
    cryptographic,
    guard_of,
    ledger_of,
    own_pools,
    plan_of,
    policy_of,
    remote,
)

PLAN = cryptographic(plan_of(own_pools(6)))
ME = 1
REAL: dict[str, Any] = {"test_seed": None}
TABLE = "label,age,bp\n" + "well,50,1\nill,20,2\n" * 20


def about(plan: Plan, run: str = "r") -> dict[str, Any]:
    fields = {"client": "c1", "run": run, "plan": plan.digest(), "size": 40, "model": "linear"}
    return {**fields, "shapes": SHAPES, "records": RECORDS, "local": asdict(LOCAL)}


def ask(guard: Guard, what: AnyOrder, body: bytes, key: Any = KEY) -> tuple[Answer, bytes]:
    return decode_answer(guard.answer(sign(encode(what, body), key)))


def found(guard: Guard, planned: Plan = PLAN, run: str = "r", key: Any = KEY, **more: Any) -> dict[str, str]:
    """What the guard says differs."""
    fields = about(planned, run) | {"epsilon": 4.0, "delta": 1e-5} | more
    answer, body = ask(guard, Check(**fields), planned.to_json().encode(), key)
    assert answer.kind == "done", answer.reason
    return {each["what"]: each["said"] for each in json.loads(body)["differs"]}


def joined(guard: Guard, plan: Plan = PLAN, run: str = "r", **more: Any) -> Answer:
    return ask(guard, Join(**(about(plan, run) | more)), plan.to_json().encode())[0]


def on_record(folder: Path) -> str:
    with ledger_of(folder, ME) as ledger:
        return "\n".join(ledger._db.iterdump())


def test_a_guard_that_would_join_is_ready_and_puts_nothing_on_record(tmp_path: Path) -> None:
    guard = guard_of(tmp_path, ME, **REAL)
    before = on_record(tmp_path)
    assert found(guard) == {}
    assert on_record(tmp_path) == before
    assert joined(guard).kind == "done"
    assert found(guard) == {}  # a resumed run asks again
    guard.close()


def test_everything_that_differs_is_listed_at_once(tmp_path: Path) -> None:
    more: dict[str, Any] = {"unit": "record", "size": 30, "ceilings": {"rounds": 3}, "models": {"mlp": ""}}
    policy_path = policy_of(tmp_path, ME, against="server", hours="08:00-18:00", **more)
    guard = Guard(policy.read(policy_path), lambda: datetime(2026, 1, 1, 20))
    before = on_record(tmp_path)
    weak = replace(PLAN, promise="clients")
    differs = found(guard, weak, epsilon=5.0, records=Schema(data="mnist", digest="0" * 64))
    assert set(differs) == {
        *("hours", "data set", "model", "size", "budget", "unit", "adversary", "randomness", "ceilings")
    }
    assert (
        differs["budget"] == "the server counts with epsilon 5 at delta 1e-05, this guard allows 4 at 1e-05"
    )
    assert on_record(tmp_path) == before
    guard.close()


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"model": "nowhere:build"}, "model"),
        ({"shapes": "0" * 64}, "model"),
        ({"delta": 1e-3}, "budget"),
        ({"epsilon": 3.9}, None),
        ({"plan": "0" * 64}, "plan"),
    ],
)
def test_each_thing_that_differs_has_its_name(
    tmp_path: Path, change: dict[str, Any], what: str | None
) -> None:
    guard = guard_of(tmp_path, ME, **REAL)
    assert list(found(guard, **change)) == ([what] if what else [])
    guard.close()


def test_a_plan_that_the_budget_does_not_allow_is_named_without_joining_it(tmp_path: Path) -> None:
    guard = guard_of(tmp_path, ME, **REAL)
    dear = cryptographic(plan_of(own_pools(6, noise=0.01)))
    assert found(guard, dear) == {"budget": "the client's budget does not allow this plan"}
    guard.close()


def test_a_run_that_was_joined_otherwise_or_is_over_is_named(tmp_path: Path) -> None:
    guard = guard_of(tmp_path, ME, **REAL)
    assert joined(guard).kind == "done"
    other = cryptographic(plan_of(own_pools(5)))
    assert "joined with another order" in found(guard, other)["run"]
    ask(guard, Finish(client="c1", run="r", plan=PLAN.digest(), rounds=0), b"")
    assert found(guard) == {"run": "run r is finished"}
    guard.close()


# labels


def table_guard(folder: Path, labels: list[str], **more: Any) -> Guard:
    path = policy_of(folder, ME, **REAL, data={"path": "table.csv", "labels": labels, **more})
    (path.parent / "table.csv").write_text(TABLE)
    return Guard(policy.read(path))


def table_schema(labels: list[str], age: float = 1.0) -> Schema:
    return Schema(data="csv", digest="0" * 64, labels=labels, features={"age": age, "bp": 1.0})


def test_a_guard_whose_labels_have_another_order_refuses_to_join_and_charges_nothing(tmp_path: Path) -> None:
    """It joined, and half of the clients taught the model that the ill are well."""
    guard = table_guard(tmp_path, ["well", "ill"])
    before = on_record(tmp_path)
    answer = joined(guard, records=table_schema(["ill", "well"]))
    assert answer.kind == "refused"
    assert answer.reason.startswith("found labels well, ill, the server expects ill, well")
    assert list(found(guard, records=table_schema(["ill", "well"]))) == ["labels"]
    assert on_record(tmp_path) == before
    guard.close()


def test_a_guard_with_another_scaling_refuses_to_join(tmp_path: Path) -> None:
    guard = table_guard(tmp_path, ["well", "ill"], scales={"age": 100})
    reason = joined(guard, records=table_schema(["well", "ill"])).reason
    assert "divides age by 1, not 100" in reason
    guard.close()


def test_labels_changed_after_joining_are_refused_from_the_next_start_on(tmp_path: Path) -> None:
    plan = PLAN
    guard = table_guard(tmp_path, ["well", "ill"])
    model = models.build("linear", guard._data, seed=0)
    shapes = models.shapes_digest(model)
    assert joined(guard, records=table_schema(["well", "ill"]), shapes=shapes).kind == "done"
    guard.close()
    again = table_guard(tmp_path, ["ill", "well"])
    phase = plan.phases[0]
    order = Train(
        **{"client": "c1", "run": "r", "plan": plan.digest(), "round": 1, "turn": 0, "key": 9},
        clip=float(phase.clip[ME]),
        noise=float(plan.own_noise(phase)[ME]),
        local=asdict(LOCAL),
    )
    assert "found labels ill, well" in ask(again, order, b"\0" * 4 * len(models.flatten(model)))[0].reason
    again.close()


def test_a_server_asks_all_side_by_side_and_names_who_is_away(tmp_path: Path) -> None:
    guards = {f"c{i}": guard_of(tmp_path, i, **({"size": 7} if i == 2 else {})) for i in range(4)}
    rows = remote(Direct(guards), plan_of(own_pools(6))).check(5.0)
    assert [row.client for row in rows] == [f"c{i}" for i in range(5)]
    assert [row.ready for row in rows] == [True, True, False, True, False]
    assert [what for what, _ in rows[2].differs] == ["size"] and not rows[2].shared
    assert rows[4].differs == (("away", NO_ANSWER),) and not rows[4].answered
    for guard in guards.values():
        guard.close()


# statements


def stated(guard: Guard, run: str = "r", key: Any = KEY) -> list[Stated]:
    exchange = Exchange(Direct({"c1": guard}), key, 5.0)
    return ask_for_statements(exchange, run, PLAN.digest(), ["c1", "c2"], 5.0)


def test_a_statement_says_what_is_on_record_and_is_bound_to_run_client_and_head(tmp_path: Path) -> None:
    guard = guard_of(tmp_path, ME, **REAL)
    mine, away = stated(guard)
    assert mine.signed and mine.signed.statement.plan == "" and mine.signed.statement.spent == 0
    assert away == Stated("c2")
    assert joined(guard).kind == "done"
    ask(guard, Finish(client="c1", run="r", plan=PLAN.digest(), rounds=6), b"")
    before = on_record(tmp_path)
    signed = stated(guard)[0].signed
    assert on_record(tmp_path) == before
    assert signed is not None and signed.is_genuine()
    its = signed.statement
    assert (its.client, its.run, its.plan, its.closed) == ("c1", "r", PLAN.digest(), True)
    assert (its.rounds, its.refused, its.life, its.budget) == (6, 0, None, 4.0)
    assert its.operator == public_bytes(KEY).hex()
    assert its.spent == pytest.approx(its.by_operator) and 0 < its.spent <= charged(PLAN, ME) + 1e-9
    assert its.head == ask(guard, Declare(client="c1", run="r", plan=PLAN.digest()), b"")[0].head
    for change in ({"spent": 0.0}, {"run": "other"}, {"client": "c2"}, {"closed": False}):
        assert not replaced(signed, **change).is_genuine()
    guard.close()


def replaced(signed: SignedStatement, **change: Any) -> SignedStatement:
    return signed.model_copy(update={"statement": signed.statement.model_copy(update=change)})


def test_what_an_open_run_may_still_spend_counts_in_all_that_could_tell_of_coins(tmp_path: Path) -> None:
    guard = guard_of(tmp_path, ME, **REAL, tell_life=True)
    assert joined(guard).kind == "done"
    opened = stated(guard)[0].signed
    assert opened is not None and opened.statement.spent == 0 and not opened.statement.closed
    ask(guard, Finish(client="c1", run="r", plan=PLAN.digest(), rounds=6), b"")
    over = stated(guard)[0].signed
    assert over is not None
    assert opened.statement.by_operator == pytest.approx(over.statement.by_operator)
    assert opened.statement.life is not None
    assert opened.statement.life == pytest.approx(over.statement.life)
    guard.close()


def test_another_operator_is_told_nothing_of_a_run(tmp_path: Path) -> None:
    both = {"us": public_bytes(KEY).hex(), "them": public_bytes(STRANGER).hex()}
    guard = guard_of(tmp_path, ME, **REAL, operators=both)
    assert joined(guard).kind == "done"
    ask(guard, Finish(client="c1", run="r", plan=PLAN.digest(), rounds=6), b"")
    assert stated(guard, key=STRANGER)[0].refused == "run r was joined with another operator key"
    other = stated(guard, "none", STRANGER)[0].signed
    assert other is not None and other.statement.by_operator == 0 and other.statement.life is None
    guard.close()


def test_the_key_that_replaced_an_operators_is_ready_to_go_on_and_told_of_its_runs(tmp_path: Path) -> None:
    old, new = (public_bytes(key).hex() for key in (KEY, STRANGER))
    guard = guard_of(tmp_path, ME, **REAL)
    assert joined(guard).kind == "done"
    before = stated(guard)[0].signed
    guard.close()
    guard = guard_of(tmp_path, ME, **REAL, operators={"us": new}, replaced={old: new})
    assert found(guard, key=STRANGER) == {}
    after = stated(guard, key=STRANGER)[0].signed
    assert before is not None and after is not None and after.statement.plan == PLAN.digest()
    assert after.statement.by_operator == before.statement.by_operator > 0
    guard.close()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"run": "other"}, "another run, client or operator"),
        ({"plan": "0" * 64}, "another plan"),
        ({"spent": 1.0}, "not signed by the key"),
        (None, "cannot be read"),
    ],
)
def test_a_statement_that_does_not_count_is_named(
    tmp_path: Path, change: dict[str, Any] | None, why: str
) -> None:
    guard = guard_of(tmp_path, ME, **REAL)
    assert joined(guard).kind == "done"
    answer, body = ask(guard, Declare(client="c1", run="r", plan=PLAN.digest()), b"")
    forged = b"{}"
    if change is not None:
        record = json.loads(body)
        record["statement"] |= change
        forged = json.dumps(record).encode()

    class Forging:
        def exchange(self, orders: Any, timeout: float) -> Any:
            yield 0, sign_answer(encode(answer, forged), KEY)

    (found_,) = ask_for_statements(Exchange(Forging(), KEY, 5.0), "r", PLAN.digest(), ["c1"], 5.0)
    assert found_.signed is None and why in found_.forged
    guard.close()
