"""A guard's part in secure sums: its contributions, and its masks for one set of survivors of each sum."""

from collections.abc import Iterator
from pathlib import Path

from discretion.arrays import Ints
from discretion.clients.sum_terms import least_of, terms_of, unknown_clients, unsummable
from discretion.errors import InputError, Refusal
from discretion.files import read_text
from discretion.guard.identity import OwnKeys
from discretion.guard.policy import Policy
from discretion.ledger.guard_ledger import GuardLedger
from discretion.plan.plan import Plan
from discretion.secure_sum.committee import Choice, answer, decide, open_request
from discretion.secure_sum.contribution import contribute
from discretion.secure_sum.roster import Roster, read_roster, roster_digest

LACKING = "this plan needs a secure sum: GUARD.toml has no [secure_sum], which names the clients' roster"


class OwnSums:
    """What one client does in secure sums, by its own keys, roster and ledger.

    Guarantees:
        The terms of a sum follow from the plan that was joined and this guard's own roster.
        Of one sum, masks are given for one set of survivors, which is on record before they leave.
    """

    def __init__(self, policy: Policy, keys: OwnKeys, ledger: GuardLedger) -> None:
        self._client, self._keys, self._ledger = policy.client, keys, ledger
        self._roster, self._least = _roster_of(policy, keys), 0
        if policy.secure_sum is not None:
            self._least = policy.secure_sum.least

    def problems(self, plan: Plan, me: int, roster: str) -> Iterator[Refusal]:
        """Yield why this guard takes no part in a plan's secure sums; `roster` is the server's digest."""
        what = "secure sum"
        if not plan.summed:
            return
        if self._roster is None:
            yield Refusal(LACKING, what)
            return
        if why := unsummable(plan):
            yield Refusal(why, what)
            return
        yield from (Refusal(why, what) for why in unknown_clients(plan, self._roster.contacts, me))
        if roster != roster_digest(self._roster, plan.clients):
            said = "the server's roster has other clients of this plan, or other keys, than this guard's"
            yield Refusal(f"{said}: compare the two files" if roster else "the server has no roster", what)
        for phase in plan.phases:
            least = int(least_of(plan, phase)[me])
            if phase.expected[me] > 0 and least < self._least:
                said = (
                    f"this plan reveals sums of {least} clients, the policy asks for {self._least} at least"
                )
                yield Refusal(said, what)
                return

    def contribution(self, plan: Plan, run: str, round_: int, pool: int, whole: Ints) -> bytes:
        """Return this client's (d,) whole numbers under fresh masks, as they leave."""
        terms = terms_of(plan, self._known(), run, round_, pool)
        return contribute(terms, self._client, self._keys.identity, whole).to_bytes()

    def masks(self, plan: Plan, run: str, round_: int, pool: int, request: bytes, closed: bool) -> bytes:
        """Return the sum of the survivors' masks for this guard, once their set is on record.

        Guarantees:
            For a run, round and pool one set is ever answered for, whatever happened in between; a run that
            is `closed` gets no new one. The same request gets the same bytes.
        """
        terms = terms_of(plan, self._known(), run, round_, pool)
        opened = open_request(terms, self._client, self._keys.agreement, request)
        before = self._on_record(run, round_, pool)
        choice = decide(opened.choice, before)
        if before is None:
            if closed:
                raise Refusal(f"run {run} is finished: no sum of it is revealed any more", "run")
            self._ledger.choose(run, round_, pool, choice.survivors)
        return answer(opened, self._on_record(run, round_, pool), self._keys.identity)

    def _on_record(self, run: str, round_: int, pool: int) -> Choice | None:
        survivors = self._ledger.choice(run, round_, pool)
        return None if survivors is None else Choice(run, round_, pool, survivors)

    def _known(self) -> Roster:
        if self._roster is None:
            raise Refusal(LACKING, "secure sum")
        return self._roster


def _roster_of(policy: Policy, keys: OwnKeys) -> Roster | None:
    """Read the policy's roster; raise unless it is vouched for, and has this client with these keys."""
    said = policy.secure_sum
    if said is None:
        return None
    path, consortium = Path(said.roster), bytes.fromhex(said.consortium) or None
    owners = {name: bytes.fromhex(key) for name, key in said.owners.items()} or None
    try:
        roster = read_roster(read_text(path), consortium=consortium, owners=owners)
    except InputError as problem:
        raise InputError(f"{path}: {problem}") from None
    mine, found = keys.contact(policy.client), roster.contacts.get(policy.client)
    if found is None or (found.identity, found.agreement) != (mine.identity, mine.agreement):
        has = "does not have" if found is None else "has other keys of"
        raise InputError(
            f"{path} {has} {policy.client}, whose guard this is: give the contact that `discretion guard "
            "GUARD.toml --contact` prints to whoever makes the roster"
        )
    return roster
