"""Turns in an order that is fixed when planning, as evenly spread as whole numbers allow."""

import numpy as np

from discretion.errors import PlanError
from discretion.population import Floats, Ints
from discretion.streams import Purpose, stream


def even_turns(probability: Floats, cohort: int, rounds: int, seed: int) -> Ints:
    """(T, N) turns: in every round `cohort` of them, for those whom most of their due has not come to yet.

    Drawn with replacement, a client that expects n turns gets n ± sqrt(n), and as the variance of its noise
    grows with the turns, what it adds to all rounds grows as the mean of the square: n² + n. Here it is n².

    Guarantees:
        Each round has `cohort` turns.
        After any number of rounds everybody is within two turns of what is due to it.
        Who has probability 0 has no turn.
    """
    if cohort < 1 or not (np.isfinite(probability) & (probability >= 0)).all() or not probability.any():
        raise PlanError("expected at least one turn in a round, and probabilities of which one is above 0")
    due = cohort * probability / probability.sum()  # (N,) in a round
    start = stream(seed, Purpose.TURNS).random(len(due))  # or all who are due the same would come together
    had = np.zeros(len(due), dtype=np.int64)
    out = np.zeros((rounds, len(due)), dtype=np.int64)
    for number in range(rounds):
        behind = np.where(due > 0, due * (number + 1) + start - had, -np.inf)
        turns = np.floor(np.maximum(behind, 0.0)).astype(np.int64)
        while (missing := cohort - int(turns.sum())) > 0:
            turns[np.argsort(turns - behind, kind="stable")[:missing]] += 1
        while missing < 0:
            least = np.argsort(np.where(turns > 0, behind - turns, np.inf), kind="stable")
            turns[least[: min(-missing, int((turns > 0).sum()))]] -= 1
            missing = cohort - int(turns.sum())
        out[number] = turns
        had += turns
    return out
