"""Whoever drops out, in whatever order messages come, the server gets the exact sum of the survivors."""

from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as some

from discretion.errors import AnswersError, InputError, MessageError, Refusal
from discretion.secure_sum.committee import Choice, answer, decide, open_request, read_answer
from discretion.secure_sum.contribution import contribute, read_contribution
from discretion.secure_sum.envelopes import seal
from discretion.secure_sum.framing import sign
from discretion.secure_sum.letters import LETTER, request_of
from discretion.secure_sum.masks import _CHUNK
from discretion.secure_sum.terms import Terms
from discretion.secure_sum.unmasking import survivors_request, unmask
from support.secure_sums import answers, contributions, numbers, parties, party, play, terms


@settings(max_examples=40)
@given(some.data())
def test_any_survivors_in_any_order_give_their_plain_sum(data: some.DataObject) -> None:
    clients = data.draw(some.integers(2, 9))
    colluding = data.draw(some.integers(0, clients - 2))
    least = data.draw(some.integers(colluding + 2, clients))
    bits, size = data.draw(some.sampled_from([32, 64])), data.draw(some.integers(1, 12))
    members = data.draw(some.integers(colluding + 1, clients))
    of = terms(
        clients, size=size, bits=bits, colluding=colluding, least=least, members=members, round_=clients
    )
    whole = numbers(of, data.draw(some.integers(0, 2**32)), 2 ** (bits - 1) // clients)
    survivors = data.draw(some.permutations(sorted(whole)))[: data.draw(some.integers(least, clients))]
    sent = contributions(of, {name: whole[name] for name in survivors})
    found = play(of, sent)
    assert found.dtype == np.int64
    assert (found == np.sum([whole[name] for name in survivors], axis=0)).all()


def test_sums_are_exact_up_to_the_ends_of_the_range_and_wrap_beyond() -> None:
    for bits in (32, 64):
        of, end = terms(3, size=3, bits=bits, least=3), 2 ** (bits - 1)
        rows = {
            "client-0": np.array([end - 3, -end + 2, end - 2]),
            "client-1": np.array([1, -1, 1]),
            "client-2": np.array([1, -1, 1]),
        }
        assert play(of, contributions(of, rows)).tolist() == [end - 1, -end, -end]


def test_long_vectors_are_masked_in_pieces() -> None:
    """The pieces of a mask follow one another: as one key stream, and with a rest at the end."""
    of = terms(3, size=_CHUNK // 4 * 2 + 7, least=3)
    whole = numbers(of)
    found = play(of, contributions(of, whole))
    assert (found == np.sum(list(whole.values()), axis=0)).all()


def test_the_same_request_gets_the_same_bytes_after_a_restart() -> None:
    of = terms()
    sent = contributions(of, numbers(of))
    request = survivors_request(of, sent)
    assert request == survivors_request(of, sent[::-1])
    assert answers(of, request) == answers(of, request)


def test_a_client_that_sends_too_late_or_not_at_all_is_not_needed() -> None:
    of = terms(6, least=3)
    whole = numbers(of)
    sent = contributions(of, whole)
    assert (play(of, sent[:3]) == np.sum([whole[each.letter.sender] for each in sent[:3]], axis=0)).all()


# what a client checks of its own


def test_a_client_sends_only_as_itself_and_only_what_the_modulus_holds() -> None:
    of = terms(size=2)
    one, other = parties(2)
    fine = np.array([2**31 - 1, -(2**31)])
    contribute(of, one.name, one.identity, fine)
    with pytest.raises(InputError, match="with this identity key"):
        contribute(of, one.name, other.identity, fine)
    with pytest.raises(InputError, match="'nobody' is not a sender of run 'run', round 3, pool 0"):
        contribute(of, "nobody", one.identity, fine)
    for far in ([2**31, 0], [0, -(2**31) - 1]):
        with pytest.raises(InputError, match="choose a modulus of 64 bits"):
            contribute(of, one.name, one.identity, np.array(far))
    for odd in (fine.astype(np.int32), fine.astype(np.float64), fine[:1], fine.reshape(1, 2)):
        with pytest.raises(InputError, match=r"expected int64 and \(2,\)"):
            contribute(of, one.name, one.identity, odd)  # type: ignore[arg-type]
    assert fine.tolist() == [2**31 - 1, -(2**31)]


# what the store of a member has to keep


def test_one_set_of_survivors_is_answered_for_and_no_other_one_ever() -> None:
    of = terms()
    sent = contributions(of, numbers(of))
    member = party(of.committee[0].client)
    first, second = (
        open_request(of, member.name, member.agreement, survivors_request(of, some_of))
        for some_of in (sent[:4], sent[:5])
    )
    kept = decide(first.choice, None)
    assert kept == first.choice == decide(first.choice, kept)
    assert answer(first, kept, member.identity) == answer(first, kept, member.identity)
    with pytest.raises(Refusal, match="other survivors on record"):
        decide(second.choice, kept)
    with pytest.raises(Refusal, match="other survivors on record"):
        answer(second, kept, member.identity)


def test_a_client_that_writes_anew_makes_another_set() -> None:
    of = terms()
    whole = numbers(of)
    member = party(of.committee[0].client)
    first, second = (
        open_request(of, member.name, member.agreement, survivors_request(of, contributions(of, whole)))
        for _ in range(2)
    )
    assert first.survivors == second.survivors
    with pytest.raises(Refusal, match="other survivors on record"):
        decide(second.choice, first.choice)


def test_a_client_that_seals_other_seeds_for_the_same_vector_makes_another_set() -> None:
    of = terms()
    member, liar = party(of.committee[0].client), party("client-0")
    letters = [each.letter for each in contributions(of, numbers(of))]
    sealed = tuple(
        seal(bytes(32), of, liar.name, contact, letters[0].vector, X25519PrivateKey.generate())
        for contact in of.committee
    )
    unsigned = replace(letters[0], envelopes=sealed)
    second = replace(unsigned, signature=sign(liar.identity, LETTER, *unsigned.parts))
    choices = [
        open_request(of, member.name, member.agreement, request_of([letter, *letters[1:]])).choice
        for letter in (letters[0], second)
    ]
    with pytest.raises(Refusal, match="other survivors on record"):
        decide(choices[1], choices[0])


def test_nothing_is_revealed_before_it_is_on_record() -> None:
    of = terms()
    request = survivors_request(of, contributions(of, numbers(of)))
    member, other = party(of.committee[0].client), party(of.committee[1].client)
    opened = open_request(of, member.name, member.agreement, request)
    assert all(key.hex() not in repr(opened) and str(key) not in repr(opened) for key in opened._keys)
    with pytest.raises(InputError, match="nothing is on record"):
        answer(opened, None, member.identity)
    elsewhere = Choice("run", 4, 0, opened.choice.survivors)
    with pytest.raises(InputError, match=r"the record of \('run', 4, 0\) for \('run', 3, 0\)"):
        answer(opened, elsewhere, member.identity)
    with pytest.raises(InputError, match="this identity key is not"):
        answer(opened, opened.choice, other.identity)
    with pytest.raises(InputError, match="this agreement key is not"):
        open_request(of, member.name, other.agreement, request)
    outsider = next(one for one in parties(6) if one.name not in {m.client for m in of.committee})
    with pytest.raises(Refusal, match="is not in the committee of run 'run', round 3, pool 0, which is"):
        open_request(of, outsider.name, outsider.agreement, request)


# what the server finds out


def test_the_server_names_members_that_are_missing_or_answered_something_else() -> None:
    of = terms(members=4)
    sent = contributions(of, numbers(of))
    right = answers(of, survivors_request(of, sent))
    others = answers(of, survivors_request(of, sent[:5]))
    elsewhere = terms(members=4, round_=4, pool=1)
    a, b, c, d = right
    forged = bytearray(right[c])
    forged[-1] ^= 1
    with pytest.raises(AnswersError) as caught:
        unmask(of, sent, {a: others[a], c: bytes(forged), d: right[a]})
    said = str(caught.value)
    assert f"'{a}': the answer is for other survivors" in said
    assert f"'{b}': no answer" in said
    assert f"'{c}': not signed by '{c}' for this sum" in said
    assert f"'{d}': the answer is that of '{a}'" in said
    assert (unmask(of, sent, right) == play(of, sent)).all()
    with pytest.raises(MessageError, match="not signed by"):
        read_answer(right[a], terms(members=6, round_=elsewhere.round))
    with pytest.raises(MessageError, match="'client-0' is not in the committee"):
        read_answer(b"\x08\0\0\0client-0" + right[a][12:], _committee_without("client-0"))
    for cut in (1, 20, 60, 200):
        with pytest.raises(MessageError, match="ends early"):
            read_answer(right[a][:cut] if cut < 200 else right[a][:-1], of)
    with pytest.raises(MessageError, match="goes on: found 1 byte"):
        read_answer(right[a] + b"\0", of)


def _committee_without(name: str) -> Terms:
    found = (terms(round_=number) for number in range(100))
    return next(of for of in found if name not in {member.client for member in of.committee})


def test_the_server_asks_nobody_about_doubtful_contributions() -> None:
    of = terms()
    whole = numbers(of)
    sent, again = contributions(of, whole), contributions(of, whole)
    with pytest.raises(AnswersError, match="'client-0' comes 2 times"):
        survivors_request(of, [*sent, again[0]])
    with pytest.raises(
        AnswersError, match="2 clients answered in run 'run', round 3, pool 0, expected at least 3"
    ):
        survivors_request(of, sent[:2])
    message = bytearray(sent[0].to_bytes())
    message[-1] ^= 1
    with pytest.raises(MessageError, match="not the one that 'client-0' signed"):
        read_contribution(bytes(message), of)
    with pytest.raises(MessageError, match="not a client of pool 0 in this roster"):
        read_contribution(sent[5].to_bytes(), terms(5))
    with pytest.raises(MessageError, match="goes on"):
        read_contribution(sent[0].to_bytes() + b"\0", of)
