"""Rotation of keys: a guard's own, whose past stays comparable, and an operator's, whose runs go on."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from discretion.clients.messages import Finish, Train, decode_answer, encode, public_bytes, sign
from discretion.errors import ConfigError, InputError, LedgerError
from discretion.files import locked
from discretion.guard import own_ledger, policy
from discretion.guard.guard import LOST, Guard
from discretion.ledger import keys
from discretion.ledger.keys import Head
from support.commands import discretion
from support.guarding import KEY, STRANGER, policy_of
from support.one_guard import (
    ME,
    PLAN,
    REAL,
    SHORT,
    ZERO,
    about,
    ask,
    enter,
    home,
    joining,
    order,
    recover,
    restored,
    rounds_of,
    started,
)


def rotate(folder: Path) -> Head:
    return own_ledger.rotate_key(policy.read(policy_of(folder, ME, **REAL)))


def private(folder: Path) -> str:
    return (home(folder) / "ledger.key").read_text()


# the guard's own key


def test_a_run_goes_on_after_a_rotation_and_repeats_the_same_numbers(tmp_path: Path) -> None:
    guard = started(tmp_path)
    enter(guard)
    old, (first,) = rounds_of(guard, 1)
    guard.close()
    before = private(tmp_path)
    new = rotate(tmp_path)
    assert new.is_genuine() and new.key != old.key and private(tmp_path) != before
    assert [path.name for path in home(tmp_path).glob("ledger.key*")] == ["ledger.key"]
    assert (home(tmp_path) / "ledger.key").stat().st_mode & 0o777 == 0o600
    guard = started(tmp_path)
    assert rounds_of(guard, 1)[1] == [first]
    answer, _ = ask(guard, order(2), [old])
    assert answer.kind == "done" and answer.head is not None and answer.head.key == new.key
    guard.close()


def test_a_head_of_the_old_key_that_is_not_on_record_is_still_a_loss(tmp_path: Path) -> None:
    """Otherwise a rotation would hide that the ledger had gone back in time before it."""
    guard, head = restored(tmp_path)
    guard.close()
    rotate(tmp_path)
    guard = started(tmp_path)
    assert ask(guard, order(4), [head])[0].reason == LOST
    guard.close()
    with pytest.raises(LedgerError, match="something was lost"):
        recover(tmp_path, "nothing")
    recover(tmp_path, "rounds")
    rotate(tmp_path)
    guard = started(tmp_path)
    assert enter(guard, SHORT, "other", [head]).kind == "done"  # its worst case is charged
    guard.close()


def test_a_folder_from_before_the_rotation_is_noticed(tmp_path: Path) -> None:
    guard = started(tmp_path)
    enter(guard)
    guard.close()
    shutil.copytree(home(tmp_path), tmp_path / "copy")
    rotate(tmp_path)
    guard = started(tmp_path)
    head, _ = rounds_of(guard, 1)
    guard.close()
    shutil.rmtree(home(tmp_path))
    shutil.move(tmp_path / "copy", home(tmp_path))
    guard = started(tmp_path)
    assert ask(guard, order(1), [head])[0].reason == LOST
    guard.close()


def test_a_copy_from_before_the_rotation_does_not_start_with_the_new_key(tmp_path: Path) -> None:
    started(tmp_path).close()
    shutil.copy(home(tmp_path) / "ledger.sqlite", tmp_path / "copy.sqlite")
    rotate(tmp_path)
    shutil.copy(tmp_path / "copy.sqlite", home(tmp_path) / "ledger.sqlite")
    with pytest.raises(LedgerError, match="copy from a backup"):
        started(tmp_path)


@pytest.mark.parametrize("point", ["keys.draft", "guard_ledger.GuardLedger._insert", "keys.settled"])
def test_a_crash_leaves_one_key_that_signs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    guard = started(tmp_path)
    enter(guard)
    head, _ = rounds_of(guard, 1)
    guard.close()
    real = keys.settled

    def crash(*given: Any) -> Ed25519PrivateKey:
        if point.endswith("settled") and not (home(tmp_path) / "ledger.key.new").exists():
            return real(*given)  # of the old key, before the new one is made
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(f"discretion.ledger.{point}", crash)
        rotate(tmp_path)
    guard = started(tmp_path)
    answer, _ = ask(guard, order(2), [head])
    assert answer.head is not None and answer.head.is_genuine()
    assert (answer.head.key != head.key) == point.endswith("settled")
    guard.close()
    assert rotate(tmp_path).is_genuine()
    assert [path.name for path in home(tmp_path).glob("ledger.key*")] == ["ledger.key"]


def test_only_who_has_the_old_key_rotates_it_and_only_at_rest(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="never started"):
        rotate(tmp_path)
    started(tmp_path).close()
    with locked(home(tmp_path) / ".lock", "in use"), pytest.raises(InputError, match="in use by a guard"):
        rotate(tmp_path)
    (home(tmp_path) / "ledger.key").unlink()
    with pytest.raises(LedgerError, match="copy from a backup"):
        rotate(tmp_path)


def test_the_command_prints_the_new_public_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    started(tmp_path).close()
    capsys.readouterr()
    assert discretion("guard", str(home(tmp_path).parent / "GUARD.toml"), "--rotate-key", "--json") == 0
    key = keys.read(home(tmp_path) / "ledger.key")
    assert key is not None and keys.public_of(key) in capsys.readouterr().out


# an operator's key


OLD, NEW = public_bytes(KEY).hex(), public_bytes(STRANGER).hex()


def by(key: Ed25519PrivateKey, guard: Guard, what: Train | Finish) -> tuple[str, bytes]:
    answer, body = decode_answer(guard.answer(sign(encode(what, ZERO), key)))
    return answer.reason, body


def test_a_run_goes_on_with_the_key_that_replaced_the_old_one(tmp_path: Path) -> None:
    guard = started(tmp_path)
    enter(guard)
    _, (first,) = rounds_of(guard, 1)
    guard.close()
    guard = started(tmp_path, operators={"us": OLD, "them": NEW})
    assert by(STRANGER, guard, order(2))[0] == "run r was joined with another operator key"
    guard.close()
    guard = started(tmp_path, operators={"us": NEW}, replaced={OLD: NEW})
    assert by(STRANGER, guard, order(1)) == ("", first)
    assert by(STRANGER, guard, order(2))[0] == ""
    assert by(KEY, guard, order(3))[0] == "operator key not listed in this guard's [operators]"
    again = encode(joining(), PLAN.to_json().encode())
    assert decode_answer(guard.answer(sign(again, STRANGER)))[0].reason == ""
    assert by(STRANGER, guard, Finish(**about(PLAN, "r"), rounds=2))[0] == ""
    guard.close()


def test_keys_are_replaced_again_and_again(tmp_path: Path) -> None:
    third = "33" * 32
    said = policy.read(policy_of(tmp_path, ME, operators={"us": third}, replaced={OLD: NEW, NEW: third}))
    assert [said.key_now(key) for key in (OLD, NEW, third)] == [third] * 3


@pytest.mark.parametrize(
    "operators, replaced, found",
    [
        ({"us": OLD}, {OLD: NEW}, "is in \\[operators\\], too"),
        ({"us": "33" * 32}, {OLD: NEW}, "not in \\[operators\\]"),
        ({"us": "33" * 32}, {OLD: NEW, NEW: OLD}, "replaced by itself"),
    ],
)
def test_a_replaced_key_leads_to_an_operator(
    tmp_path: Path, operators: dict[str, str], replaced: dict[str, str], found: str
) -> None:
    with pytest.raises(ConfigError, match=found):
        policy.read(policy_of(tmp_path, ME, operators=operators, replaced=replaced))
