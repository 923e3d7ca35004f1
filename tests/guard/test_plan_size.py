"""Sizes of plans in orders: what a guard refuses before it makes anything of a plan."""

import json
import tracemalloc
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from discretion.clients.messages import Finish, Join, Local, decode_answer, encode, sign
from discretion.errors import PlanError, Refusal
from discretion.guard import plan_size
from discretion.guard.guard import Guard
from discretion.guard.plan_size import check_size
from discretion.guard.policy import Ceilings
from discretion.plan.plan import Plan
from support.guarding import KEY, LOCAL, PEOPLE, RECORDS, SHAPES, guard_of, own_pools, plan_of

PLAN = plan_of(own_pools(3), own_pools(2))


def ask(guard: Guard, order: Join | Finish, body: bytes = b"") -> str:
    """Return the reason of a refusal; empty if there is none."""
    return decode_answer(guard.answer(sign(encode(order, body), KEY)))[0].reason


def join(plan: str = "0" * 64) -> Join:
    size, local = int(PEOPLE.size[1]), Local.model_validate(asdict(LOCAL))
    how: dict[str, Any] = {"model": "linear", "shapes": SHAPES, "records": RECORDS, "local": local}
    return Join(client="c1", run="r", plan=plan, size=size, **how)


def changed(*place: str | int, to: Any) -> bytes:
    """The plan's JSON with something else in one place."""
    record = json.loads(PLAN.to_json())
    inside = record
    for name in place[:-1]:
        inside = inside[name]
    inside[place[-1]] = to
    return json.dumps(record).encode()


def many_clients(clients: int, phases: int) -> bytes:
    """A plan that is small as JSON, since clients share a class, and large in memory."""
    record = json.loads(PLAN.to_json())
    record["clients"] = ["c1", *(f"d{i}" for i in range(clients - 1))]
    record["class"] = [0] * clients
    record["phases"] = [record["phases"][0] | {"noise": [1.0 + k]} for k in range(phases)]
    return json.dumps(record).encode()


def test_a_small_order_for_a_large_plan_is_refused_before_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """60,000 clients × 150 phases in 0.8 MB used to take a guard 1.2 GB and 43 s."""
    body = many_clients(60_000, 150)
    assert len(body) < 2**20
    guard = guard_of(tmp_path, 1)
    monkeypatch.setattr(Plan, "from_json", None)  # nothing is made of the plan
    reason = ask(guard, join(), body)
    guard.close()
    assert reason == (
        "entries: this plan has 60000 clients × 150 phases, the policy allows at most 1000000 in all"
    )


def test_what_is_refused_takes_memory_for_its_bytes_only() -> None:
    body = many_clients(60_000, 150)
    tracemalloc.start()
    try:
        with pytest.raises(Refusal, match="entries"):
            check_size(Ceilings(), body)
        assert tracemalloc.get_traced_memory()[1] < 40 * len(body)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("most", "reason"),
    [
        (Ceilings(plan_bytes=100), "bytes: the policy allows at most 100"),
        (Ceilings(rounds=1), r"rounds: this plan has 2 or more, \[ceilings\] of the policy allow at most 1$"),
        (Ceilings(entries=9), "entries: this plan has 5 clients × 2 phases, the policy allows at most 9"),
    ],
)
def test_each_ceiling_is_checked(most: Ceilings, reason: str) -> None:
    with pytest.raises(Refusal, match=reason):
        check_size(most, PLAN.to_json().encode())
    check_size(Ceilings(plan_bytes=10_000, rounds=2, entries=10), PLAN.to_json().encode())


def test_a_stricter_ceiling_holds_for_joined_runs_which_can_be_finished(tmp_path: Path) -> None:
    guard = guard_of(tmp_path, 1)
    assert ask(guard, join(PLAN.digest()), PLAN.to_json().encode()) == ""
    guard.close()
    guard = guard_of(tmp_path, 1, ceilings={"entries": 9})
    again = ask(guard, join(PLAN.digest()).model_copy(update={"run": "s"}), PLAN.to_json().encode())
    assert again.startswith("entries")
    assert ask(guard, Finish(client="c1", run="r", plan=PLAN.digest(), rounds=0)) == ""
    guard.close()


MANY = 30_000
FLOODS: dict[str, Callable[[], bytes]] = {  # by what is reported once, and not for every entry
    "not JSON": lambda: b"[" * MANY,
    "not UTF-8": lambda: b"\xff" * MANY,
    "deep": lambda: changed("grid", to="@").replace(b'"@"', b"[" * MANY + b"]" * MANY),
    "no object": lambda: b"[]",
    "no keys": lambda: b"{}",
    "a key too many": lambda: changed("more", to=1),
    "clients are no list": lambda: changed("clients", to=5),
    "phases are no list": lambda: changed("phases", to={}),
    "parameters are no object": lambda: changed("parameters", to=[]),
    "phases of nothing": lambda: changed("phases", to=[{}] * 100),
    "phases of another kind": lambda: changed("phases", to=[[]] * 100),
    "parameters": lambda: changed("parameters", to={str(i): 0 for i in range(MANY)}),
    "parameters of lists": lambda: changed("parameters", to={"a": [0] * MANY}),
    "keys of clipping": lambda: changed("clipping", to={str(i): 0 for i in range(MANY)}),
    "keys of a quantile": lambda: changed("clipping", "quantile", to={str(i): 0 for i in range(MANY)}),
}


@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS.keys())
def test_what_has_not_the_shape_of_a_plan_is_refused_unread(flood: Callable[[], bytes]) -> None:
    with pytest.raises(Refusal, match="unreadable plan"):
        check_size(Ceilings(), flood())


WRONG: tuple[tuple[tuple[str | int, ...], Any], ...] = (
    (("class",), "x"),
    (("class",), 0.5),
    (("class",), []),
    (("clients",), 1),
    (("phases", 0, "rate"), "x"),
    (("phases", 0, "rate"), {}),
    (("phases", 0, "pool"), 0.5),
    (("phases", 0, "turns"), []),
    (("clipping", "layers"), "x"),
    (("adjacency",), 0),
)


@pytest.mark.parametrize(("place", "entry"), WRONG)
def test_thousands_of_wrong_entries_are_reported_once(place: tuple[str | int, ...], entry: Any) -> None:
    """4 MB of such entries used to take more than a gigabyte: an error for each, with what was found."""
    body = changed(*place, to=[entry] * MANY)
    check_size(Ceilings(), body)
    tracemalloc.start()
    try:
        with pytest.raises(PlanError) as error:
            Plan.from_json(body.decode())
        assert tracemalloc.get_traced_memory()[1] < 40 * len(body)
    finally:
        tracemalloc.stop()
    assert len(str(error.value)) < 2000


def test_a_plan_of_the_right_size_with_something_wrong_in_it_is_refused(tmp_path: Path) -> None:
    guard = guard_of(tmp_path, 1)
    for body in (changed("class", to=["x"]), changed("clients", to=["../c1"])):
        assert ask(guard, join(), body) == plan_size.UNREADABLE
    guard.close()


def test_keys_are_those_of_plans_as_they_are_written() -> None:
    record = json.loads(PLAN.to_json())
    assert plan_size.REQUIRED <= record.keys() <= plan_size.KNOWN
    assert all(phase.keys() == plan_size.PHASE for phase in record["phases"])
