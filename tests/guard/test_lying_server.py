"""A server that lies about a secure sum, to real guards: refusals, and never one client's numbers."""

from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from struct import pack
from typing import Any, NamedTuple

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from discretion.clients import messages
from discretion.clients.messages import Answer, Join, Survivors, Train, decode_answer, encode, sign
from discretion.clients.sum_terms import terms_of
from discretion.guard.guard import Guard
from discretion.guard.identity import own_keys
from discretion.plan.plan import Plan
from discretion.secure_sum.contribution import Contribution, contribute, read_contribution
from discretion.secure_sum.letters import request_of
from discretion.secure_sum.roster import Roster, roster_digest
from discretion.secure_sum.terms import Terms
from discretion.secure_sum.unmasking import unmask
from support.guarding import KEY, LOCAL, RECORDS, SHAPES, cryptographic, ledger_of, spent_of
from support.summing import CLIENTS, roster_of, summed, summing_guards

PLAN = cryptographic(summed(2, dropout=0.4))
ZERO = np.zeros(650, np.float32).tobytes()


class Scene(NamedTuple):
    """Five guards that joined a run and contributed to its first round."""

    folder: Path
    guards: dict[str, Guard]
    roster: Roster
    terms: Terms
    sent: dict[str, Contribution]

    @property
    def members(self) -> list[str]:
        return [contact.client for contact in self.terms.committee]

    def ask(self, client: str, order: messages.AnyOrder, body: bytes) -> tuple[Answer, bytes]:
        return decode_answer(self.guards[client].answer(sign(encode(order, body), KEY)))

    def survivors(self, member: str, request: bytes, **other: Any) -> tuple[Answer, bytes]:
        about = {"client": member, "run": "r", "plan": PLAN.digest(), "round": 1, "pool": 0}
        return self.ask(member, Survivors(**(about | other)), request)

    def letters(self, *clients: str) -> bytes:
        return request_of(self.sent[name].letter for name in clients)

    def refused(self, request: bytes, **other: Any) -> str:
        """Ask every member; return the reason for which all refuse."""
        said = [self.survivors(member, request, **other) for member in self.members]
        assert {(answer.kind, body) for answer, body in said} == {("refused", b"")}, said
        (reason,) = {answer.reason for answer, _ in said}
        return reason


def train_order(client: str, round_: int) -> Train:
    phase, me = PLAN.phases[0], CLIENTS.index(client)
    about: dict[str, Any] = {"client": client, "run": "r", "plan": PLAN.digest(), "local": asdict(LOCAL)}
    clip, noise = float(phase.clip[me]), float(PLAN.own_noise(phase)[me])
    return Train(**about, round=round_, turn=0, key=3, clip=clip, noise=noise)


def contributed(
    scene_guards: dict[str, Guard], terms: Terms, clients: tuple[str, ...]
) -> dict[str, Contribution]:
    sent = {}
    for name in clients:
        order = encode(train_order(name, terms.round), ZERO)
        answer, body = decode_answer(scene_guards[name].answer(sign(order, KEY)))
        assert answer.kind == "done", answer.reason
        sent[name] = read_contribution(body, terms)
    return sent


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    guards = summing_guards(tmp_path, test_seed=None)
    roster = roster_of(tmp_path)
    terms = terms_of(PLAN, roster, "r", 1, 0)
    about: dict[str, Any] = {"run": "r", "plan": PLAN.digest(), "size": 40, "model": "linear"}
    about |= {"shapes": SHAPES, "records": RECORDS, "local": asdict(LOCAL)}
    for name, guard in guards.items():
        join = Join(client=name, **about, roster=roster_digest(roster, PLAN.clients))
        answer, _ = decode_answer(guard.answer(sign(encode(join, PLAN.to_json().encode()), KEY)))
        assert answer.kind == "done", answer.reason
    yield Scene(tmp_path, guards, roster, terms, contributed(guards, terms, CLIENTS))
    for guard in guards.values():
        guard.close()


def choices(scene: Scene) -> int:
    found = 0
    for name in CLIENTS:
        with ledger_of(scene.folder, int(name[1:])) as ledger:
            found += len(ledger._read("SELECT * FROM choice"))
    return found


def forged(scene: Scene, name: str, identity: Ed25519PrivateKey, known: Roster | None = None) -> Contribution:
    terms = terms_of(PLAN, known or scene.roster, "r", 1, 0)
    return contribute(terms, name, identity, np.zeros(650, np.int64))


def invented(scene: Scene) -> bytes:
    """The last two clients under keys of the server's own."""
    keys = {name: own_keys(scene.folder / "invented" / name) for name in CLIENTS[3:]}
    known = Roster({**scene.roster.contacts, **{name: each.contact(name) for name, each in keys.items()}})
    new = {name: forged(scene, name, each.identity, known) for name, each in keys.items()}
    return request_of((scene.sent | new)[name].letter for name in CLIENTS)


def unknown(scene: Scene) -> bytes:
    """A client that is in no roster, in place of another of the same length."""
    letter = scene.sent["c4"].letter
    return request_of([*(scene.sent[n].letter for n in CLIENTS[:4]), type(letter)("c9", *_rest(letter))])


def _rest(letter: Any) -> tuple[Any, ...]:
    return letter.terms, letter.vector, letter.envelopes, letter.signature


LIES: dict[str, tuple[Callable[[Scene], bytes], dict[str, Any], str]] = {
    "one client alone": (lambda s: s.letters("c0"), {}, "found 1 survivors of run 'r', round 1, pool 0"),
    "too few": (lambda s: s.letters("c0", "c1"), {}, "expected at least 3"),
    "one client three times": (
        lambda s: pack("<I", 3) + 3 * s.sent["c0"].letter.to_bytes(),
        {},
        "'c0' comes 3 times",
    ),
    "invented keys": (invented, {}, "is not signed by its identity key"),
    "an invented client": (unknown, {}, "'c9' is not a client of pool 0 in this roster"),
    "another round": (lambda s: s.letters(*CLIENTS), {"round": 2}, ""),
    "a round that is not in the plan": (lambda s: s.letters(*CLIENTS), {"round": 3}, "has no secure sum"),
    "another pool": (lambda s: s.letters(*CLIENTS), {"pool": 1}, "has no clients in pool 1"),
    "another run": (lambda s: s.letters(*CLIENTS), {"run": "q"}, "has not joined run q"),
    "another plan": (lambda s: s.letters(*CLIENTS), {"plan": "0" * 64}, "was joined with another plan"),
    "a changed bit": (
        lambda s: s.letters(*CLIENTS)[:-1] + bytes([s.letters(*CLIENTS)[-1] ^ 1]),
        {},
        "is not signed by its identity key",
    ),
    "cut short": (lambda s: s.letters(*CLIENTS)[:-1], {}, "not a request"),
    "nothing": (lambda s: b"", {}, "not a request"),
}


@pytest.mark.parametrize("name", LIES)
def test_a_lie_is_refused_before_anything_is_on_record(name: str, scene: Scene) -> None:
    lie, other, why = LIES[name]
    before = spent_of(scene.folder, 0)
    if other.get("round") == 2:
        later = terms_of(PLAN, scene.roster, "r", 2, 0)
        said = [scene.survivors(contact.client, lie(scene), round=2) for contact in later.committee]
        assert all(body == b"" and "wrote for another" in answer.reason for answer, body in said)
    else:
        assert why in scene.refused(lie(scene), **other)
    assert choices(scene) == 0 and spent_of(scene.folder, 0) == before


def test_one_set_of_survivors_is_answered_for_whatever_comes_after(scene: Scene) -> None:
    true = scene.letters(*CLIENTS)
    answers = {member: scene.survivors(member, true)[1] for member in scene.members}
    total = unmask(scene.terms, list(scene.sent.values()), answers)
    assert np.abs(total).max() < 2**31 and choices(scene) == 2
    spent = [spent_of(scene.folder, i) for i in range(5)]
    for left in (CLIENTS[:4], CLIENTS[1:], CLIENTS[:3]):
        assert "has other survivors on record" in scene.refused(scene.letters(*left))
    later = terms_of(PLAN, scene.roster, "r", 2, 0)
    contributed(scene.guards, later, CLIENTS)
    assert {member: scene.survivors(member, true)[1] for member in scene.members} == answers
    assert "has other survivors on record" in scene.refused(scene.letters(*CLIENTS[:4]))
    assert choices(scene) == 2 and len(spent) == 5


def test_two_members_told_of_different_sets_give_noise(scene: Scene) -> None:
    """The second member's masks stay on: neither the difference nor a sum comes out."""
    first, second = scene.members
    fewer = [name for name in CLIENTS if name != "c0"]
    answers = {first: scene.survivors(first, scene.letters(*CLIENTS))[1]}
    answers[second] = scene.survivors(second, scene.letters(*fewer))[1]
    assert all(answers.values())
    masked = sum(scene.sent[name].masked.astype(np.uint64) for name in CLIENTS) % 2**32
    taken = [np.frombuffer(body[-2600:], "<u4").astype(np.uint64) for body in answers.values()]
    rest = (masked + 2**33 - taken[0] - taken[1]) % 2**32
    assert 0.2 < float((rest > 2**31).mean()) < 0.8 and np.ptp(rest.astype(np.float64)) > 2**31
    assert "has other survivors on record" in scene.survivors(second, scene.letters(*CLIENTS))[0].reason


def test_only_members_give_masks_and_an_order_is_for_one_guard(scene: Scene) -> None:
    true = scene.letters(*CLIENTS)
    outside = next(name for name in CLIENTS if name not in scene.members)
    answer, body = scene.survivors(outside, true)
    assert "is not in the committee" in answer.reason and body == b""
    about: dict[str, Any] = {"run": "r", "plan": PLAN.digest(), "round": 1, "pool": 0}
    order = encode(Survivors(client=scene.members[0], **about), true)
    answer, body = decode_answer(scene.guards[outside].answer(sign(order, KEY)))
    assert "addressed to another client" in answer.reason and body == b""
    assert choices(scene) == 0


def test_another_order_for_the_same_round_gets_no_second_contribution(scene: Scene) -> None:
    again = train_order("c0", 1).model_copy(update={"key": 4})
    answer, body = scene.ask("c0", again, ZERO)
    assert "was requested before, by another order" in answer.reason and body == b""
    spent = spent_of(scene.folder, 0)
    answer, body = scene.ask("c0", train_order("c0", 1), ZERO)
    assert body == scene.sent["c0"].to_bytes() and spent_of(scene.folder, 0) == spent


def test_a_finished_run_reveals_no_new_sum(scene: Scene) -> None:
    for name in CLIENTS:
        finish = messages.Finish(client=name, run="r", plan=PLAN.digest(), rounds=1)
        assert scene.ask(name, finish, b"")[0].kind == "done"
    assert "run r is finished" in scene.refused(scene.letters(*CLIENTS))
    assert choices(scene) == 0


def test_a_plan_without_a_secure_sum_has_no_survivors(tmp_path: Path) -> None:
    plan: Plan = cryptographic(summed(1, promise="clients"))
    guards = summing_guards(tmp_path, test_seed=None, against="clients", trust_server=True)
    about: dict[str, Any] = {"client": "c0", "run": "r", "plan": plan.digest()}
    more = {"size": 40, "model": "linear", "shapes": SHAPES, "records": RECORDS, "local": asdict(LOCAL)}
    join = encode(Join(**about, **more), plan.to_json().encode())
    assert decode_answer(guards["c0"].answer(sign(join, KEY)))[0].kind == "done"
    order = encode(Survivors(**about, round=1, pool=0), b"")
    assert "has no secure sum" in decode_answer(guards["c0"].answer(sign(order, KEY)))[0].reason
