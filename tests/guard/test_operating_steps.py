"""The steps of docs/operating.md for backup, rotation and upgrade, followed to the letter."""

import json
import re
import sqlite3
import tomllib
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from console import Shell, blocks

from discretion.clients.messages import decode_answer, encode, public_bytes, read_key, sign
from discretion.errors import LedgerError
from discretion.guard.guard import Guard
from discretion.ledger.store import VERSION
from support.guarding import (
    charged,
    cryptographic,
    ledger_of,
    own_pools,
    plan_of,
    policy_of,
    spent_of,
)
from support.one_guard import ME, PLAN, SHORT, ZERO, ask, enter, home, joining, order, rounds_of, started

GUIDE = (Path(__file__).parents[2] / "docs" / "operating.md").read_text(encoding="utf-8")


def section(heading: str) -> str:
    """Return the text under a heading, up to the next one."""
    found = re.search(rf"^{heading}\n(.*?)^##", GUIDE, re.M | re.S)
    assert found, heading
    return found[1]


def steps(heading: str) -> list[str]:
    """Return the blocks of commands under a heading, for client c1."""
    return [block.text.replace("hospital-a", "c1") for block in blocks(section(heading))]


def follow(shell: Shell, text: str) -> str:
    done = shell.script(text)
    assert done.code == 0, f"{text}\n{done.said}"
    return done.said


def test_a_guard_is_backed_up_and_restored(tmp_path: Path) -> None:
    copied, put_back, said = steps("### Backup and restore, step by step")
    guard = started(tmp_path)
    shell = Shell(home(tmp_path).parent)
    enter(guard)
    rounds_of(guard, 1)
    follow(shell, copied)  # while the guard is running
    head, _ = rounds_of(guard, 2, 3)
    guard.close()
    assert '"r"' in follow(shell, put_back)
    with pytest.raises(LedgerError, match="copy from a backup"):
        started(tmp_path)
    follow(shell, said)
    assert spent_of(tmp_path, ME) == pytest.approx(charged(PLAN, ME))
    guard = started(tmp_path)
    assert ask(guard, order(2), [head])[0].reason == "run r is finished"
    assert enter(guard, SHORT, "other", [head]).kind == "done"
    guard.close()


def test_keys_are_rotated_in_the_middle_of_a_run(tmp_path: Path) -> None:
    own, operators = steps("## Rotating keys")
    policy_of(tmp_path, ME)
    shell = Shell(home(tmp_path).parent)
    follow(shell, "discretion key operator.key")
    old = read_key(shell.folder / "operator.key")

    def answered(guard: Guard, key: Any, what: Any, body: bytes = ZERO) -> str:
        return decode_answer(guard.answer(sign(encode(what, body), key)))[0].reason

    guard = started(tmp_path, operators={"consortium": public_bytes(old).hex()})
    assert answered(guard, old, joining(), PLAN.to_json().encode()) == answered(guard, old, order(1)) == ""
    head = guard._ledger.head
    guard.close()
    follow(shell, own)
    follow(shell, operators)
    new = read_key(shell.folder / "operator.key")
    (text,) = re.findall(r"^```toml\n(.*?)^```", section("## Rotating keys"), re.M | re.S)
    for shown, key in (("7f3c…", old), ("91ab…", new)):
        text = text.replace(shown, public_bytes(key).hex())
    guard = started(tmp_path, **tomllib.loads(text))
    assert guard._ledger.head.key != head.key
    assert answered(guard, new, order(2)) == ""
    assert "not listed" in answered(guard, old, order(3))
    guard.close()


def test_a_ledger_of_an_earlier_format_is_refused_and_what_was_left_is_carried_over(tmp_path: Path) -> None:
    written, carried_over = steps("## Upgrading")
    dear = cryptographic(plan_of(own_pools(1, noise=0.4)))
    assert 2.5 < charged(dear, ME) < 4
    guard = started(tmp_path)
    enter(guard)
    head, _ = rounds_of(guard, 1)
    guard.close()
    shell = Shell(home(tmp_path).parent)
    follow(shell, written)
    (row,) = json.loads((shell.folder / "before-upgrade.json").read_text())["clients"]
    assert row["budget"] == 4.0 and row["spent"] > 0
    with closing(sqlite3.connect(home(tmp_path) / "ledger.sqlite")) as db, db:
        db.execute(f"PRAGMA user_version = {VERSION - 1}")
    with pytest.raises(
        LedgerError, match=f"expected format {VERSION} or a new file, found format {VERSION - 1}"
    ):
        started(tmp_path)
    follow(shell, carried_over)
    with ledger_of(tmp_path, ME) as ledger:
        assert ledger.budget.tolist() == [2.5] and [change.by for change in ledger.changes] == [-4.0, 2.5]
    guard = started(tmp_path)
    assert "budget does not allow" in enter(guard, dear, "dear", [head]).reason
    assert enter(guard, SHORT, "cheap", [head]).kind == "done"
    guard.close()


def test_a_new_ledger_that_only_forgets_is_refused(tmp_path: Path) -> None:
    """What the steps for an upgrade warn of: the old ledger is moved away, and nothing is said."""
    started(tmp_path).close()
    (home(tmp_path) / "ledger.sqlite").unlink()
    with pytest.raises(LedgerError, match="nothing on record that its key"):
        started(tmp_path)
