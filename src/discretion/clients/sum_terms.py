"""Terms of a plan's secure sums, as guards and servers work them out, each from its own roster."""

from collections.abc import Collection, Iterator

import numpy as np

from discretion.arrays import Ints
from discretion.errors import Refusal
from discretion.plan.grid import MODULUS
from discretion.plan.phase import Phase
from discretion.plan.plan import Plan
from discretion.secure_sum.roster import Roster
from discretion.secure_sum.terms import Terms, agreed_terms

BITS = (MODULUS - 1).bit_length()
ALONE = 2  # clients of a sum that do not collude, at least


def terms_of(plan: Plan, roster: Roster, run: str, round_: int, pool: int) -> Terms:
    """Return the terms of the secure sum of a round and pool; raise `Refusal` where there is none.

    Guarantees:
        They follow from the plan and the roster alone, whoever asks.
        No sum is of fewer clients than the plan's noise was sized for, or than leave two that do not collude.
    """
    if plan.grid is None or not 1 <= round_ <= plan.rounds:
        raise Refusal(f"round {round_} of this plan has no secure sum", "plan")
    phase = plan.phases[plan.phase_of(round_)]
    senders = np.flatnonzero((phase.pool == pool) & (phase.expected > 0))
    if not len(senders):
        raise Refusal(f"round {round_} of this plan has no clients in pool {pool}", "plan")
    return agreed_terms(
        roster,
        [plan.clients[i] for i in senders.tolist()],
        run=run,
        plan=bytes.fromhex(plan.digest()),
        round_=round_,
        pool=pool,
        size=plan.grid.size,
        bits=BITS,
        colluding=plan.colluding,
        least=int(least_of(plan, phase)[senders[0]]),
    )


def least_of(plan: Plan, phase: Phase) -> Ints:
    """Return (N,) the smallest number of survivors in each client's pool whose sum may be revealed."""
    return np.maximum(plan.shares(phase), plan.colluding + ALONE)


def unsummable(plan: Plan) -> str:
    """Return why a plan's answers cannot be summed securely, whatever the roster; empty if they can."""
    if plan.grid is None:
        return "a secure sum is of whole numbers: plan on a grid (plan.integers = true)"
    for phase in plan.phases:
        taking = phase.expected > 0
        few = np.flatnonzero(taking & (phase.holders < plan.colluding + ALONE))
        if len(few):
            return (
                f"pool {phase.pool[few[0]]} has {phase.holders[few[0]]} clients, and a secure sum with "
                f"{plan.colluding} of them colluding needs {plan.colluding + ALONE}: put more clients into "
                "it, or let fewer collude"
            )
    return ""


def unknown_clients(plan: Plan, roster: Collection[str], me: int | None = None) -> Iterator[str]:
    """Yield for which pools (default: all, else this client's) a roster has too few of the plan's clients."""
    known = np.array([name in roster for name in plan.clients])
    told: set[str] = set()
    for phase in plan.phases:
        taking, least = phase.expected > 0, least_of(plan, phase)
        found = np.bincount(phase.pool[taking & known], minlength=len(phase.noise))
        short = taking & (found[phase.pool] < least)
        for place in np.unique(phase.pool[short] if me is None else phase.pool[[me]][short[[me]]]).tolist():
            need = int(least[taking & (phase.pool == place)][0])
            told.add(
                f"the roster has {found[place]} of the clients of pool {place}, expected {need} at least"
            )
    yield from sorted(told)
