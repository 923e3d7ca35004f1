"""Guards whose ledger went back in time, was lost or damaged notice it, refuse, and draw no noise twice."""

import shutil
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from discretion.clients.messages import Answer, AnyOrder, Finish, Join, Train, decode_answer, encode, sign
from discretion.errors import InputError, LedgerError
from discretion.files import locked
from discretion.guard import own_ledger, policy
from discretion.guard.guard import LOST, Guard
from discretion.ledger import keys
from discretion.ledger.guard_ledger import GuardLedger
from discretion.ledger.keys import Head
from discretion.plan.plan import Plan
from discretion.training.orders import Order
from support.guarding import (
    KEY,
    LOCAL,
    SHAPES,
    Direct,
    charged,
    cryptographic,
    guard_of,
    ledger_of,
    own_pools,
    plan_of,
    policy_of,
    remote,
    spent_of,
)

ME = 1
PLAN = cryptographic(plan_of(own_pools(6)))
SHORT = cryptographic(plan_of(own_pools(1)))
ZERO = np.zeros(650, np.float32).tobytes()
REAL: dict[str, Any] = {"test_seed": None}


def about(plan: Plan, run: str) -> dict[str, str]:
    return {"client": "c1", "run": run, "plan": plan.digest()}


def order(round_: int, plan: Plan = PLAN, run: str = "r", **more: Any) -> Train:
    phase = plan.phases[0]
    fields = about(plan, run) | {"round": round_, "turn": 0, "key": 9, "local": asdict(LOCAL)}
    return Train(**(fields | {"clip": float(phase.clip[ME]), "noise": float(phase.noise[ME])} | more))


def ask(guard: Guard, what: AnyOrder, heads: Sequence[Head] = (), body: bytes = ZERO) -> tuple[Answer, bytes]:
    return decode_answer(guard.answer(sign(encode(what, body), KEY, heads)))


def enter(guard: Guard, plan: Plan = PLAN, run: str = "r", heads: Sequence[Head] = ()) -> Answer:
    fields = about(plan, run) | {"size": 40, "model": "linear", "shapes": SHAPES, "local": asdict(LOCAL)}
    return ask(guard, Join(**fields), heads, plan.to_json().encode())[0]


def started(folder: Path, **more: Any) -> Guard:
    return guard_of(folder, ME, **(REAL | more))


def home(folder: Path) -> Path:
    return folder / "c1" / "guard"


def recover(folder: Path, loss: Any) -> None:
    own_ledger.recover(policy.read(policy_of(folder, ME, **REAL)), loss)


def rounds_of(guard: Guard, *rounds: int) -> tuple[Head, list[bytes]]:
    """The last head and the numbers that the guard answers."""
    answers = [ask(guard, order(number)) for number in rounds]
    head = answers[-1][0].head
    assert head is not None and all(answer.kind == "done" for answer, _ in answers)
    return head, [body for _, body in answers]


def restored(folder: Path) -> tuple[Guard, Head]:
    """A guard that answered round 1 to 3, on its folder as it was after round 1; and its last head."""
    guard = started(folder)
    enter(guard)
    rounds_of(guard, 1)
    guard.close()
    shutil.copytree(home(folder), folder / "copy")
    guard = started(folder)
    head, _ = rounds_of(guard, 2, 3)
    guard.close()
    shutil.rmtree(home(folder))
    shutil.move(folder / "copy", home(folder))
    return started(folder), head


# one file for costs and releases


def test_a_guard_that_keeps_its_ledger_alone_draws_no_second_noise(tmp_path: Path) -> None:
    guard = started(tmp_path)
    enter(guard)
    _, (first,) = rounds_of(guard, 1)
    for _ in range(5):
        guard.close()
        for path in home(tmp_path).iterdir():
            if path.name not in ("ledger.sqlite", "ledger.key"):
                path.unlink()
        guard = started(tmp_path)
        assert rounds_of(guard, 1)[1] == [first]
    guard.close()


def test_a_round_on_record_without_its_releases_is_over(tmp_path: Path) -> None:
    guard = started(tmp_path)
    enter(guard)
    rounds_of(guard, 1)
    with closing(sqlite3.connect(home(tmp_path) / "ledger.sqlite")) as db, db:
        db.execute("DELETE FROM release")  # whatever may do that
    answer, body = ask(guard, order(1))
    assert answer.reason == "round 1 is over: nothing more is released in it" and body == b""
    guard.close()
    with pytest.raises(LedgerError, match="damaged"):
        started(tmp_path)


def test_a_round_is_reserved_with_its_release_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard = started(tmp_path)
    enter(guard)

    def fails(*_: object) -> None:
        raise ValueError

    with monkeypatch.context() as patch:
        patch.setattr(GuardLedger, "begin", fails)
        assert ask(guard, order(1))[0].kind == "refused"
    assert guard._ledger.states("r") == [] and guard._ledger.rounds_asked("r") == []
    with monkeypatch.context() as patch:
        patch.setattr(GuardLedger, "join", fails)
        assert enter(guard, SHORT, "other").kind == "refused"
    assert [run.id for run in guard._ledger.runs] == ["r"]
    guard.close()


# heads


def test_a_restored_copy_is_noticed_and_refuses_everything(tmp_path: Path) -> None:
    guard, head = restored(tmp_path)
    assert ask(guard, order(4), [head])[0].reason == LOST
    for what in (order(2), order(4), Finish(**about(PLAN, "r"), rounds=6)):
        assert ask(guard, what)[0].reason == LOST  # also orders that carry no head
    assert enter(guard, SHORT, "other").reason == LOST
    guard.close()
    guard = started(tmp_path)
    assert ask(guard, order(4))[0].reason == LOST
    guard.close()


def test_a_deleted_folder_is_noticed_and_refuses_everything(tmp_path: Path) -> None:
    guard = started(tmp_path)
    enter(guard)
    head, _ = rounds_of(guard, 1)
    guard.close()
    shutil.rmtree(home(tmp_path))
    guard = started(tmp_path)
    assert enter(guard, heads=[head]).reason == LOST and enter(guard, SHORT, "other").reason == LOST
    guard.close()


def test_the_servers_clients_carry_the_last_head(tmp_path: Path) -> None:
    guard = started(tmp_path)
    clients = remote(Direct({"c1": guard}), PLAN)

    def update(round_: int) -> list[bytes]:
        one = Order(round_, 5, np.zeros(650, np.float32), np.array([ME]), np.zeros(1, np.int64))
        return [part.change.tobytes() for part in clients.updates(one)]

    assert len(update(1)) == 1 and update(1) == update(1)  # the same order, though heads are newer
    guard.close()
    shutil.copytree(home(tmp_path), tmp_path / "copy")
    guard = clients._transport.guards["c1"] = started(tmp_path)  # type: ignore[attr-defined]
    assert len(update(2)) == 1
    guard.close()
    shutil.rmtree(home(tmp_path))
    shutil.move(tmp_path / "copy", home(tmp_path))
    guard = clients._transport.guards["c1"] = started(tmp_path)  # type: ignore[attr-defined]
    assert update(3) == [] and clients.heard[-1].refused == {"c1": LOST}
    guard.close()


def test_heads_of_the_past_are_no_reason_to_refuse(tmp_path: Path) -> None:
    guard = started(tmp_path)
    first = enter(guard).head
    assert first is not None
    last, _ = rounds_of(guard, 1, 2)
    assert ask(guard, order(3), [first, last])[0].kind == "done"
    forged = last.model_copy(update={"hash": "0" * 64})
    assert ask(guard, order(4), [forged])[0].kind == "done"  # nobody signed it: it says nothing
    guard.close()


def test_two_turns_lead_to_one_head(tmp_path: Path) -> None:
    plan = cryptographic(plan_of(own_pools(6)))
    guard = started(tmp_path)
    clients = remote(Direct({"c1": guard}), plan)
    clients.join(np.array([ME]))
    one = Order(1, 5, np.zeros(650, np.float32), np.array([ME, ME]), np.array([0, 1]))
    assert len(list(clients.updates(one))) == 1  # the plan has one turn, the other is refused
    assert [head.hash for head in clients._heads.of("c1")] == [guard._ledger.head.hash]
    guard.close()


# recovering


def test_rounds_that_were_lost_are_charged_with_their_whole_plans(tmp_path: Path) -> None:
    guard, head = restored(tmp_path)
    ask(guard, order(4), [head])
    guard.close()
    recover(tmp_path, "rounds")
    assert spent_of(tmp_path, ME) == pytest.approx(charged(PLAN, ME))
    guard = started(tmp_path)
    assert ask(guard, order(4), [head])[0].reason == "run r is finished"
    assert enter(guard, SHORT, "other", [head]).kind == "done"
    new = ask(guard, order(1, SHORT, "other"), [head])[0]
    assert new.kind == "done" and new.head is not None and new.head.key != head.key
    guard.close()


def test_an_interrupted_round_is_charged_when_recovering(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard = started(tmp_path)
    enter(guard)

    def fails(*_: object) -> None:
        raise ValueError

    with monkeypatch.context() as patch:
        patch.setattr("discretion.guard.guard.hand_out", fails)
        assert ask(guard, order(1))[0].kind == "refused"
    guard.close()
    recover(tmp_path, "rounds")
    with ledger_of(tmp_path, ME) as ledger:
        assert ledger.states("r") == [(number, "committed") for number in range(1, 7)]


def test_everything_that_was_lost_is_the_whole_budget(tmp_path: Path) -> None:
    guard = started(tmp_path)
    enter(guard)
    head, _ = rounds_of(guard, 1)
    guard.close()
    (home(tmp_path) / "ledger.sqlite").unlink()
    with pytest.raises(LedgerError, match="--recover"):
        started(tmp_path)
    recover(tmp_path, "everything")
    guard = started(tmp_path)
    assert "budget does not allow this plan" in enter(guard, heads=[head]).reason
    assert "budget does not allow this plan" in enter(guard, SHORT, "other").reason
    guard.close()
    recover(tmp_path, "everything")  # again changes nothing
    with ledger_of(tmp_path, ME) as ledger:
        assert ledger.budget.tolist() == [0.0] and len(ledger.changes) == 1


def test_public_data_has_no_budget_to_lose(tmp_path: Path) -> None:
    open_to_all = policy.read(policy_of(tmp_path, ME, **REAL, epsilon=float("inf")))
    own_ledger.recover(open_to_all, "everything")
    with ledger_of(tmp_path, ME) as ledger:
        assert ledger.changes == []


def test_rounds_that_the_budget_does_not_allow_cost_all_of_it(tmp_path: Path) -> None:
    """Which of them were released before the loss is unknown."""
    dear = cryptographic(plan_of(own_pools(40, noise=1.0)))
    guard = started(tmp_path, rule="adaptive")
    assert enter(guard, dear).kind == "done"
    guard.close()
    own_ledger.recover(policy.read(policy_of(tmp_path, ME, **REAL, rule="adaptive")), "rounds")
    with ledger_of(tmp_path, ME) as ledger:
        assert ledger.refusals("r", 40).all() and ledger.budget.tolist() == [0.0]


def test_an_interrupted_recovery_leaves_the_guard_refusing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard, head = restored(tmp_path)
    ask(guard, order(4), [head])
    guard.close()
    for point in ("_charge_whole", "recover"):

        def crash(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(GuardLedger, point, crash)
            recover(tmp_path, "rounds")
        guard = started(tmp_path)
        assert ask(guard, order(4))[0].reason == LOST
        guard.close()
    recover(tmp_path, "rounds")
    guard = started(tmp_path)
    assert enter(guard, SHORT, "other", [head]).kind == "done"
    guard.close()


def test_a_false_alarm_costs_nothing_unless_it_is_none(tmp_path: Path) -> None:
    stranger, link = Ed25519PrivateKey.generate(), bytes(range(32))
    signature = keys.sign(stranger, link).hex()
    foreign = Head(key=keys.public_of(stranger), hash=link.hex(), signature=signature)
    guard = started(tmp_path)
    assert enter(guard, heads=[foreign]).reason == LOST
    assert enter(guard, heads=[foreign]).reason == LOST  # it is remembered once
    guard.close()
    recover(tmp_path, "nothing")
    guard = started(tmp_path)
    assert enter(guard, heads=[foreign]).kind == "done"
    guard.close()
    shutil.rmtree(home(tmp_path))
    guard, head = restored(tmp_path)
    ask(guard, order(4), [head])
    guard.close()
    with pytest.raises(LedgerError, match="something was lost"):
        recover(tmp_path, "nothing")


def test_a_guard_that_runs_is_not_recovered(tmp_path: Path) -> None:
    guard = started(tmp_path)
    with locked(home(tmp_path) / ".lock", "in use"), pytest.raises(InputError, match="in use by a guard"):
        recover(tmp_path, "rounds")
    guard.close()


# copies


def test_a_copy_put_back_needs_its_owners_word(tmp_path: Path) -> None:
    said = policy.read(policy_of(tmp_path, ME, **REAL))
    guard = Guard(said)
    enter(guard)
    rounds_of(guard, 1)
    own_ledger.back_up(said, tmp_path / "copy.sqlite")  # while the guard is running
    head, _ = rounds_of(guard, 2)
    guard.close()
    shutil.rmtree(home(tmp_path))
    home(tmp_path).mkdir()
    shutil.copy(tmp_path / "copy.sqlite", home(tmp_path) / "ledger.sqlite")
    with pytest.raises(LedgerError, match="copy from a backup"):
        Guard(said)
    recover(tmp_path, "rounds")
    assert spent_of(tmp_path, ME) == pytest.approx(charged(PLAN, ME))
    own_ledger.require_known(said, [head])  # signed before the recovery: it counts no longer


def test_a_receipts_head_is_compared_before_the_guard_starts(tmp_path: Path) -> None:
    guard, head = restored(tmp_path)
    guard.close()
    said = policy.read(policy_of(tmp_path, ME, **REAL))
    own_ledger.require_known(said, [])
    with pytest.raises(LedgerError, match="does not have all on record"):
        own_ledger.require_known(said, [head])


# faults that the operator hears of


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    guard = started(tmp_path)
    enter(guard)
    ((pages,),) = guard._ledger._read("PRAGMA page_count")
    guard._ledger._db.execute(f"PRAGMA max_page_count = {pages}")
    reasons = [enter(guard, SHORT, f"run {number}").reason for number in range(9)]
    assert reasons[-1].startswith("fault at the guard: its disk is full. Nothing was sent")
    guard._ledger._db.execute(f"PRAGMA max_page_count = {10 * pages}")
    assert ask(guard, order(1))[0].kind == "done"
    guard.close()


@pytest.mark.parametrize(
    "message", [b"\0\0\0\2{}", encode(Finish(**about(PLAN, "r"), rounds=1)), b"\0", "plan"]
)
def test_a_damaged_join_is_named(tmp_path: Path, message: bytes | str) -> None:
    guard = started(tmp_path)
    enter(guard)
    with closing(sqlite3.connect(home(tmp_path) / "ledger.sqlite")) as db, db:
        ((whole,),) = db.execute("SELECT message FROM joined").fetchall()
        text = whole.replace(b'"phases"', b'"phased"') if isinstance(message, str) else message
        db.execute("UPDATE joined SET message = ?", [text])
    guard._runs.clear()  # as after a start
    reason = ask(guard, order(1))[0].reason
    assert reason.startswith("fault at the guard: the order by which it joined run r is damaged")
    guard.close()


def test_a_damaged_answer_is_named_and_not_sent(tmp_path: Path) -> None:
    guard = started(tmp_path)
    enter(guard)
    rounds_of(guard, 1)
    with closing(sqlite3.connect(home(tmp_path) / "ledger.sqlite")) as db, db:
        db.execute("UPDATE release SET answer = zeroblob(length(answer))")
    answer, body = ask(guard, order(1))
    assert "the answer that it kept is damaged" in answer.reason and body == b""
    assert ask(guard, order(2))[0].kind == "done"
    guard.close()


def test_what_the_ledger_refuses_is_no_fault(tmp_path: Path) -> None:
    guard = started(tmp_path)
    enter(guard)
    guard.close()
    guard = started(tmp_path, against="clients", trust_server=True)
    other = cryptographic(plan_of(own_pools(1), promise="clients"))
    assert enter(guard, other, "other").reason == "the client's ledger refuses this order"
    guard.close()
