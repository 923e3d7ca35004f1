"""The server's part in a plan's secure sums: contributions in, survivors to the committee, sums out."""

import time
from collections.abc import Sequence

from discretion.arrays import Ints
from discretion.clients import messages
from discretion.clients.exchange import Exchange, Unanswered
from discretion.clients.sum_terms import terms_of, unknown_clients, unsummable
from discretion.errors import AnswersError, MessageError, PlanError
from discretion.plan.plan import Plan
from discretion.secure_sum.contribution import Contribution, read_contribution
from discretion.secure_sum.roster import Roster, roster_digest
from discretion.secure_sum.terms import Terms
from discretion.secure_sum.unmasking import survivors_request, unmask

ATTEMPT = 30.0  # seconds for a member to answer, before it is asked again
PAUSE = 0.5  # seconds before members that did not answer are asked again


class Summing:
    """Secure sums of a plan's rounds and pools, with the operator's roster.

    Guarantees:
        All members of a committee are asked about the same survivors, and a member that does not answer is
        asked again until the exchange's timeout; one that refused is not.
        There is the sum of all survivors, or an `AnswersError`: never a part of it.
    """

    def __init__(self, plan: Plan, roster: Roster | None, run: str, exchange: Exchange) -> None:
        if roster is None:
            raise PlanError(
                "this plan promises against the server by a secure sum, which needs the clients' keys: name "
                "their roster (secure_sum.roster)"
            )
        if why := unsummable(plan) or "; ".join(unknown_clients(plan, roster.contacts)):
            raise PlanError(f"no secure sum is possible: {why}")
        self._plan, self._roster, self._run, self._exchange = plan, roster, run, exchange
        self.roster = roster_digest(roster, plan.clients)

    def terms(self, round_: int, pool: int) -> Terms:
        return terms_of(self._plan, self._roster, self._run, round_, pool)

    def unmasked(self, terms: Terms, contributions: Sequence[Contribution]) -> Ints:
        """Return the (d,) sum of all contributions; raise `AnswersError` where it stays masked."""
        request = survivors_request(terms, contributions)
        answers: dict[str, bytes] = {}
        refused: list[str] = []
        left, deadline = (
            [member.client for member in terms.committee],
            time.monotonic() + self._exchange.timeout,
        )
        while left:
            orders = [self._order(terms, member) for member in left]
            failed, patience = Unanswered(), min(ATTEMPT, deadline - time.monotonic())
            for place, body in self._exchange.send(orders, request, failed, max(patience, PAUSE)):
                answers[left[place]] = body
            refused += [f"{left[place]} refused: {why}" for place, why in failed.refused.items()]
            left = [left[place] for place in sorted(failed.lost)]
            if time.monotonic() + PAUSE > deadline:
                break
            if left:
                time.sleep(PAUSE)
        try:
            return unmask(terms, contributions, answers)
        except AnswersError as problem:
            raise AnswersError("; ".join([str(problem), *refused])) from None

    def _order(self, terms: Terms, member: str) -> messages.Survivors:
        about = {"client": member, "run": self._run, "plan": self._plan.digest()}
        return messages.Survivors(**about, round=terms.round, pool=terms.pool)


def contribution_of(client: str, body: bytes, terms: Terms) -> Contribution:
    """Return what a client sent for a sum; raise `MessageError` where it is not this client's."""
    found = read_contribution(body, terms)
    if found.letter.sender != client:
        raise MessageError(f"the contribution is that of {found.letter.sender!r}")
    return found
