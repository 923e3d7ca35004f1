"""One client's guard that is asked directly, with its folder copied, restored and recovered."""

import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from discretion.clients.messages import Answer, AnyOrder, Join, Train, decode_answer, encode, sign
from discretion.guard import own_ledger, policy
from discretion.guard.guard import Guard
from discretion.ledger.guard_ledger import Charged
from discretion.ledger.keys import Head
from discretion.plan.plan import Plan
from support.guarding import (
    KEY,
    LOCAL,
    RECORDS,
    SHAPES,
    cryptographic,
    guard_of,
    own_pools,
    plan_of,
    policy_of,
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


def joining(plan: Plan = PLAN, run: str = "r") -> Join:
    fields = about(plan, run) | {"size": 40, "model": "linear", "shapes": SHAPES}
    return Join(**fields, records=RECORDS, local=asdict(LOCAL))


def enter(guard: Guard, plan: Plan = PLAN, run: str = "r", heads: Sequence[Head] = ()) -> Answer:
    return ask(guard, joining(plan, run), heads, plan.to_json().encode())[0]


def started(folder: Path, **more: Any) -> Guard:
    return guard_of(folder, ME, **(REAL | more))


def home(folder: Path) -> Path:
    return folder / "c1" / "guard"


def recover(folder: Path, loss: Any) -> Charged:
    return own_ledger.recover(policy.read(policy_of(folder, ME, **REAL)), loss)


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
