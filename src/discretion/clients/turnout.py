"""Turnout of a run's clients: who is away, how many answer, and the words that say so."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from discretion.arrays import Floats, Ints
from discretion.plan.phase import Phase
from discretion.plan.plan import Plan

MAJORITY = 0.51  # the least share of clients that answer, unless told otherwise
ROUNDING = 1e-9  # of a share
WORTH_TELLING = 0.01  # chance that nobody trains
LONGEST_REASON = 200  # characters of a reason in an error
SECRET = "how many of them were asked, and trained, is not told, as coins are secret"


@dataclass(frozen=True)
class Turnout:
    """How many of the clients that a round may ask were there: they joined, and are not known to fail.

    That a client is there does not say that it trained: where coins are secret, nobody is told who was asked.
    """

    there: int
    expected: int
    round: int
    enough: bool = True  # False: the run stopped here, before the model moved
    clients: int = 0  # of the plan; 0: not on record

    @property
    def share(self) -> float:
        return self.there / self.expected

    @property
    def words(self) -> str:
        """Return "9 of 12 clients were there", with which every page, table and message begins."""
        were = "was" if self.there == 1 else "were"
        if self.clients > self.expected:
            asked = f"{self.there:,} of {self.expected:,} clients that a round may ask"
            return f"{asked} {were} there, of {self.clients:,} in the plan"
        return f"{self.there:,} of {self.expected:,} clients {were} there"


@dataclass(frozen=True)
class Orders:
    """Orders of all rounds so far, `until` the last round on record. Secret where coins are."""

    sent: int
    answered: int
    until: int
    refusing: int = 0  # clients whose guards refused an order, join orders included

    @property
    def nobody(self) -> bool:
        """Whether orders were sent, and none was answered."""
        return self.sent > 0 and not self.answered


def clauses(plan: Plan, found: Turnout | None, orders: Orders, public: bool) -> list[str]:
    """Return clauses on who was there and who trained in a run whose smallest turnout is `found`.

    Guarantees:
        Unless orders are `public`, the clauses depend on no coin of a client that answers: only on who is
        there (`Absences`), on how many orders failed, and on the plan.
    """
    said, failed = [], orders.sent - orders.answered
    if public and orders.nobody:
        said.append(_sent_in_vain(orders.sent))
    elif public and (orders.sent or found is None or found.enough):
        answered = f"{orders.answered:,} of {orders.sent:,} orders were answered"
        said.append(answered if orders.sent else "nobody trained: no order was sent")
    if found is not None and not found.enough:
        few = "" if public and orders.nobody else ", too few"
        said.append(f"{found.words} at round {found.round:,}{few}: the run stopped before the model moved")
    elif found is not None and found.there == found.expected:
        said.append(f"{found.words} when last called")
    elif found is not None:
        said.append(f"at least {found.words} when last called, in every round")
    if orders.refusing:
        guards = "guard of 1 client" if orders.refusing == 1 else f"guards of {orders.refusing:,} clients"
        said.append(f"the {guards} refused")
    if not public:
        count = f"{failed:,}" if failed else "no"
        order = "order" if failed == 1 else "orders"
        planned = f"where the plan expects {orders_until(plan, orders.until):.3g} to be sent"
        said += [f"{count} {order} failed, {planned}"] if failed or found is None else []
        said.append(SECRET)
    return said


def sentence(said: Sequence[str]) -> str:
    """Return clauses as one sentence; empty where there are none."""
    text = "; ".join(said)
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def asks_everyone(plan: Plan) -> bool:
    """Return whether each round asks all clients that it may ask, so that no coin decides who is asked."""
    if plan.noise_at == "secure_sum":  # each client is asked, and flips its own coin
        return True
    whole = (phase.turns is not None or bool(np.isin(phase.rate, (0, 1)).all()) for phase in plan.phases)
    return plan.reading is None and plan.sampling == "poisson" and all(whole)


def nobody_trained(sent: int, reasons: Iterable[str]) -> str:
    """Return a message, for the operator alone, on a run whose orders came to nothing."""
    return f"{_sent_in_vain(sent)}{most_often(reasons)}"


def most_often(reasons: Iterable[str]) -> str:
    """Return the most frequent reason of refusal, in brackets; empty where there is none."""
    found = Counter(reasons).most_common(1)
    return f" (most often: {found[0][0][:LONGEST_REASON]!r})" if found else ""


def _sent_in_vain(sent: int) -> str:
    orders = "1 order was" if sent == 1 else f"{sent:,} orders were"
    return f"nobody trained: {orders} sent and none was answered"


def expected_orders(plan: Plan, phase: Phase) -> Floats:
    """(N,) expected number of orders to each client in a round, whatever the coins say.

    For a secure sum every client is asked, and flips its own coin.
    """
    each = np.ceil(phase.expected) if plan.noise_at == "secure_sum" else phase.expected
    if plan.reading is not None and phase.read is not None:  # those that train are asked once more
        each = each * (1 + plan.reading.choose / max(float(each.sum()), 1.0))
    return each


def orders_until(plan: Plan, rounds: int) -> float:
    """Return how many orders the plan expects to send in its first rounds."""
    left, found = rounds, 0.0
    for phase in plan.phases:
        found += min(left, phase.rounds) * float(expected_orders(plan, phase).sum())
        left -= min(left, phase.rounds)
    return found


def nobody(plan: Plan, idle: int) -> str:
    """Return sentences on a run in which nobody may have trained; empty where that is unlikely.

    In `idle` rounds on record no client's budget allowed it to take part. Both facts are public.
    """
    said = []
    if idle:
        said.append(f"In {idle:,} of {plan.rounds:,} rounds no client’s budget allowed it to take part.")
    if (chance := _chance_of_nobody(plan)) >= WORTH_TELLING:
        said.append(f"With a chance of {chance:.0%} the plan’s coins ask nobody in the whole run.")
    return " ".join(said)


def _chance_of_nobody(plan: Plan) -> float:
    """Return the chance that no client is asked in any round, by the plan alone."""
    return math.prod(asks_nobody(plan, phase) ** phase.rounds for phase in plan.phases)


def asks_nobody(plan: Plan, phase: Phase) -> float:
    """Return the chance that a round of the phase asks no client, by the plan alone."""
    if plan.sampling == "fixed_size":
        return float(not phase.drawn.any())
    return float(np.where(phase.expected >= 1, 0.0, 1 - phase.expected).prod())


def fewest(found: Iterable[Turnout | None]) -> Turnout | None:
    """Return the turnout of all rounds that a reader must know: where the run stopped, or the smallest."""
    known = [each for each in found if each is not None]
    if known and not known[-1].enough:
        return known[-1]
    return min(known, key=lambda each: each.share, default=None)


@dataclass
class Absences:
    """The clients of a run that are away: by join orders, or by orders of rounds.

    A client whose order of a round was lost is away until the plan expects that it was sent another one, even
    if it answers join orders meanwhile. A client that refused an order of a round is asked whether it would
    join. If it would, join orders say nothing about its answers, and it is away until the run is resumed; if
    it refuses that as well, it is away until it joins.

    Guarantees:
        A client that answers whatever it is sent is never away. One that joins and refuses all orders of
        rounds is away from the first of them on. Only failures make a client away, and only join orders that
        do not depend on coins, and time, make it present again: that a client answered an order of a round
        changes nothing. So whether a run goes on, and how many are said to be there, tells nothing about
        whose coins came up among the clients that answer.
    """

    silent: set[int] = field(default_factory=set)  # did not answer; asked again before every round
    declined: set[int] = field(default_factory=set)  # refused to join; asked again at the next roll call
    unwilling: set[int] = field(default_factory=set)  # refused an order of a round
    owed: dict[int, float] = field(default_factory=dict)  # lost an order: expected orders until it counts

    @property
    def away(self) -> set[int]:
        return self.silent | self.declined | self.unwilling | set(self.owed)

    def failed(self, refused: Iterable[int], lost: Iterable[int]) -> None:
        """Take in failed orders of a round."""
        gone = set(lost)
        self.silent |= gone
        self.unwilling |= set(refused)
        self.owed |= dict.fromkeys(gone, 1.0)

    def next_round(self, sent: Floats) -> None:
        """Begin a round in which the plan expects (N,) orders to be `sent` to each client."""
        left = {client: owed - float(sent[client]) for client, owed in self.owed.items()}
        self.owed = {client: owed for client, owed in left.items() if owed > ROUNDING}

    def called(self, asked: Iterable[int], joined: set[int], declined: set[int]) -> None:
        """Take in the answers to join orders that were sent whatever the coins said."""
        called = set(asked)
        self.silent = (self.silent - called) | (called - joined - declined)
        self.declined = (self.declined - called) | declined
        self.unwilling -= declined  # whoever refuses both comes back by joining

    def turnout(self, round_: int, expected: Ints, least: float, clients: int = 0) -> Turnout:
        """Count, of the (k,) clients that the round may ask, those that are not away."""
        left = len(set(expected.tolist()) - self.away)
        return Turnout(left, len(expected), round_, left >= needed(least, len(expected)), clients)


def needed(least: float, expected: int) -> int:
    """Return how many of the expected clients must be there, by the least share of them."""
    return math.ceil(least * expected - ROUNDING)
