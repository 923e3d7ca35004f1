"""A guard hands out noisy, charged releases, each once; everything else is refused, and costs nothing."""

import hashlib
import socket
import sqlite3
import stat
import struct
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from discretion.accounting import certify
from discretion.clients import transport
from discretion.clients.messages import (
    Answer,
    AnyOrder,
    Finish,
    Join,
    Local,
    Read,
    Train,
    decode_answer,
    digest,
    encode,
    read_key,
    sign,
    verified,
    write_key,
)
from discretion.clients.training import Schedule
from discretion.clients.transport import read_addresses
from discretion.errors import ConfigError, DataError, InputError, LedgerError
from discretion.guard import checks, policy
from discretion.guard.data import own_records
from discretion.guard.guard import Guard
from discretion.guard.serve import serve
from discretion.jsonfile import dump
from discretion.plan.phase import Clipping, Phase, Quantile
from discretion.plan.plan import Plan
from discretion.plan.selection_rules import Reading
from support.guard_process import Process
from support.guarding import (
    DATA,
    HOLDINGS,
    KEY,
    LOCAL,
    PEOPLE,
    RECORDS,
    SHAPES,
    STRANGER,
    charged,
    cryptographic,
    guard_of,
    ledger_of,
    one_pool,
    own_pools,
    plan_of,
    policy_of,
    sockets,
    spent_of,
)

PLAN = cryptographic(plan_of(own_pools(6)))
ME = 1
ZERO = np.zeros(650, np.float32).tobytes()
REAL: dict[str, Any] = {"test_seed": None}


def about(plan: Plan = PLAN, run: str = "r") -> dict[str, str]:
    return {"client": "c1", "run": run, "plan": plan.digest()}


def join(plan: Plan = PLAN, run: str = "r", **more: Any) -> Join:
    fields = about(plan, run) | {"size": 40, "model": "linear", "shapes": SHAPES, "records": RECORDS}
    fields |= {"local": asdict(LOCAL)}
    return Join(**(fields | more))


def order(round_: int = 1, plan: Plan = PLAN, run: str = "r", **more: Any) -> Train:
    phase = plan.phases[0]
    fields = about(plan, run) | {"round": round_, "turn": 0, "key": 9, "local": asdict(LOCAL)}
    fields |= {"clip": float(phase.clip[ME]), "noise": float(plan.own_noise(phase)[ME])}
    return Train(**(fields | more))


def ask(
    guard: Guard, what: AnyOrder, body: bytes = ZERO, key: Ed25519PrivateKey = KEY
) -> tuple[Answer, bytes]:
    message = encode(what, body)
    answer, found = decode_answer(guard.answer(sign(message, key)))
    assert answer.order == digest(message)
    return answer, found


def enter(guard: Guard, plan: Plan = PLAN, run: str = "r", **more: Any) -> Answer:
    return ask(guard, join(plan, run, **more), plan.to_json().encode())[0]


def record(folder: Path) -> str:
    """All that is on record in the guard's ledger."""
    with ledger_of(folder, ME) as ledger:
        return "\n".join(ledger._db.iterdump())


@pytest.fixture
def guard(tmp_path: Path) -> Iterator[Guard]:
    made = guard_of(tmp_path, ME, **REAL)
    assert enter(made).kind == "done"
    yield made
    made.close()


def test_a_release_is_within_its_clip_with_the_noise_of_the_plan(guard: Guard) -> None:
    answers = [ask(guard, order(t)) for t in range(1, 7)]
    assert all(answer.kind == "done" for answer, _ in answers)
    numbers = np.array([np.frombuffer(body, np.float32) for _, body in answers])
    assert numbers.shape == (6, 650)
    assert np.diff(numbers, axis=0).std() == pytest.approx(4.0 * 2**0.5, rel=0.05)
    assert ask(guard, order(7, clip=0.25, noise=4.0))[0].reason == "round 7 is not in the plan of 6 rounds"


def test_the_same_order_gets_the_same_bytes_and_is_charged_once(guard: Guard, tmp_path: Path) -> None:
    first = ask(guard, order(1))
    spent = spent_of(tmp_path, ME)
    assert spent > 0
    assert ask(guard, order(1)) == first == ask(guard, order(1))
    assert spent_of(tmp_path, ME) == spent
    assert ask(guard, order(2))[1] != first[1] and spent_of(tmp_path, ME) > spent
    gone = ask(guard, order(1))[0]
    assert gone.kind == "refused" and "not made again" in gone.reason


def test_a_guard_that_starts_again_goes_on(guard: Guard, tmp_path: Path) -> None:
    first = ask(guard, order(1))
    guard.close()
    again = guard_of(tmp_path, ME, **REAL)
    before = record(tmp_path)
    assert enter(again).kind == "done" and ask(again, order(1)) == first
    assert record(tmp_path) == before
    assert ask(again, order(2))[0].kind == "done"
    again.close()


def test_rounds_in_which_it_was_not_asked_count(guard: Guard, tmp_path: Path) -> None:
    ask(guard, order(4))
    assert spent_of(tmp_path, ME) == pytest.approx(charged(PLAN, ME, 4))
    assert ask(guard, Finish(**about(), rounds=3), b"")[0].kind == "refused"
    assert ask(guard, Finish(**about(), rounds=6), b"")[0].kind == "done"
    assert spent_of(tmp_path, ME) == pytest.approx(charged(PLAN, ME))
    assert (
        ask(guard, order(6))[0].reason != "" and ask(guard, Finish(**about(), rounds=6), b"")[0].reason == ""
    )


OTHER = replace(PLAN, phases=(replace(PLAN.phases[0], rounds=7),))
ATTACKS: dict[str, tuple[AnyOrder, str]] = {
    "less noise": (order(2, noise=1.0), "the order has noise 1, the plan has 4"),
    "no noise": (order(2, noise=0.0), "the order has noise 0, the plan has 4"),
    "a larger clip": (order(2, clip=50.0), "the order has clip 50, the plan has 0.25"),
    "another plan": (order(2, OTHER), "joined with another plan"),
    "a plan of twice the rounds": (order(12), "round 12 is not in the plan of 6 rounds"),
    "a round before the first": (order(0), "round 0 is not in the plan"),
    "a replayed round of other content": (order(1, key=10), "by another order"),
    "a second turn": (order(1, turn=1), "turn 2 of round 1 is not in the plan"),
    "a negative turn": (order(2, turn=-1), "turn 0 of round 2 is not in the plan"),
    "other local training": (order(2, local=asdict(replace(LOCAL, epochs=2))), "is not the one agreed on"),
    "another run": (order(2, run="s"), "has not joined run s"),
    "another client's order": (order(2, client="c0"), "addressed to another client"),
    "a statistic": (
        Read(**about(), round=2, rule="norm", bound=1.0, noise=1.0),
        "statistic is not in the plan",
    ),
    "a second plan for the run": (join(OTHER), "joined with another order"),
    "an end before what was done": (
        Finish(**about(), rounds=0),
        "cannot finish after round 0: expected 1 to 6",
    ),
    "an end after the plan": (Finish(**about(), rounds=7), "cannot finish after round 7"),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_what_was_not_agreed_on_is_refused_and_the_ledger_is_untouched(
    name: str, guard: Guard, tmp_path: Path
) -> None:
    ask(guard, order(1))
    before = record(tmp_path)
    attack, reason = ATTACKS[name]
    message = encode(attack, OTHER.to_json().encode() if isinstance(attack, Join) else ZERO)
    answer, body = decode_answer(guard.answer(sign(message, KEY)))
    assert answer.kind == "refused" and reason in answer.reason and body == b""
    assert record(tmp_path) == before
    assert ask(guard, order(2))[0].kind == "done"


def test_numbers_that_are_none_are_refused(guard: Guard, tmp_path: Path) -> None:
    before, header = record(tmp_path), dump(order(1).model_dump())
    for what, number in (("noise", "4.0"), ("clip", "0.25")):
        for text in ("NaN", '"nan"', "null", "[4.0]", "1e999", '"inf"', "-1e-300"):
            changed = header.replace(f'"{what}": {number}', f'"{what}": {text}').encode()
            assert changed != header.encode()
            message = struct.pack(">I", len(changed)) + changed + ZERO
            answer, _ = decode_answer(guard.answer(sign(message, KEY)))
            assert answer.kind == "refused"
    assert record(tmp_path) == before


def test_a_round_out_of_order_is_refused(guard: Guard, tmp_path: Path) -> None:
    ask(guard, order(3))
    before = record(tmp_path)
    answer, _ = ask(guard, order(2))
    assert answer.reason == "expected round 3 or later of run r, got 2" and record(tmp_path) == before


def test_only_the_operator_that_joined_a_run_may_go_on_with_it(tmp_path: Path) -> None:
    other = Ed25519PrivateKey.from_private_bytes(bytes(range(2, 34)))
    keys = {"us": KEY.public_key(), "them": other.public_key()}
    operators = {name: key.public_bytes_raw().hex() for name, key in keys.items()}
    guard = guard_of(tmp_path, ME, **REAL, operators=operators)
    assert enter(guard).kind == "done"
    before = record(tmp_path)
    assert (
        ask(guard, order(1), key=STRANGER)[0].reason == "operator key not listed in this guard's [operators]"
    )
    assert ask(guard, order(1), key=other)[0].reason == "run r was joined with another operator key"
    text = PLAN.to_json().encode()
    assert "with another order" in ask(guard, join(), text, other)[0].reason
    good = sign(encode(order(1), ZERO), KEY)
    for at in (0, 40, 100, len(good) - 1):  # the key, the signature, the header, the model
        changed = good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :]
        answer, body = decode_answer(guard.answer(changed))
        assert "signature" in answer.reason and body == b""
    foreign = KEY.public_key().public_bytes_raw() + KEY.sign(good[96:]) + good[96:]
    assert "signature" in decode_answer(guard.answer(foreign))[0].reason
    assert record(tmp_path) == before
    guard.close()


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.one_of(
        st.binary(max_size=200),
        st.text(max_size=100).map(str.encode),
        st.dictionaries(st.sampled_from(["kind", "run", "file", "data"]), st.text(max_size=9))
        .map(repr)
        .map(str.encode),
    ),
    st.booleans(),
)
def test_whatever_comes_is_answered_by_a_refusal(guard: Guard, content: bytes, signed: bool) -> None:
    if signed:
        content = sign(struct.pack(">I", len(content)) + content, KEY)
    answer, body = decode_answer(guard.answer(content))
    assert answer.kind == "refused" and answer.reason and body == b""


@pytest.mark.parametrize("kind", ["data", "file", "raw", "update", "ledger", "metrics", "exec", "__init__"])
def test_there_is_no_order_for_anything_but_releases(guard: Guard, tmp_path: Path, kind: str) -> None:
    before = record(tmp_path)
    fields = order(1).model_dump()
    for more in (
        {"kind": kind},
        {"kind": kind, "path": "/etc/passwd"},
        {"raw": True},
        {"file": "records.txt"},
    ):
        header = dump(fields | more).encode()
        message = struct.pack(">I", len(header)) + header + ZERO
        answer, body = decode_answer(guard.answer(sign(message, KEY)))
        assert answer.kind == "refused" and body == b"" and "not an order" in answer.reason
        assert "/etc" not in answer.reason
    assert record(tmp_path) == before


@pytest.mark.parametrize("size", [0, 4, 2599, 2604])
def test_a_model_of_another_size_is_refused(guard: Guard, tmp_path: Path, size: int) -> None:
    before = record(tmp_path)
    answer, _ = ask(guard, order(1), bytes(size))
    assert "expected 650 numbers" in answer.reason and record(tmp_path) == before


def test_a_model_of_nonsense_moves_nothing_but_noise(guard: Guard) -> None:
    bad = np.full(650, np.nan, np.float32).tobytes()
    answer, body = ask(guard, order(1), bad)
    numbers = np.frombuffer(body, np.float32)
    assert answer.kind == "done" and np.isfinite(numbers).all() and numbers.std() > 3


def test_nothing_of_an_error_inside_leaves(
    guard: Guard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise ValueError("the patient's name")

    with monkeypatch.context() as patch:
        patch.setattr("discretion.guard.guard.hand_out", fails)
        answer, body = ask(guard, order(1))
    assert answer.kind == "refused" and "patient" not in answer.reason and body == b""
    assert "not made again" in ask(guard, order(1))[0].reason  # it was begun, and so it counts
    assert ask(guard, order(2))[0].kind == "done"
    with ledger_of(tmp_path, ME) as ledger:
        assert ledger.states("r") == [(1, "committed"), (2, "committed")]


def test_a_seeded_guard_makes_an_interrupted_answer_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same numbers as without the interruption: seeded noise is for simulations that resume."""

    def fails(*_: object) -> None:
        raise ValueError

    plan, bodies = plan_of(own_pools(6)), []
    for name in ("whole", "interrupted"):
        (tmp_path / name).mkdir()
        guard = guard_of(tmp_path / name, ME)
        assert enter(guard, plan).kind == "done"
        if name == "interrupted":
            with monkeypatch.context() as patch:
                patch.setattr("discretion.guard.guard.hand_out", fails)
                assert ask(guard, order(1, plan))[0].kind == "refused"
        answer, body = ask(guard, order(1, plan))
        assert answer.kind == "done"
        bodies.append(body)
        guard.close()
    assert bodies[0] == bodies[1]


def test_a_store_that_fails_is_a_refusal_without_its_words(guard: Guard, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "c1" / "guard" / "ledger.sqlite")) as db:
        db.execute("DROP TABLE release")
    answer, body = ask(guard, order(1))
    assert "fault at the guard: its ledger cannot be used." in answer.reason and body == b""
    assert "release" not in answer.reason.replace("released", "")


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 10**400])
def test_numbers_beyond_what_a_ledger_holds_are_not_an_order(guard: Guard, number: int) -> None:
    """SQLite raises OverflowError, which was logged as an internal error."""
    for what in (order().model_copy(update={"round": number}), order().model_copy(update={"turn": number})):
        assert ask(guard, what)[0].reason.startswith("not an order of Discretion: train.")
    done = Finish(**about(), rounds=6).model_copy(update={"rounds": number})
    assert "finish.rounds" in ask(guard, done, b"")[0].reason


# joining


@pytest.mark.parametrize("text", [b"{}", b"\xff"])
def test_a_plan_that_cannot_be_read_is_refused(tmp_path: Path, text: bytes) -> None:
    guard = guard_of(tmp_path, ME, **REAL)
    before = record(tmp_path)
    assert "unreadable plan" in ask(guard, join(), text)[0].reason and record(tmp_path) == before
    guard.close()


def test_a_declared_size_that_is_not_true_is_in_the_owners_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    guard_of(tmp_path, ME, **REAL, size=41).close()
    assert "the policy says 41 records, found 40" in caplog.text


def steps(**more: Any) -> Phase:
    return own_pools(2, batch=np.full(5, 0.1), **more)


def agreed(**more: Any) -> Local:
    return Local.model_validate(asdict(replace(LOCAL, **more)))


def unchecked(**more: Any) -> Local:
    """What `LocalTraining` itself would not take."""
    return Local.model_validate(asdict(LOCAL) | more)


JOINS: dict[str, tuple[dict[str, Any], Plan, dict[str, Any], str]] = {
    "an unknown model": ({}, PLAN, {"model": "mlp"}, "model 'mlp' not listed"),
    "code of the operator's": ({}, PLAN, {"model": "os:getcwd"}, "model 'os:getcwd' not listed"),
    "other parameters": ({}, PLAN, {"shapes": "0" * 64}, "other parameter shapes"),
    "a model that the owner did not mean": (
        {"models": {"linear": "1" * 64}},
        PLAN,
        {},
        "other parameter shapes",
    ),
    "a larger model": (
        {"ceilings": {"parameters": 649}},
        PLAN,
        {},
        "650 parameters, more than the policy allows",
    ),
    "another size": (
        {"size": 40},
        PLAN,
        {"size": 41},
        "counts this client with 41 records, the policy says 40",
    ),
    "many epochs": ({}, PLAN, {"local": agreed(epochs=11)}, "11 epochs"),
    "many steps of local training": (
        {},
        PLAN,
        {"local": agreed(epochs=0, steps=1001)},
        "1001 steps of local",
    ),
    "neither epochs nor steps": ({}, PLAN, {"local": unchecked(epochs=0)}, "either epochs or steps"),
    "both epochs and steps": ({}, PLAN, {"local": unchecked(steps=1)}, "either epochs or steps"),
    "a growing rate": (
        {},
        PLAN,
        {"local": agreed(schedule=Schedule("decay", 1.1))},
        "factor above 0 and at most 1",
    ),
    "rates below 0": ({}, PLAN, {"local": agreed(learning_rate=-1.0)}, "at least 0"),
    "many rounds": (
        {"ceilings": {"rounds": 5}},
        PLAN,
        {},
        "rounds: this plan has 6, the policy allows at most 5",
    ),
    "a high rate": (
        {"ceilings": {"rate": 0.5}},
        PLAN,
        {},
        "sampling rate: this plan has 1.0, the policy allows at most 0.5",
    ),
    "many turns": (
        {},
        plan_of(own_pools(1, turns=np.full(5, 2)), randomness="cryptographic"),
        {},
        "turns in a round: this plan has 2, the policy allows at most 1",
    ),
    "turns in many rounds": (
        {"ceilings": {"rate": 0.5}},
        cryptographic(plan_of(own_pools(6, turns=np.ones(5, np.int64)))),
        {},
        "share of rounds with turns: this plan has 1.0",
    ),
    "another adjacency": (
        {"adjacency": "replace"},
        PLAN,
        {},
        "protects a client (replace), this plan protects a client (add_remove)",
    ),
    "another unit": ({}, cryptographic(plan_of(steps(), noise_at="steps")), {}, "protects a client"),
    "nobody colluding": (
        {},
        replace(PLAN, colluding=0),
        {},
        "against 0 colluding clients, not the policy's 1",
    ),
    "many steps": (
        {"unit": "record"},
        plan_of(steps(steps=1001), noise_at="steps", randomness="cryptographic"),
        {},
        "steps in a turn: this plan has 1001",
    ),
    "a weaker promise": (
        {},
        replace(PLAN, promise="clients"),
        {},
        "promises against clients, the policy asks for server",
    ),
    "a share of noise that the server sees": (
        {"against": "clients"},
        replace(PLAN, promise="clients"),
        {},
        "which the policy does not trust",
    ),
    "a server's noise": (
        {"against": "clients"},
        replace(PLAN, promise="clients", noise_at="server"),
        {},
        "which the policy does not trust",
    ),
    "a secure sum": (
        {"against": "clients"},
        replace(PLAN, promise="clients", noise_at="secure_sum"),
        {},
        "which the policy does not trust",
    ),
    "a secure sum against the server": (
        {"trust_server": True},
        replace(PLAN, noise_at="secure_sum"),
        {},
        "GUARD.toml has no [secure_sum]",
    ),
    "bits of clipping": (
        {"against": "clients", "trust_server": True},
        replace(PLAN, promise="clients", noise_at="server", clipping=Clipping(quantile=Quantile())),
        {},
        "adapts clips to whether updates were within them",
    ),
    "noise from a seed": ({}, replace(PLAN, randomness="seeded"), {}, "randomness is seeded"),
    "a statistic that is not named": (
        {"unit": "record", "statistics": ["largest_loss"]},
        plan_of(
            steps(turns=np.ones(5, np.int64), read=np.full(5, 9.0)),
            noise_at="steps",
            randomness="cryptographic",
            reading=Reading("norm", 2, 1.0),
        ),
        {},
        "which the policy's statistics do not list",
    ),
    "layers of another model": (
        {},
        replace(PLAN, clipping=Clipping((600, 51))),
        {},
        "layers have 651 parameters",
    ),
    "another plan than it names": ({}, PLAN, {"plan": "2" * 64}, "digest is not the one in the order"),
    "a plan without it": (
        {},
        replace(PLAN, clients=("c0", "x", "c2", "c3", "c4")),
        {},
        "does not list this client",
    ),
    "more than its budget": (
        {},
        cryptographic(plan_of(own_pools(6, 0.05))),
        {},
        "the client's budget does not allow this plan",
    ),
    "a statistic read raw": (
        {"unit": "record", "statistics": ["norm"]},
        plan_of(
            steps(turns=np.ones(5, np.int64), read=np.zeros(5)),
            noise_at="steps",
            randomness="cryptographic",
            reading=Reading("norm", 2, 1.0),
        ),
        {},
        "the client's budget does not allow this plan",
    ),
}


@pytest.mark.parametrize("name", JOINS)
def test_a_run_that_the_owner_would_not_join_is_refused(name: str, tmp_path: Path) -> None:
    settings, plan, more, reason = JOINS[name]
    guard = guard_of(tmp_path, ME, **(REAL | settings))
    before = record(tmp_path)
    asked = join(plan).model_copy(update=more)
    answer = ask(guard, asked, plan.to_json().encode())[0]
    assert answer.kind == "refused" and reason in answer.reason
    assert record(tmp_path) == before
    assert "has not joined" in ask(guard, order(1, plan))[0].reason
    guard.close()


def test_nobody_can_find_out_how_many_records_there_are(tmp_path: Path) -> None:
    guard = guard_of(tmp_path, ME, **REAL)  # it has 40
    costly = cryptographic(plan_of(own_pools(6, 0.05)))
    answers = {enter(guard, costly, f"r{size}", size=size).reason for size in (1, 39, 40, 41)}
    assert answers == {"the client's budget does not allow this plan"}
    guard.close()


def test_a_stricter_policy_holds_for_runs_that_were_joined_before(guard: Guard, tmp_path: Path) -> None:
    ask(guard, order(1))
    guard.close()
    for stricter, reason in (
        ({"ceilings": {"rounds": 5}}, "this plan has 6, the policy allows at most 5"),
        ({"unit": "record"}, "protects a record"),
        ({"models": {}}, "model 'linear' not listed"),
        ({"ceilings": {"epochs": 1, "parameters": 9}}, "more than the policy allows"),
    ):
        again = guard_of(tmp_path, ME, **REAL, **stricter)
        before = record(tmp_path)
        assert reason in ask(again, order(2))[0].reason and record(tmp_path) == before
        assert reason in enter(again).reason  # who asks again is told whether rounds will be answered
        again.close()
    again = guard_of(tmp_path, ME, **REAL, models={})
    assert ask(again, Finish(**about(), rounds=6), b"")[0].kind == "done"
    assert enter(again).kind == "done"  # nothing more is asked of a closed run
    again.close()


def test_by_the_planned_rule_what_other_runs_may_still_spend_is_not_given_twice(tmp_path: Path) -> None:
    """The whole first plan is promised, so a second run gets what is left of the budget."""
    guard = guard_of(tmp_path, ME, **REAL, rule="planned")
    assert enter(guard).kind == "done"
    big = cryptographic(plan_of(own_pools(20, 1.215)))
    alone = certify(big, PEOPLE).spent[ME]
    first = certify(PLAN, PEOPLE).spent[ME]
    assert first > 0 and alone < PEOPLE.epsilon[ME]
    assert enter(guard, big, "s").reason == "the client's budget does not allow this plan"
    assert "spent" not in enter(guard, big, "t").reason  # what was spent elsewhere is not told
    guard.close()


def test_the_noise_of_others_is_not_counted_against_a_server(tmp_path: Path) -> None:
    """Four other clients, or a thousand that do not exist: only its own share protects it."""
    plan = cryptographic(plan_of(one_pool(3, 2.0)))
    names = (*PEOPLE.client, *(f"x{i}" for i in range(1000)))
    many = Phase.one_pool(3, np.full(1005, 0.5), np.full(1005, 0.25), 2.0)
    crowd = replace(plan, clients=names, phases=(many,))
    guard = guard_of(tmp_path, ME, **REAL)
    assert enter(guard, plan).kind == "done"
    assert enter(guard, crowd, "s").reason == "the client's budget does not allow this plan"
    guard.close()


def test_an_operator_that_asks_more_often_than_by_coins_is_refused(tmp_path: Path) -> None:
    plan = cryptographic(plan_of(own_pools(40, 6.0, rate=0.05)))
    guard = guard_of(tmp_path, ME, **REAL)
    assert enter(guard, plan).kind == "done"
    answers = [ask(guard, order(t, plan))[0] for t in range(1, 9)]
    assert [answer.kind for answer in answers] == ["done"] * 6 + ["refused", "done"]  # 0.05^7 < 1e-9
    assert answers[6].reason == "asked 7 times in 7 rounds, where the plan's sampling rates expect 0.3"
    with ledger_of(tmp_path, ME) as ledger:
        assert len(ledger.states("r")) == 8
    guard.close()


def test_the_chance_of_being_asked_is_exact() -> None:
    rng = np.random.default_rng(1)
    rate = np.array([0.1, 0.5, 0.5, 0.9, 1.0, 0.0, 0.2])
    heads = (rng.random((200_000, 7)) < rate).sum(axis=1)
    for times in range(8):
        assert checks.chance_of_at_least(times, rate) == pytest.approx((heads >= times).mean(), abs=0.005)
    plan = plan_of(own_pools(2, rate=0.5), own_pools(3, rate=0.25))
    assert checks.coins(plan, 0, 4).tolist() == [0.5, 0.5, 0.25, 0.25]
    many = np.repeat([0.25, 0.5], 500_000)  # in seconds: the most rounds that a plan may have
    assert checks.chance_of_at_least(375_000, many) == pytest.approx(0.5, abs=0.01)
    assert checks.chance_of_at_least(378_000, many) < checks.IMPLAUSIBLE


def test_by_the_adaptive_rule_it_refuses_round_by_round(tmp_path: Path) -> None:
    plan = cryptographic(plan_of(own_pools(50, 1.0)))
    guard = guard_of(tmp_path, ME, **REAL, rule="adaptive")
    assert enter(guard, plan).kind == "done"
    kinds = [ask(guard, order(t, plan))[0].kind for t in range(1, 51)]
    granted = kinds.count("done")
    assert 5 < granted < 50 and kinds == ["done"] * granted + ["refused"] * (50 - granted)
    assert spent_of(tmp_path, ME) <= PEOPLE.epsilon[ME]
    assert ask(guard, order(50, plan))[0].reason == "the client's budget does not allow round 50"
    guard.close()


def test_outside_its_hours_only_what_was_handed_out_is_handed_out_again(tmp_path: Path) -> None:
    now = datetime(2026, 1, 5, 12)
    said = policy.read(policy_of(tmp_path, ME, **REAL, hours="08:00-18:00"))
    guard = Guard(said, lambda: now)
    assert enter(guard).kind == "done"
    first = ask(guard, order(1))
    now = datetime(2026, 1, 5, 18)
    before = record(tmp_path)
    assert ask(guard, order(2))[0].reason == "orders are accepted only from 08:00 to 18:00"
    assert "from 08:00" in enter(guard, run="s").reason and "from 08:00" in enter(guard).reason
    assert ask(guard, order(1)) == first and record(tmp_path) == before
    night = said.model_copy(update={"hours": "22:00-06:00"})
    assert [night.open_at(datetime(2026, 1, 5, hour)) for hour in (21, 22, 3, 6)] == [
        False,
        True,
        True,
        False,
    ]
    guard.close()


def test_a_statistic_has_its_noise_and_is_paid_for(tmp_path: Path) -> None:
    phase = steps(turns=np.ones(5, np.int64), read=np.full(5, 200.0))
    plan = plan_of(
        phase, noise_at="steps", randomness="cryptographic", reading=Reading("class_balance", 2, 0.5)
    )
    guard = guard_of(tmp_path, ME, **REAL, statistics=["class_balance"], epsilon=50.0, unit="record")
    assert enter(guard, plan).kind == "done"

    def read(round_: int, **more: Any) -> Read:
        fields: dict[str, Any] = {"rule": "class_balance", "bound": 0.5, "noise": 100.0}
        return Read(**about(plan), round=round_, **(fields | more))

    before = record(tmp_path)
    for attack in ({"noise": 99.0}, {"bound": 0.4}, {"rule": "norm"}):
        assert ask(guard, read(1, **attack))[0].kind == "refused"
    assert record(tmp_path) == before
    answer, body = ask(guard, read(1))
    assert answer.kind == "done" and np.frombuffer(body, np.float32).shape == (10,)
    assert np.abs(np.frombuffer(body, np.float32)).max() > 30  # 40 records count 20 at most
    assert ask(guard, read(1)) == (answer, body)
    one = spent_of(tmp_path, ME)
    assert ask(guard, order(1, plan))[0].kind == "done" and spent_of(tmp_path, ME) == one
    guard.close()


def test_no_statistic_is_read_in_a_round_without_a_turn(tmp_path: Path) -> None:
    others = steps(turns=np.where(np.arange(5) == ME, 0, 1), read=np.full(5, 200.0))
    reading = Reading("norm", 2, 0.5)
    plan = plan_of(others, noise_at="steps", randomness="cryptographic", reading=reading)
    guard = guard_of(tmp_path, ME, **REAL, statistics=["norm"], unit="record")
    assert enter(guard, plan).kind == "done"
    asked = Read(**about(plan), round=1, rule="norm", bound=0.5, noise=200.0 * reading.sensitivity)
    before = record(tmp_path)
    assert ask(guard, asked)[0].reason == "the plan does not ask this client in round 1"
    assert record(tmp_path) == before
    guard.close()


# policies and data


def test_a_policy_that_cannot_be_used_is_refused_with_all_that_is_wrong(tmp_path: Path) -> None:
    path = policy_of(tmp_path, ME, epsilon=-1.0, hours="8-18", operators={"us": "zz"}, colour="red")
    with pytest.raises(ConfigError) as problem:
        policy.read(path)
    for part in ("epsilon", "hours", "operators.us", "colour"):
        assert part in str(problem.value)
    with pytest.raises(ConfigError, match="cannot read"):
        policy.read(tmp_path / "none.toml")
    path.write_text("client =")
    with pytest.raises(ConfigError, match="not valid TOML"):
        policy.read(path)


def test_a_budget_cannot_be_raised_by_the_policy_alone(guard: Guard, tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="A budget holds for life"):
        guard_of(tmp_path, ME, **REAL, epsilon=400.0)


def test_labels_of_a_table_are_numbered_as_agreed(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text("label,a,b\nill,1,2\nill,3,4\n")
    found = own_records(policy.Data(path=str(table), labels=("well", "ill", "unknown")))
    assert found.train.labels.tolist() == [1, 1] and found.classes == 3
    with pytest.raises(DataError, match="ill"):
        own_records(policy.Data(path=str(table), labels=("well", "unknown")))
    with pytest.raises(DataError, match="lists well twice"):
        own_records(policy.Data(path=str(table), labels=("well", "ill", "well")))
    numbers = tmp_path / "numbers.txt"
    for text in ("1\n1\n", "-1\n", "99999\n", "", "one\n"):
        numbers.write_text(text)
        with pytest.raises(DataError, match="record numbers"):
            own_records(policy.Data(name="digits", records=str(numbers)))


def test_a_guard_opens_its_own_records_only(tmp_path: Path) -> None:
    found = own_records(policy.read(policy_of(tmp_path, ME)).data)
    np.testing.assert_array_equal(found.train.inputs, DATA.train.inputs[HOLDINGS.of(ME)])
    assert len(found.test.labels) == 0
    assert len(own_records(policy.Data(name="digits")).train.labels) == len(DATA.train.labels)


def test_keys_are_for_their_owner_only(tmp_path: Path) -> None:
    public = write_key(tmp_path / "operator.key")
    assert stat.S_IMODE((tmp_path / "operator.key").stat().st_mode) == 0o600
    assert verified(sign(b"hello", read_key(tmp_path / "operator.key"))) == (public, b"hello", [])
    with pytest.raises(InputError, match="File exists"):
        write_key(tmp_path / "operator.key")


# the door


def test_the_door_is_its_own_users_and_stays_open_whatever_comes(tmp_path: Path) -> None:
    path = policy_of(tmp_path, ME, **REAL)
    guard = Process(path).ready()
    door = tmp_path / "c1" / "guard" / "guard.sock"
    try:
        assert stat.S_IMODE(door.stat().st_mode) == 0o600
        assert stat.S_IMODE(door.parent.stat().st_mode) == 0o700
        for content in (
            b"",
            b"GET / HTTP/1.1\r\n\r\n",
            struct.pack(">Q", 2**60) + b"x",
            struct.pack(">Q", 100) + b"half",
            struct.pack(">Q", 0),
            hashlib.sha256(b"noise").digest() * 1000,
        ):
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(str(door))
                connection.sendall(content)
        again = Process(path)
        assert again.wait() not in (0, None)  # one guard for a folder
        message = encode(join(), PLAN.to_json().encode())
        (answer,) = sockets(tmp_path).exchange([("c1", sign(message, KEY))], 60.0)
        assert decode_answer(answer[1])[0].kind == "done"
    finally:
        assert guard.end() == 0
    assert not door.exists()


def test_a_group_gets_no_socket_that_it_cannot_reach(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="group users cannot reach"):
        serve(policy.read(policy_of(tmp_path, ME, group="users")))


def test_frames_take_no_more_than_is_allowed() -> None:
    one, other = socket.socketpair()
    with one, other:
        transport.send(one, b"12345", 1.0)
        assert transport.receive(other, 5, 1.0) == b"12345"
        transport.send(one, b"123456", 1.0)
        with pytest.raises(Exception, match="longer than the 5"):
            transport.receive(other, 5, 1.0)


def test_local_training_says_all_that_matters() -> None:
    assert set(Local.model_fields) == set(asdict(LOCAL))


def test_policy_and_addresses_in_the_guide_can_be_used(tmp_path: Path) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "operating.md").read_text(encoding="utf-8")
    addresses, shown, *_ = (part.split("```")[0] for part in guide.split("```toml\n")[1:])
    (tmp_path / "addresses.toml").write_text(addresses, encoding="utf-8")
    found = read_addresses(tmp_path / "addresses.toml")
    assert found["hospital-a"] == tmp_path / "hospital-a/guard/guard.sock"
    assert found["Hôpital B"] == Path("/run/hospital-b/guard.sock")
    (tmp_path / "GUARD.toml").write_text(shown.replace("7f3c…", "7f" * 32))
    said = policy.read(tmp_path / "GUARD.toml")
    assert said.against == "server" and not said.trust_server and said.socket_path.name == "guard.sock"
    defaults = {name: field.default for name, field in policy.Policy.model_fields.items()}
    assert (defaults["against"], defaults["trust_server"], defaults["rule"]) == ("server", False, "adaptive")
