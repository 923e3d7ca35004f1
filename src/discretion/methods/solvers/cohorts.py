"""Cohorts of a round: draws by privacy level, weights without bias, budgets of a round, and even turns."""

import numpy as np
from numpy.typing import NDArray

from discretion.arrays import Floats, Ints
from discretion.errors import InputError, PlanError
from discretion.randomness.streams import Purpose, stream

ROUNDING = 1e-12  # so that sums stay within a budget to the last digit


def inclusion(x: Floats, cohort: int) -> Floats:
    """Return (…, N) inclusion probabilities min(1, c x), with c such that they sum to `cohort`.

    Guarantees: within [0, 1]; the sum is `cohort`.
    """
    x = np.asarray(x, dtype=np.float64)
    if not 1 <= cohort <= x.shape[-1] or not np.all(x > 0):
        raise InputError(
            f"a cohort of {cohort} from {x.shape[-1]} clients cannot be drawn: expected a cohort of 1 to "
            f"{x.shape[-1]} and weights above 0, the smallest is {x.min():g}"
        )
    down = -np.sort(-x, axis=-1)
    rest = np.cumsum(down[..., ::-1], axis=-1)[..., ::-1]  # sum from each client on, largest first
    certain = np.arange(x.shape[-1])  # so many are in for sure, if the next one is not
    scale = np.maximum(cohort - certain, 0) / rest
    first = np.argmax(scale * down <= 1, axis=-1)[..., None]
    return np.minimum(1.0, x * np.take_along_axis(scale, first, axis=-1))


def unbiased_weights(theta: Floats, drawn: Floats) -> Floats:
    """Return (N,) weights theta/pi (Horvitz and Thompson), for any draw with inclusion probabilities pi.

    Guarantees: the expected sum over the clients drawn is the sum of theta.
    """
    return np.asarray(theta / drawn)


def systematic(drawn: Floats, start: float) -> NDArray[np.bool_]:
    """Return (N,) who is in, for one uniform `start` in [0, 1): client i with probability drawn[i].

    Guarantees: as many clients as the probabilities sum to, if that is a whole number.
    """
    ends = np.cumsum(drawn)
    if np.isclose(ends[-1], np.rint(ends[-1])):
        ends[-1] = np.rint(ends[-1])  # rounding must not cost a client
    marks = np.floor(ends - start)
    return np.diff(marks, prepend=np.floor(-start)) > 0


def within_round(
    rho: Floats, budget: float, reward: float, gamma: float = 0.5, accuracy_weight: float = 1.0
) -> tuple[NDArray[np.bool_], float]:
    """Return (N,) who is in, and the server's cost, where the levels of a cohort sum to at most `budget`.

    The cost of K clients is gamma accuracy_weight (1/K - 1/N + sum 1/rho / K²) + (1-gamma) reward sum rho:
    the sampling variance falls in K, without which the cheapest cohort would be empty. For each K the
    candidates are the K neighbours in rho that cost least among those that fit: the best of all cohorts
    of K where the budget does not bind, a good one where it does.

    Guarantees: the levels of those in sum to at most `budget`; nobody is in if nobody fits.
    """
    order = np.argsort(rho, kind="stable")
    level = rho[order]
    total, inverse = np.append(0.0, np.cumsum(level)), np.append(0.0, np.cumsum(1 / level))
    limit = budget * (1 - ROUNDING)
    many = np.arange(1, len(rho) + 1)
    many = many[total[many] <= limit]
    if not len(many):
        return np.zeros(len(rho), dtype=np.bool_), float("inf")

    def share(place: Ints) -> Floats:  # of the cost, by the client at this place
        return gamma * accuracy_weight / (many**2 * level[place]) + (1 - gamma) * reward * level[place]

    low, high = np.zeros(len(many), dtype=np.int64), len(rho) - many  # place of the lowest neighbour
    while np.any(low < high):
        middle = (low + high + 1) // 2
        fits = total[middle + many] - total[middle] <= limit
        leaves, joins = np.maximum(middle - 1, 0), np.minimum(middle - 1 + many, len(rho) - 1)
        up = fits & (share(joins) <= share(leaves))
        low, high = np.where(up, middle, low), np.where(up, high, middle - 1)
    variance = 1 / many - 1 / len(rho) + (inverse[low + many] - inverse[low]) / many**2
    cost = gamma * accuracy_weight * variance + (1 - gamma) * reward * (total[low + many] - total[low])
    best = int(np.argmin(cost))
    chosen = np.zeros(len(rho), dtype=np.bool_)
    chosen[order[low[best] : low[best] + many[best]]] = True
    return chosen, float(cost[best])


def even_turns(probability: Floats, cohort: int, rounds: int, seed: int) -> Ints:
    """Return (T, N) turns: in every round `cohort` of them, for the clients furthest behind their due.

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
