"""Secure sums of real guards: the in-process sum bit for bit, drop-outs, members that crash or are gone."""

import stat
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from discretion.arrays import Ints
from discretion.clients import messages
from discretion.clients import summing as server_side
from discretion.clients.sum_terms import terms_of, unknown_clients, unsummable
from discretion.errors import ConfigError, InputError, LedgerError, PlanError, Refusal
from discretion.guard import own_ledger, policy
from discretion.guard.guard import Guard
from discretion.guard.identity import own_keys
from discretion.plan.phase import Phase
from discretion.plan.plan import Plan
from discretion.randomness.sources import Source
from discretion.secure_sum.roster import Roster, roster_text
from discretion.training.integer_release import whole_sums
from discretion.training.orders import Updates
from support.guarding import PEOPLE, Direct, charged, cryptographic, in_process, spent_of, trained
from support.summing import CLIENTS, CONSORTIUM, policies, roster_of, summed, summing, summing_guards

REAL: dict[str, Any] = {"test_seed": None}


class Losing(Direct):
    """Answers of some clients to orders of one kind are lost, or come `late`, at the next try."""

    lost: tuple[str, ...] = ()
    kind = "train"
    late = False

    def exchange(self, orders: Sequence[tuple[str, bytes]], timeout: float) -> Iterator[tuple[int, bytes]]:
        for number, answer in super().exchange(orders, timeout):
            client, order = orders[number]
            if (
                client in self.lost
                and messages.decode_order(messages.verified(order).message)[0].kind == self.kind
            ):
                if self.late:
                    self.lost = tuple(name for name in self.lost if name != client)
                continue
            yield number, answer


def two_pools(rounds: int = 2) -> Plan:
    each = np.ones(6)
    phase = Phase(rounds, each, 0.5 * each, np.full(2, 20.0), np.arange(6) % 2, np.ones(2) / 6)
    return Plan("test", tuple(f"c{i}" for i in range(6)), (phase,), noise_at="secure_sum", promise="server")


def test_the_sum_of_guards_is_that_of_one_process_bit_for_bit(tmp_path: Path) -> None:
    plan = summed(3, rate=0.6)
    clients = summing(Direct(summing_guards(tmp_path)), plan, roster_of(tmp_path))
    there = trained(plan, clients, tmp_path / "there", shares="discard")
    here = trained(plan, in_process(), tmp_path / "here")
    np.testing.assert_array_equal(there.model, here.model)
    assert here.model.any() and [heard.answered for heard in clients.heard] == [5] * 3
    assert all(not heard.masked and not heard.refused for heard in clients.heard)
    assert spent_of(tmp_path, 1) == pytest.approx(charged(plan, 1))


def test_no_answer_has_a_clients_own_numbers(tmp_path: Path) -> None:
    """What leaves a guard twice is the same; what two guards of the same seed send is not."""
    plan, sent = summed(1), []
    for name in ("one", "two"):
        guards = Direct(summing_guards(tmp_path / name))
        trained(
            plan, summing(guards, plan, roster_of(tmp_path / name)), tmp_path / name / "s", shares="discard"
        )
        for client, order in guards.sent:
            if messages.decode_order(messages.verified(order).message)[0].kind == "train" and client == "c0":
                first, again = (messages.decode_answer(guards.guards["c0"].answer(order))[1] for _ in "ab")
                assert first == again
                sent.append(np.frombuffer(first[-2600:], "<u4"))
    assert (sent[0] != sent[1]).mean() > 0.999


@pytest.mark.parametrize("gone", [("c1", "c2"), ("c3",)])
def test_who_drops_out_is_not_in_the_sum_and_the_noise_suffices(
    gone: tuple[str, ...], tmp_path: Path
) -> None:
    plan = summed(3, dropout=0.4, noise=100.0)
    guards = Losing(summing_guards(tmp_path))
    guards.lost = gone
    clients = summing(guards, plan, roster_of(tmp_path))
    clients._local = clients._local.model_copy(update={"learning_rate": 0.0})
    end = trained(plan, clients, tmp_path / "there", shares="discard")
    left = 5 - len(gone)
    assert [heard.answered for heard in clients.heard] == [left] * 3 and not any(
        h.masked for h in clients.heard
    )
    found = float(end.velocity.std()) * float(plan.phases[0].rate.sum())
    assert found == pytest.approx(float(plan.phases[0].noise[0]) * (left / 3) ** 0.5, rel=5 / 650**0.5)
    assert spent_of(tmp_path, 1) == pytest.approx(charged(plan, 1))  # whether or not its answer came


def test_too_few_survivors_cost_the_round_and_change_nothing(tmp_path: Path) -> None:
    plan = cryptographic(summed(2))
    guards = Losing(summing_guards(tmp_path, **REAL))
    guards.lost = ("c4",)
    clients = summing(guards, plan, roster_of(tmp_path))
    end = trained(plan, clients, tmp_path / "there", seed=None, shares="discard")
    assert end.round == 2 and not end.velocity.any()
    assert all("expected at least 5" in heard.masked["0"] for heard in clients.heard)
    assert not any(name == "survivors" for name in kinds(guards))
    assert spent_of(tmp_path, 0) == pytest.approx(charged(plan, 0))


def kinds(guards: Direct) -> list[str]:
    return [messages.decode_order(messages.verified(order).message)[0].kind for _, order in guards.sent]


def test_a_member_that_is_gone_costs_the_round_and_one_that_comes_back_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_side, "PAUSE", 0.01)
    plan = cryptographic(summed(1))
    for late in (True, False):
        home = tmp_path / str(late)
        guards = Losing(summing_guards(home, **REAL))
        guards.lost, guards.kind, guards.late = CLIENTS, "survivors", late
        clients = summing(guards, plan, roster_of(home), timeout=0.2)
        end = trained(plan, clients, home / "there", seed=None, shares="discard")
        assert end.velocity.any() == late and (not clients.heard[0].masked) == late
        assert late or "stays masked" in clients.heard[0].masked["0"]
        assert spent_of(home, 0) == pytest.approx(charged(plan, 0))


def test_a_member_that_is_restarted_gives_the_same_bytes_and_no_others(tmp_path: Path) -> None:
    plan = cryptographic(summed(2, dropout=0.4))
    guards = Direct(summing_guards(tmp_path, **REAL))
    clients = summing(guards, plan, roster_of(tmp_path))
    trained(plan, clients, tmp_path / "there", seed=None, shares="discard")
    clients.finish(2)
    asked = [
        (client, order)
        for client, order in guards.sent
        if messages.decode_order(messages.verified(order).message)[0].kind == "survivors"
    ]
    assert len(asked) == 4  # two members, two rounds
    before = [messages.decode_answer(guards.guards[client].answer(order)) for client, order in asked]
    for guard in guards.guards.values():
        guard.close()
    again = {name: Guard(policy.read(tmp_path / name / "GUARD.toml")) for name in CLIENTS}
    for (client, order), (said, body) in zip(asked, before, strict=True):
        assert said.kind == "done" and body
        assert messages.decode_answer(again[client].answer(order))[1] == body
    for guard in again.values():
        guard.close()


def test_two_pools_are_summed_apart_and_a_finished_run_reveals_no_new_sum(tmp_path: Path) -> None:
    plan = two_pools().on_grid(2.0**-20, 650)
    assert unsummable(plan) == "" and not list(unknown_clients(plan, plan.clients))
    few = [f"c{i}" for i in (0, 1, 2, 3, 5)]
    assert list(unknown_clients(plan, few)) == [
        "the roster has 2 of the clients of pool 0, expected 3 at least"
    ]
    assert list(unknown_clients(plan, few, 1)) == []
    roster = Roster({n: own_keys(tmp_path / n).contact(n) for n in plan.clients})
    pools = [terms_of(plan, roster, "r", 1, pool) for pool in (0, 1)]
    assert [sorted(terms.senders) for terms in pools] == [["c0", "c2", "c4"], ["c1", "c3", "c5"]]
    assert [terms.least for terms in pools] == [3, 3] and pools[0].bits == 32
    for round_, pool in ((0, 0), (3, 0), (1, 2), (1, -1)):
        with pytest.raises(Refusal, match="has no"):
            terms_of(plan, roster, "r", round_, pool)


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        (replace(summed(), grid=None), "whole numbers"),
        (summed(colluding=4), "pool 0 has 5 clients, and a secure sum with 4 of them colluding needs 6"),
    ],
)
def test_plans_that_cannot_be_summed_are_refused_by_both_sides(plan: Plan, why: str, tmp_path: Path) -> None:
    guards = summing_guards(tmp_path)
    assert why in unsummable(plan)
    with pytest.raises(PlanError, match="no secure sum is possible"):
        summing(Direct(guards), plan, roster_of(tmp_path))
    (problem,) = guards["c0"]._sums.problems(plan, 0, "")
    assert why in str(problem)


def test_a_guards_own_roster_and_least_number_decide(tmp_path: Path) -> None:
    plan = cryptographic(summed(2, dropout=0.4))
    guards = summing_guards(tmp_path, **REAL)
    roster = roster_of(tmp_path)
    assert summing(Direct(guards), plan, roster).join() == {}
    with pytest.raises(PlanError, match=r"name their roster \(secure_sum.roster\)"):
        summing(Direct(guards), plan, None)  # type: ignore[arg-type]
    few = Roster({name: roster.contacts[name] for name in ("c0", "c1")})
    with pytest.raises(PlanError, match="the roster has 2 of the clients of pool 0, expected 3"):
        summing(Direct(guards), plan, few)
    most = Roster({name: roster.contacts[name] for name in CLIENTS[:4]})
    refused = summing(Direct(guards), plan, most, "other").join()
    assert set(refused) == set(CLIENTS) and "other clients of this plan, or other keys" in refused["c1"]
    section = {"roster": "../roster.json", "consortium": messages.public_bytes(CONSORTIUM).hex()}
    for guard in guards.values():
        guard.close()
    asking = summing_guards(tmp_path, secure_sum=section | {"least": 4}, **REAL)
    refused = summing(Direct(asking), plan, roster, "third").join()
    assert "sums of 3 clients, the policy asks for 4" in refused["c1"] and len(refused) == 5
    checked = summing(Direct(asking), plan, roster, "third").check(5.0)
    assert "the policy asks for 4" in str(checked[1].differs)
    for guard in asking.values():
        guard.close()
    without = summing_guards(tmp_path, secure_sum=None, trust_server=True, **REAL)
    refused = summing(Direct(without), plan, roster, "fourth").join()
    assert "GUARD.toml has no [secure_sum]" in refused["c1"] and len(refused) == 5
    with pytest.raises(Refusal, match="GUARD.toml has no"):
        without["c0"]._sums.contribution(plan, "r", 1, 0, np.zeros(650, np.int64))
    found = summing(Direct(without), plan, roster, "fourth").check(5.0)
    assert [each.differs[0][0] for each in found] == ["secure sum"] * 5


def test_a_roster_must_be_vouched_for_and_have_the_guards_own_keys(tmp_path: Path) -> None:
    paths = policies(tmp_path)
    roster = roster_of(tmp_path)
    file = tmp_path / "roster.json"
    for text, why in (
        (roster_text(roster), "not signed"),
        ("{}", "not a roster"),
        (roster_text(roster_of(tmp_path, CLIENTS[:3]), CONSORTIUM), "does not have c4, whose guard this is"),
        (
            roster_text(
                Roster({**roster.contacts, "c4": own_keys(tmp_path / "else").contact("c4")}), CONSORTIUM
            ),
            "has other keys of c4",
        ),
    ):
        file.write_text(text)
        with pytest.raises(InputError, match=why):
            Guard(policy.read(paths["c4"]))
    owners = {name: contact.identity.hex() for name, contact in roster.contacts.items()}
    file.write_text(roster_text(roster))
    paths = policies(tmp_path, secure_sum={"roster": "../roster.json", "owners": owners})
    Guard(policy.read(paths["c4"])).close()


def test_keys_are_made_once_and_only_their_owner_reads_them(tmp_path: Path) -> None:
    keys, again = own_keys(tmp_path / "guard"), own_keys(tmp_path / "guard")
    assert keys.contact("a") == again.contact("a")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "guard").iterdir()}
    assert modes == {"identity.key": 0o600, "agreement.key": 0o600}
    for bad in ("", "zz", "ab" * 31):
        (tmp_path / "guard" / "identity.key").write_text(bad)
        with pytest.raises(InputError, match="is no key: expected 64 hexadecimal digits"):
            own_keys(tmp_path / "guard")


def test_after_a_loss_no_earlier_envelope_can_be_opened(tmp_path: Path) -> None:
    plan = cryptographic(summed(1))
    guards = summing_guards(tmp_path, **REAL)
    trained(
        plan, summing(Direct(guards), plan, roster_of(tmp_path)), tmp_path / "s", seed=None, shares="discard"
    )
    said = policy.read(tmp_path / "c0" / "GUARD.toml")
    before = own_keys(tmp_path / "c0" / "guard").contact("c0")
    guards["c0"].close()
    own_ledger.recover(said, "nothing")
    assert own_keys(tmp_path / "c0" / "guard").contact("c0") == before
    own_ledger.recover(said, "rounds")
    after = own_keys(tmp_path / "c0" / "guard").contact("c0")
    assert after.identity == before.identity and after.agreement != before.agreement
    with pytest.raises(InputError, match="has other keys of c0"):
        Guard(said)
    assert PEOPLE.client[0] == "c0"


def test_somebody_has_to_vouch_for_a_roster(tmp_path: Path) -> None:
    paths = policies(tmp_path, secure_sum={"roster": "../roster.json"})
    with pytest.raises(ConfigError, match="nobody vouches for the roster: name the key that signs it"):
        policy.read(paths["c0"])


def test_a_sum_counts_for_clients_of_one_pool_that_were_asked() -> None:
    plan = two_pools().on_grid(2.0**-20, 650)
    (phase,), grid = plan.phases, plan.grid
    assert grid is not None

    def sums(clients: list[int], rows: int = 1, kind: type = np.int64) -> tuple[Ints, Ints]:
        change: Any = np.ones((rows, 650), dtype=kind)
        part = Updates(np.array(clients), change, handed_out=True, summed=True)
        return whole_sums(plan, grid, phase, iter([part]), np.arange(6), run_source_of_none)

    total, shares = sums([1, 3, 5])
    assert (total[1] == 1).all() and not total[0].any() and shares.tolist() == [0, 1, 0, 1, 0, 1]
    for clients, rows, why in (
        ([0, 1], 1, r"the pools \[0, 1\], expected one pool"),
        ([0, 2], 2, "be 1 rows of 650"),
        ([0, 0], 1, "came twice"),
    ):
        with pytest.raises(LedgerError, match=why):
            sums(clients, rows)
    with pytest.raises(LedgerError, match="must be int64"):
        sums([0, 2], 1, np.float32)


def run_source_of_none(client: int, turn: int) -> Source:
    raise AssertionError("what was handed out has its noise")
