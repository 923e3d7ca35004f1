"""A run stops where too few clients answer, whatever made them fail, and by no coin of those that answer."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from discretion.arrays import Ints
from discretion.clients.messages import Answer, decode_order, digest, encode, sign_answer, verified
from discretion.clients.remote import Heard, RemoteClients
from discretion.clients.turnout import Absences, Turnout, fewest, needed, nobody, orders_until
from discretion.errors import AnswersError
from discretion.plan.phase import Phase
from discretion.plan.plan import Plan
from discretion.plan.selection_rules import Reading
from discretion.training.orders import Order
from support.guarding import KEY, Direct, guard_of, one_pool, own_pools, plan_of, remote, trained

MODEL = np.zeros(650, np.float32)
Says = Callable[[str, str], bytes | str | None]  # to a client and an order's kind: numbers, a reason, nothing


class Told:
    """Clients that say what a test tells them to."""

    def __init__(self, says: Says) -> None:
        self.says = says
        self.sent: list[tuple[str, str]] = []

    def exchange(self, orders: Sequence[tuple[str, bytes]], timeout: float) -> Iterator[tuple[int, bytes]]:
        for number, (client, signed) in enumerate(orders):
            message = verified(signed).message
            kind = decode_order(message)[0].kind
            self.sent.append((client, kind))
            said = self.says(client, kind)
            if isinstance(said, bytes):
                yield number, sign_answer(encode(Answer(kind="done", order=digest(message)), said), KEY)
            elif said is not None:
                answer = Answer(kind="refused", order=digest(message), reason=said)
                yield number, sign_answer(encode(answer), KEY)


def zeros(client: str, kind: str) -> bytes:
    return MODEL.tobytes() if kind == "train" else b""


def failing(who: Sequence[str], kinds: Sequence[str], said: bytes | str | None = None) -> Says:
    return lambda client, kind: said if client in who and kind in kinds else zeros(client, kind)


def flaky(who: Sequence[str]) -> Says:
    """These clients fail every order of a round, and every second join order or so."""
    joins = iter(np.random.default_rng(1).random(100) < 0.5)
    return lambda client, kind: (
        None if client in who and (kind == "train" or next(joins)) else zeros(client, kind)
    )


def ask(clients: RemoteClients, round_: int, who: Sequence[int] | Ints) -> Heard:
    """Send the orders of one round; return what came of it."""
    asked = np.array(who, dtype=np.int64)
    list(clients.updates(Order(round_, 5, MODEL, asked, np.zeros_like(asked))))
    return clients.heard[-1]


PLAN = plan_of(one_pool(40, rate=0.5))
FOUR = ["c0", "c1", "c2", "c3"]


def test_where_too_few_join_nothing_begins(tmp_path: Path) -> None:
    clients = remote(Told(failing(["c0", "c1"], ["join"], "not today")), PLAN, least_answers=0.6)
    clients.begin(1)
    assert clients.heard[-1].turnout == Turnout(3, 5, 1)
    for said, why in ((None, "0 refused"), ("not today", r"4 refused \(most often: 'not today'\)")):
        few = remote(Told(failing(FOUR, ["join"], said)), PLAN, least_answers=0.51)
        with pytest.raises(AnswersError, match=f"1 of 5 clients answered at round 1, and 3 must.*{why}"):
            few.begin(1)
        assert few.taken() == [replace(few.heard[0], expected=5, answering=1, enough=False)]


@pytest.mark.parametrize("said", ["budget", None, np.full(650, np.nan, np.float32).tobytes(), b"odd"])
def test_whoever_joins_and_fails_its_orders_does_not_answer(said: bytes | str | None) -> None:
    """Refused, lost, not finite or unreadable: whatever join orders are answered with meanwhile."""
    transport = Told(failing(FOUR, ["train"], said))
    clients = remote(transport, PLAN, least_answers=0.51)
    clients.begin(1)
    assert ask(clients, 1, [0, 1]).turnout == Turnout(3, 5, 1)
    with pytest.raises(AnswersError, match="2 of 5 clients answered at round 2"):
        ask(clients, 2, [2])
    assert clients.heard[-1].turnout == Turnout(2, 5, 2, False)


def test_a_failure_counts_until_the_plan_expects_another_order() -> None:
    """With a rate of a half, two rounds; a client that is asked in every round, one."""
    for rate, away in ((0.5, [1, 1, 0, 0]), (1.0, [1, 0, 0, 0])):
        transport = Told(failing(["c0"], ["train"]))
        clients = remote(transport, plan_of(one_pool(9, rate=rate)), least_answers=0.51)
        clients.begin(1)
        found = [ask(clients, 1, [0])]
        transport.says = zeros
        found += [ask(clients, round_, [0]) for round_ in (2, 3, 4)]
        assert [5 - heard.answering for heard in found] == away


def test_who_is_gone_is_asked_again_before_every_round_and_all_are_where_many_fail() -> None:
    transport = Told(failing(["c4"], ["join"]))
    clients = remote(transport, PLAN, least_answers=0.51)
    clients.begin(1)
    transport.sent.clear()
    assert ask(clients, 1, []).answering == 4 and transport.sent == []
    assert ask(clients, 2, []).answering == 4 and transport.sent == [("c4", "join")]
    transport.says = zeros
    assert ask(clients, 3, []).answering == 5
    transport.says = failing(FOUR, ["train", "join"])
    with pytest.raises(AnswersError, match="1 of 5 clients answered at round 4"):
        ask(clients, 4, [0, 1])  # 2 of 2.5 expected fail, so that all are asked: 2 more are gone


def test_no_coin_of_a_client_that_answers_decides_whether_a_run_goes_on() -> None:
    """Whoever of them is asked, in whichever round, the same is said, and the run stops or not."""
    rng = np.random.default_rng(0)
    bad = rng.random((12, 2)) < 0.5  # coins of c0 and c1, which fail every order, and join at times
    found = []
    for _ in range(8):
        clients = remote(Told(flaky(("c0", "c1"))), PLAN, least_answers=0.2)
        clients.begin(1)
        for round_, coins in enumerate(bad, 1):
            ask(clients, round_, np.flatnonzero([*coins, *(rng.random(3) < 0.5)]))
        found.append([heard.turnout for heard in clients.heard])
    assert all(each == found[0] for each in found) and len({t.answering for t in found[0] if t}) > 1


def test_a_stopped_round_moves_no_model_and_a_run_with_guards_goes_on_without_some(tmp_path: Path) -> None:
    plan = plan_of(own_pools(3))
    guards = {f"c{i}": guard_of(tmp_path, i) for i in range(5)}
    clients = remote(Direct({name: guards[name] for name in ("c0", "c1", "c2")}), plan, least_answers=0.6)
    assert trained(plan, clients, tmp_path / "most").round == 3
    assert all(heard.turnout == Turnout(3, 5, heard.round) for heard in clients.heard)
    few = remote(Direct({name: guards[name] for name in ("c3", "c4")}), plan, least_answers=0.6)
    with pytest.raises(AnswersError, match="2 of 5"):
        trained(plan, few, tmp_path / "few")


def test_statistics_count_as_well() -> None:
    steps = own_pools(
        3, 2.0, batch=np.full(5, 0.3), steps=4, turns=np.ones(5, np.int64), read=np.full(5, 20.0)
    )
    plan = plan_of(steps, noise_at="steps", reading=Reading("norm", 2, 1.0))
    clients = remote(Told(failing(FOUR, ["read"])), plan, least_answers=0.51)
    order = Order(1, 0, MODEL, np.arange(5), np.zeros(5, np.int64))
    assert plan.reading is not None
    clients.statistics(order, plan.reading)
    with pytest.raises(AnswersError, match="1 of 5"):
        list(clients.updates(replace(order, clients=np.arange(0), turn=np.arange(0))))
    assert orders_until(plan, 1) == pytest.approx(7)  # 5 are asked for statistics, 2 for updates


def test_only_clients_that_a_round_may_ask_are_expected() -> None:
    absences = Absences(silent={0, 1}, declined={2})
    assert absences.turnout(1, np.array([2, 3, 4]), 0.51) == Turnout(2, 3, 1)
    assert absences.turnout(1, np.array([0, 1, 3]), 0.51) == Turnout(1, 3, 1, False)
    assert absences.turnout(1, np.zeros(0, np.int64), 0.51).enough


@pytest.mark.parametrize(
    ("share", "of", "least"), [(0.51, 12, 7), (0.51, 1, 1), (0.5, 12, 6), (1.0, 3, 3), (0.7, 10, 7)]
)
def test_so_many_must_answer(share: float, of: int, least: int) -> None:
    assert needed(share, of) == least


def test_words_say_how_many_answered_and_how_many_orders_failed() -> None:
    assert Turnout(12, 12, 3).sentence(0, 20.0) == "12 of 12 clients answered when last asked."
    told = Turnout(9, 12, 3).sentence(1, 21.04)
    assert told.startswith(
        "At least 9 of 12 clients answered when last asked, in every round; 1 order failed"
    )
    assert told.endswith("where the plan expects 21 to be sent.")
    assert "4 orders failed" in Turnout(12, 12, 3).sentence(4, 20.0)
    stopped = Turnout(0, 12, 1, False)
    assert stopped.sentence(0, 0.0).startswith(
        "0 of 12 clients answered at round 1, too few: the run stopped"
    )
    assert fewest([None, Turnout(9, 12, 1), Turnout(8, 12, 2), Turnout(12, 12, 3)]) == Turnout(8, 12, 2)
    assert fewest([Turnout(3, 12, 1), stopped]) == stopped and fewest([None]) is None


def test_a_plan_that_may_ask_nobody_says_so() -> None:
    everyone = np.ones(4)
    rare = Plan("test", ("a", "b", "c", "d"), (Phase.one_pool(5, 0.01 * everyone, everyone, noise=1.0),))
    assert nobody(rare, 0) == "With a chance of 82% the plan’s coins ask nobody in the whole run."
    often = replace(rare, phases=(Phase.one_pool(5, 0.5 * everyone, everyone, noise=1.0),))
    assert nobody(often, 0) == ""
    assert nobody(often, 2) == "In 2 of 5 rounds no client’s budget allowed it to take part."
    assert nobody(replace(often, sampling="fixed_size", accounting="paper"), 0) == ""
