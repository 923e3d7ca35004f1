"""The server's part of a sum: collect contributions, ask the committee about survivors, take off the masks.

contributions = [read_contribution(message, terms) for message in messages]
request = survivors_request(terms, contributions)     # the same bytes for every member
total = unmask(terms, contributions, answers)
"""

from collections.abc import Mapping, Sequence

import numpy as np

from discretion.arrays import Ints
from discretion.errors import AnswersError, MessageError, listed
from discretion.secure_sum.committee import MaskSum, read_answer
from discretion.secure_sum.contribution import Contribution
from discretion.secure_sum.letters import request_of, survivors_digest, twice
from discretion.secure_sum.terms import Residues, Terms


def survivors_request(terms: Terms, contributions: Sequence[Contribution]) -> bytes:
    """Return what every member of the committee is asked, so that they all answer for the same survivors.

    Guarantees:
        A client that sent two different contributions is an error, as are too few clients: no member would
        answer, and nobody is asked.
    """
    letters = [contribution.letter for contribution in contributions]
    if problems := twice(letters):
        raise AnswersError("contributions refused: " + "; ".join(listed(problems)))
    if len(letters) < terms.least:
        raise AnswersError(
            f"{len(letters)} clients answered in {terms.place}, expected at least {terms.least}: the sum of "
            "fewer is not revealed"
        )
    return request_of(letters)


def unmask(terms: Terms, contributions: Sequence[Contribution], answers: Mapping[str, bytes]) -> Ints:
    """Return the (d,) sum of all contributions' whole numbers, from the members' `answers` by their names.

    Guarantees:
        The sum is exact where its true value is from -2^(bits-1) to 2^(bits-1) - 1.
        Where a member's answer is missing, forged, or for other survivors, there is an error with its name,
        and no result.
    """
    survivors_request(terms, contributions)
    expected = survivors_digest(terms, (contribution.letter for contribution in contributions))
    sums, problems = [], []
    for contact in terms.committee:
        try:
            sums.append(_mask_sum(terms, contact.client, answers.get(contact.client), expected))
        except MessageError as problem:
            problems.append(f"{contact.client!r}: {problem}")
    if problems:
        raise AnswersError(
            f"the sum of {terms.place} stays masked, as the whole committee has to answer for the same "
            "survivors: " + "; ".join(listed(problems))
        )
    total: Residues = np.zeros(terms.size, dtype=terms.dtype)
    for contribution in contributions:
        np.add(total, contribution.masked, out=total)
    for found in sums:
        np.subtract(total, found.total, out=total)
    return _centred(total)


def _mask_sum(terms: Terms, member: str, message: bytes | None, survivors: bytes) -> MaskSum:
    if message is None:
        raise MessageError("no answer")
    found = read_answer(message, terms)
    if found.member != member:
        raise MessageError(f"the answer is that of {found.member!r}")
    if found.survivors != survivors:
        raise MessageError("the answer is for other survivors")
    return found


def _centred(total: Residues) -> Ints:
    return total.view(np.dtype(f"<i{total.itemsize}")).astype(np.int64)
