"""Guards whose ledger went back in time, was lost or damaged notice it, refuse, and draw no noise twice."""

import logging
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from discretion.clients.messages import Finish, encode
from discretion.errors import InputError, LedgerError
from discretion.files import locked
from discretion.guard import own_ledger, policy
from discretion.guard.guard import LOST, Guard
from discretion.ledger import keys
from discretion.ledger.guard_ledger import GuardLedger
from discretion.ledger.keys import Head
from discretion.training.orders import Order
from support.guarding import (
    Direct,
    charged,
    cryptographic,
    ledger_of,
    own_pools,
    plan_of,
    policy_of,
    remote,
    spent_of,
)
from support.one_guard import (
    ME,
    PLAN,
    REAL,
    SHORT,
    about,
    ask,
    enter,
    home,
    order,
    recover,
    restored,
    rounds_of,
    started,
)

# one file for costs and releases


def test_a_guard_that_keeps_its_ledger_alone_draws_no_second_noise(tmp_path: Path) -> None:
    guard = started(tmp_path)
    enter(guard)
    _, (first,) = rounds_of(guard, 1)
    for _ in range(5):
        guard.close()
        for path in home(tmp_path).iterdir():
            if path.name not in ("ledger.sqlite", "ledger.key", "ledger.head"):
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
    guard = clients._exchange._transport.guards["c1"] = started(tmp_path)  # type: ignore[attr-defined]
    assert len(update(2)) == 1
    guard.close()
    shutil.rmtree(home(tmp_path))
    shutil.move(tmp_path / "copy", home(tmp_path))
    guard = clients._exchange._transport.guards["c1"] = started(tmp_path)  # type: ignore[attr-defined]
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
    assert [head.hash for head in clients._exchange._heads.of("c1")] == [guard._ledger.head.hash]
    guard.close()


# recovering


def test_rounds_that_were_lost_are_charged_with_their_whole_plans(tmp_path: Path) -> None:
    guard, head = restored(tmp_path)
    ask(guard, order(4), [head])
    guard.close()
    spent = charged(cryptographic(plan_of(own_pools(12))), ME)  # rounds may have been released twice
    assert recover(tmp_path, "rounds") == pytest.approx(
        (charged(PLAN, ME, 1), 4 - charged(PLAN, ME, 1), spent, 4 - spent)
    )
    assert spent_of(tmp_path, ME) == pytest.approx(spent)
    assert recover(tmp_path, "rounds").spent == pytest.approx(spent)  # nothing is repeated any more
    guard = started(tmp_path)
    assert ask(guard, order(4), [head])[0].reason == "run r is finished"
    assert enter(guard, SHORT, "other", [head]).kind == "done"
    new = ask(guard, order(1, SHORT, "other"), [head])[0]
    assert new.kind == "done" and new.head is not None and new.head.key != head.key
    guard.close()


def test_rounds_of_closed_runs_may_have_been_released_twice(tmp_path: Path) -> None:
    """A copy goes on as if it were the newest: all rounds after it are released again, with other noise."""
    guard = started(tmp_path)
    enter(guard)
    rounds_of(guard, 1)
    guard.close()
    shutil.copytree(home(tmp_path), tmp_path / "copy")
    guard = started(tmp_path)
    head, _ = rounds_of(guard, 2, 3, 4, 5, 6)
    guard.close()
    shutil.rmtree(home(tmp_path))
    shutil.move(tmp_path / "copy", home(tmp_path))
    guard = started(tmp_path)
    rounds_of(guard, 2, 3, 4, 5, 6)
    assert ask(guard, Finish(**about(PLAN, "r"), rounds=6))[0].kind == "done"
    assert enter(guard, SHORT, "other", [head]).reason == LOST
    guard.close()
    released_twice = charged(cryptographic(plan_of(own_pools(11))), ME)
    assert spent_of(tmp_path, ME) < released_twice <= recover(tmp_path, "rounds").spent


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
    assert recover(tmp_path, "everything") == (0.0, 4.0, 0.0, 0.0)
    guard = started(tmp_path)
    assert "budget does not allow this plan" in enter(guard, heads=[head]).reason
    assert "budget does not allow this plan" in enter(guard, SHORT, "other").reason
    guard.close()
    recover(tmp_path, "everything")  # again changes nothing
    with ledger_of(tmp_path, ME) as ledger:
        assert ledger.budget.tolist() == [0.0] and len(ledger.changes) == 1


@pytest.mark.parametrize("kept", ["its key", "an empty file", "nothing", "nothing, and it was started"])
def test_where_nothing_is_on_record_everything_may_be_lost(tmp_path: Path, kept: str) -> None:
    guard = started(tmp_path)
    enter(guard)
    head, _ = rounds_of(guard, 1)
    guard.close()
    ledger = home(tmp_path) / "ledger.sqlite"
    ledger.unlink()
    if kept == "an empty file":
        ledger.touch()
    elif kept != "its key":
        shutil.rmtree(home(tmp_path))
    if kept == "nothing, and it was started":
        guard = started(tmp_path)
        assert enter(guard, heads=[head]).reason == LOST
        guard.close()
    before = {path.name: path.read_bytes() for path in home(tmp_path).glob("ledger.*")}
    for loss in ("rounds", "nothing", "rounds"):
        with pytest.raises(LedgerError, match="expected --recover everything"):
            recover(tmp_path, loss)
    assert {path.name: path.read_bytes() for path in home(tmp_path).glob("ledger.*")} == before
    assert recover(tmp_path, "everything") == (0.0, 4.0, 0.0, 0.0)
    guard = started(tmp_path)
    assert "budget does not allow this plan" in enter(guard, SHORT, "other").reason
    guard.close()


def test_an_interrupted_recovery_without_any_record_leaves_the_guard_refusing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(GuardLedger, "recover", crash)
        recover(tmp_path, "everything")
    with pytest.raises(LedgerError, match="--recover"):
        started(tmp_path)
    assert recover(tmp_path, "everything").left == 0
    started(tmp_path).close()


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
    enter(guard)
    assert enter(guard, heads=[foreign]).reason == LOST
    assert enter(guard, heads=[foreign]).reason == LOST  # it is remembered once
    guard.close()
    with pytest.raises(LedgerError, match="more than rounds was lost, or nothing"):
        recover(tmp_path, "rounds")
    assert recover(tmp_path, "nothing").spent == 0
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


def test_a_recovery_that_is_begun_again_charges_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard, head = restored(tmp_path)
    ask(guard, order(4), [head])
    guard.close()
    update = GuardLedger._update

    def crash(self: GuardLedger, kind: str, *rest: Any) -> None:
        if kind == "recover":
            raise KeyboardInterrupt
        update(self, kind, *rest)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(GuardLedger, "_update", crash)
        recover(tmp_path, "rounds")
    twice = charged(cryptographic(plan_of(own_pools(12))), ME)
    assert recover(tmp_path, "rounds").spent == pytest.approx(twice)


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


@pytest.mark.parametrize("rounds_since", [1, 0])
def test_a_copy_put_back_beside_the_key_needs_its_owners_word(tmp_path: Path, rounds_since: int) -> None:
    """Whether anything was lost since the copy, the head that was kept last tells."""
    said = policy.read(policy_of(tmp_path, ME, **REAL))
    guard = Guard(said)
    enter(guard)
    _, (first,) = rounds_of(guard, 1)
    own_ledger.back_up(said, tmp_path / "copy.sqlite")
    rounds_of(guard, *range(1, 2 + rounds_since))
    guard.close()
    newest = (home(tmp_path) / "ledger.sqlite").read_bytes()
    shutil.copy(tmp_path / "copy.sqlite", home(tmp_path) / "ledger.sqlite")
    with pytest.raises(LedgerError, match="went back in time" if rounds_since else "copy from a backup"):
        Guard(said)
    (home(tmp_path) / "ledger.sqlite").write_bytes(newest)
    Guard(said).close()  # having tried the copy does not keep the newest from being put back
    shutil.copy(tmp_path / "copy.sqlite", home(tmp_path) / "ledger.sqlite")
    if rounds_since:
        with pytest.raises(LedgerError, match="went back in time"):
            recover(tmp_path, "nothing")
        assert recover(tmp_path, "rounds").spent == pytest.approx(charged(PLAN, ME))
    else:
        assert recover(tmp_path, "nothing").spent == pytest.approx(charged(PLAN, ME, 1))
        guard = started(tmp_path)
        assert rounds_of(guard, 1)[1] == [first]
        guard.close()


def test_nothing_is_not_believed_without_the_key_and_other_words_are_named(tmp_path: Path) -> None:
    guard = started(tmp_path)
    enter(guard)
    guard.close()
    key = home(tmp_path) / "ledger.key"
    kept = key.read_bytes()
    key.unlink()
    with pytest.raises(LedgerError, match="`--recover rounds` if .* and `--recover everything`") as caught:
        recover(tmp_path, "nothing")
    assert "ledger.key" in str(caught.value) and "`discretion guard" not in str(caught.value)
    key.write_bytes(kept)
    started(tmp_path).close()


def test_a_new_ledger_is_in_the_log_with_its_budget(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    started(tmp_path).close()
    (said,) = [each.getMessage() for each in caplog.records if "new ledger" in each.message]
    assert "with its whole budget: epsilon 4, delta 1e-05" in said
    caplog.clear()
    started(tmp_path).close()
    assert "new ledger" not in caplog.text


def test_a_guard_in_alarm_says_so_when_it_starts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    guard, head = restored(tmp_path)
    ask(guard, order(4), [head])
    guard.close()
    assert [each.levelname for each in caplog.records if "refused" in each.message] == ["WARNING"]
    caplog.clear()
    started(tmp_path).close()
    (said,) = [each for each in caplog.records if "--recover" in each.message]
    assert said.levelname == "ERROR" and "c1 refuses every order" in said.message


def test_a_raised_budget_is_told_in_the_owners_words(tmp_path: Path) -> None:
    started(tmp_path).close()
    with pytest.raises(LedgerError, match=r"epsilon 9, .* in GUARD.toml.* put the earlier one back"):
        started(tmp_path, epsilon=9.0)


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


def test_another_fault_than_a_lost_key_is_named_as_it_is_when_recovering(tmp_path: Path) -> None:
    guard = started(tmp_path)
    enter(guard)
    guard.close()
    other = policy.read(policy_of(tmp_path, ME, **REAL | {"epsilon": 5.0}))
    with pytest.raises(LedgerError, match="epsilon") as caught:
        own_ledger.recover(other, "nothing")
    assert "--recover everything" not in str(caught.value)
