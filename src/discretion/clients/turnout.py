"""Turnout of a run's clients: who is away, how many answer, and the words that say so."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from discretion.arrays import Floats, Ints
from discretion.plan.phase import Phase
from discretion.plan.plan import Plan

MAJORITY = 0.51  # the least share of clients that answer, unless told otherwise
ROUNDING = 1e-9  # of a share
WORTH_TELLING = 0.01  # chance that nobody trains


@dataclass(frozen=True)
class Turnout:
    """How many of the clients that a round may ask answered when they were last asked."""

    answering: int
    expected: int
    round: int
    enough: bool = True  # False: the run stopped here, before the model moved

    @property
    def share(self) -> float:
        return self.answering / self.expected

    @property
    def words(self) -> str:
        """Return "9 of 12 clients answered", with which every page, table and message begins."""
        return f"{self.answering:,} of {self.expected:,} clients answered"

    def sentence(self, failed: int, planned: float) -> str:
        """Return one sentence on a run whose fewest answers these are.

        `failed` orders were refused or lost, where the plan expects `planned` ones. Both tell nothing about
        the coins of clients that answer.
        """
        if not self.enough:
            return f"{self.words} at round {self.round:,}, too few: the run stopped before the model moved."
        if not failed and self.answering == self.expected:
            return f"{self.words} when last asked."
        orders = "order" if failed == 1 else "orders"
        return (
            f"At least {self.words} when last asked, in every round; {failed:,} {orders} failed, where the "
            f"plan expects {planned:.3g} to be sent."
        )


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

    A client that failed an order of a round, which it refused or which was lost, is away until the plan
    expects that it was sent another one, even if it answers join orders meanwhile.

    Guarantees:
        A client that answers whatever it is sent is never away. Only failures make a client away, and only
        join orders that do not depend on coins, and time, make it present again: that a client answered an
        order of a round changes nothing. So whether a run goes on, and how many are said to answer, tells
        nothing about whose coins came up among the clients that answer.
    """

    silent: set[int] = field(default_factory=set)  # did not answer; asked again before every round
    declined: set[int] = field(default_factory=set)  # refused to join; asked again at the next roll call
    owed: dict[int, float] = field(default_factory=dict)  # failed an order: expected orders until it counts

    @property
    def away(self) -> set[int]:
        return self.silent | self.declined | set(self.owed)

    def failed(self, refused: Iterable[int], lost: Iterable[int]) -> None:
        """Take in failed orders of a round."""
        gone = set(lost)
        self.silent |= gone
        self.owed |= dict.fromkeys([*refused, *gone], 1.0)

    def next_round(self, sent: Floats) -> None:
        """Begin a round in which the plan expects (N,) orders to be `sent` to each client."""
        left = {client: owed - float(sent[client]) for client, owed in self.owed.items()}
        self.owed = {client: owed for client, owed in left.items() if owed > ROUNDING}

    def called(self, asked: Iterable[int], joined: set[int], declined: set[int]) -> None:
        """Take in the answers to join orders that were sent whatever the coins said."""
        called = set(asked)
        self.silent = (self.silent - called) | (called - joined - declined)
        self.declined = (self.declined - called) | declined

    def turnout(self, round_: int, expected: Ints, least: float) -> Turnout:
        """Count, of the (k,) clients that the round may ask, those that are not away."""
        left = len(set(expected.tolist()) - self.away)
        return Turnout(left, len(expected), round_, left >= needed(least, len(expected)))


def needed(least: float, expected: int) -> int:
    """Return how many of the expected clients must answer, by the least share of them."""
    return math.ceil(least * expected - ROUNDING)
