"""kill -9 of a guard at each step of a secure sum: then the same bytes, and one set of survivors."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from discretion.clients import messages
from discretion.clients.messages import Join, Survivors, Train, decode_answer, encode, sign
from discretion.clients.sum_terms import terms_of
from discretion.guard import policy
from discretion.guard.guard import Guard
from discretion.guard.identity import own_keys
from discretion.secure_sum.contribution import Contribution, contribute, read_contribution
from discretion.secure_sum.letters import request_of
from discretion.secure_sum.roster import roster_digest
from support.guard_process import Process
from support.guarding import KEY, LOCAL, RECORDS, SHAPES, cryptographic, sockets, spent_of
from support.summing import CLIENTS, policies, roster_of, summed

PLAN = cryptographic(summed(1, dropout=0.4))
ZERO = np.zeros(650, np.float32).tobytes()
KILL = "import os, signal\n{lines}\n"
STEPS = {
    "before a contribution is kept": "from discretion.ledger.guard_ledger import GuardLedger as G\n"
    "def die(*a): os.kill(os.getpid(), signal.SIGKILL)\nG.keep = die",
    "after a contribution is kept": "from discretion.clients import messages as m\n"
    "real = m.sign_answer\n"
    "def die(a, k):\n    if b'\"done\"' in a and len(a) > 2600: os.kill(os.getpid(), signal.SIGKILL)\n"
    "    return real(a, k)\nm.sign_answer = die",
    "before a choice is kept": "from discretion.ledger.guard_ledger import GuardLedger as G\n"
    "def die(*a): os.kill(os.getpid(), signal.SIGKILL)\nG.choose = die",
    "after a choice is kept": "from discretion.guard import own_sums as o\n"
    "def die(*a): os.kill(os.getpid(), signal.SIGKILL)\no.answer = die",
}


def send(folder: Path, client: str, message: bytes) -> tuple[messages.Answer, bytes] | None:
    found = list(sockets(folder).exchange([(client, sign(message, KEY))], 20.0))
    return decode_answer(found[0][1]) if found else None


@pytest.mark.parametrize("step", STEPS)
def test_a_guard_that_is_killed_goes_on_where_it_was(step: str, tmp_path: Path) -> None:
    paths, roster = policies(tmp_path, test_seed=None), roster_of(tmp_path)
    terms = terms_of(PLAN, roster, "r", 1, 0)
    me = terms.committee[0].client
    about: dict[str, Any] = {"client": me, "run": "r", "plan": PLAN.digest()}
    more: dict[str, Any] = {"size": 40, "model": "linear", "shapes": SHAPES, "records": RECORDS}
    join = Join(**about, **more, local=asdict(LOCAL), roster=roster_digest(roster, PLAN.clients))
    phase, number = PLAN.phases[0], CLIENTS.index(me)
    clip, noise = float(phase.clip[number]), float(PLAN.own_noise(phase)[number])
    order = Train(**about, round=1, turn=0, key=3, clip=clip, noise=noise, local=asdict(LOCAL))
    train = encode(order, ZERO)

    def others() -> dict[str, Contribution]:
        keys = {name: own_keys(tmp_path / name / "guard") for name in CLIENTS if name != me}
        nothing = np.zeros(650, np.int64)
        return {name: contribute(terms, name, each.identity, nothing) for name, each in keys.items()}

    killed = Process(paths[me], KILL.format(lines=STEPS[step])).ready()
    said = send(tmp_path, me, encode(join, PLAN.to_json().encode()))
    assert said is not None and said[0].kind == "done", said
    came, first = send(tmp_path, me, train), others()
    request = request_of(each.letter for each in first.values())
    asked = encode(Survivors(**about, round=1, pool=0), request)
    if "choice" in step:
        assert came is not None and send(tmp_path, me, asked) is None
    else:
        assert came is None
    killed.wait()
    guard = Guard(policy.read(paths[me]))
    answer, body = decode_answer(guard.answer(sign(train, KEY)))
    if step == "before a contribution is kept":  # its noise may have been drawn: it is not made again
        assert "is not made again" in answer.reason and body == b""
    else:
        assert read_contribution(body, terms).letter.sender == me and (came is None or came[1] == body)
    spent = spent_of(tmp_path, number)
    assert spent > 0
    second = request_of(each.letter for each in others().values())
    if step == "after a choice is kept":
        refused, _ = decode_answer(
            guard.answer(sign(encode(Survivors(**about, round=1, pool=0), second), KEY))
        )
        assert "has other survivors on record" in refused.reason
    one, two = (decode_answer(guard.answer(sign(asked, KEY))) for _ in "ab")
    assert one[0].kind == "done" and one[1] == two[1] and len(one[1]) > 2600
    assert spent_of(tmp_path, number) == spent
    guard.close()
