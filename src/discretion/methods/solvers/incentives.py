"""Game of incentives: a server pays for privacy levels, and clients move theirs towards the mean or not.

The two-stage Stackelberg mean-field game of Yuan and Wang. A privacy level is a rho of zero-concentrated
privacy for one round. The game is played at t = 0, …, T, so that every path has T + 1 rows.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from discretion.arrays import Floats, Ints
from discretion.errors import InputError
from discretion.plan.phase import frozen

FINER = 401  # states of the search for regret, so that the search for equilibria does not judge itself
STATES = 161
CONTROLS = 17
TYPES = 65


@dataclass(frozen=True, eq=False)
class Game:
    """Public facts of the game; nothing here depends on a client's data."""

    rho0: Floats  # (N,) privacy level at t = 0
    privacy_weight: Floats  # (N,) varphi: what privacy is worth to a client, against steadiness
    rounds: int  # T
    cohort: int  # K
    rho_low: float = 0.01
    rho_high: float = 12.0

    def __post_init__(self) -> None:
        for name in ("rho0", "privacy_weight"):
            object.__setattr__(self, name, frozen(np.asarray(getattr(self, name)), np.float64))
        rho, weight, low, high = self.rho0, self.privacy_weight, self.rho_low, self.rho_high
        checks = {
            "rho0 and privacy_weight must be of one length, at least 1": (
                rho.ndim == 1 and rho.size > 0 and rho.shape == weight.shape
            ),
            f"rho0 must lie in [{low:g}, {high:g}], with 0 < rho_low < rho_high": (
                0 < low < high and np.all((rho >= low) & (rho <= high))
            ),
            "privacy_weight must lie strictly between 0 and 1": np.all((weight > 0) & (weight < 1)),
            f"rounds is {self.rounds}; expected at least 1": self.rounds >= 1,
            f"cohort is {self.cohort}; expected 1 to {len(rho)}": 1 <= self.cohort <= len(rho),
        }
        if wrong := [message for message, sound in checks.items() if not sound]:
            raise InputError("the game cannot be played: " + "; ".join(wrong))


def chance(game: Game, rho: Floats, phi: Floats) -> Floats:
    """Return the chance 1 - (1-x)^K to be drawn, x = rho/(N phi)."""
    missed = 1 - np.minimum(rho / (len(game.rho0) * phi), 1.0)
    return np.asarray(1 - missed * missed ** (game.cohort - 1))


def gain(chosen: Floats, rho: Floats, alpha: Floats, reward: Floats, privacy_weight: Floats) -> Floats:
    """Return what a round is worth to a client that is drawn with chance `chosen`: a term of (14)."""
    return np.asarray(chosen * (rho * reward - privacy_weight * rho**2 - (1 - privacy_weight) * alpha**2))


def utility(game: Game, rho: Floats, alpha: Floats, phi: Floats, reward: Floats) -> Floats:
    """Return (N,) what the whole game is worth to each client, where the others' mean is phi (T+1,)."""
    chosen = chance(game, rho, phi[:, None])
    return np.asarray(gain(chosen, rho, alpha, reward[:, None], game.privacy_weight).sum(axis=0))


def play(game: Game, alpha: Floats) -> tuple[Floats, Floats]:
    """Return levels (T+1, N) and their mean phi (T+1,) when all clients follow controls alpha (T+1, N).

    Guarantees: phi is the mean of the levels to the last digit; levels stay in [rho_low, rho_high].
    """
    rho = np.empty((game.rounds + 1, len(game.rho0)))
    rho[0] = game.rho0
    for t in range(game.rounds):
        rho[t + 1] = step(game, rho[t], alpha[t], float(rho[t].mean()))
    return rho, rho.mean(axis=1)


def step(game: Game, rho: Floats, alpha: Floats, phi: float) -> Floats:
    """Return the next level: phi + alpha (rho - phi)."""
    return np.clip(phi + alpha * (rho - phi), game.rho_low, game.rho_high)


def types_of(privacy_weight: Floats) -> Floats:
    """Return the privacy weights to compute values for: all of them if few, else evenly spread ones."""
    own = np.unique(privacy_weight)
    spread = own if len(own) <= TYPES else np.linspace(own[0], own[-1], TYPES)
    return spread if len(spread) > 1 else np.append(spread, spread + 1.0)


def values(game: Game, types: Floats, phi: Floats, reward: Floats, states: int = STATES) -> Floats:
    """Return (T+1, types, states) the most that a client can still gain, if the others' mean is phi."""
    levels, alpha = _levels(game, states), np.linspace(0, 1, CONTROLS)[:, None]
    value = np.empty((game.rounds + 1, len(types), states))
    value[-1] = gain(chance(game, levels, phi[-1]), levels, np.zeros(1), reward[-1], types[:, None])
    for t in reversed(range(game.rounds)):
        index, part = _between(game, step(game, levels, alpha, float(phi[t])), states)  # (CONTROLS, states)
        later = (1 - part) * value[t + 1][:, index] + part * value[t + 1][:, index + 1]
        now = gain(chance(game, levels, phi[t]), levels, alpha, reward[t], types[:, None, None])
        value[t] = (now + later).max(axis=1)
    return value


def respond(
    game: Game, types: Floats, value: Floats, reward: Floats, phi: Floats | None = None
) -> tuple[Floats, Floats]:
    """Return controls and levels, each (T+1, N), of clients that look ahead by `value`.

    The mean that levels move by is phi (T+1,) if given, as for one client among many; otherwise it is
    the mean of the very levels, as when all move together.
    """
    clients = np.arange(len(game.rho0))
    kind = np.clip(np.searchsorted(types, game.privacy_weight, side="right") - 1, 0, len(types) - 2)
    other = (game.privacy_weight - types[kind]) / (types[kind + 1] - types[kind])
    alpha, rho = (np.zeros((game.rounds + 1, len(clients))) for _ in range(2))
    rho[0] = game.rho0
    coarse, width = np.linspace(0, 1, CONTROLS), 1 / (CONTROLS - 1)
    fine = np.linspace(-width, width, CONTROLS)
    for t in range(game.rounds):
        mean = float(rho[t].mean() if phi is None else phi[t])
        chosen = chance(game, rho[t], np.array(mean))
        best = np.zeros(len(clients))
        for around in (coarse, fine):
            tried = np.clip(best + around[:, None], 0, 1)  # (CONTROLS, N)
            index, part = _between(game, step(game, rho[t], tried, mean), value.shape[-1])
            mine, next_kind = value[t + 1][kind, index], value[t + 1][kind + 1, index]
            mine_above, next_above = value[t + 1][kind, index + 1], value[t + 1][kind + 1, index + 1]
            later = (1 - other) * ((1 - part) * mine + part * mine_above)
            later += other * ((1 - part) * next_kind + part * next_above)
            now = gain(chosen, rho[t], tried, reward[t], game.privacy_weight)
            best = tried[np.argmax(now + later, axis=0), clients]
        alpha[t] = best
        rho[t + 1] = step(game, rho[t], best, mean)
    return alpha, rho


def _levels(game: Game, states: int) -> Floats:
    """Return (states,) levels, closer together where they are low and a client's chance bends most."""
    return np.asarray(game.rho_low + (game.rho_high - game.rho_low) * np.linspace(0, 1, states) ** 2)


def _between(game: Game, rho: Floats, states: int) -> tuple[Ints, Floats]:
    """Return the index of the level below rho, and how far rho is on the way to the level above."""
    levels = _levels(game, states)
    root = np.sqrt(np.clip((rho - game.rho_low) / (game.rho_high - game.rho_low), 0, 1))
    index = np.minimum((root * (states - 1)).astype(np.int64), states - 2)
    return index, np.clip((rho - levels[index]) / (levels[index + 1] - levels[index]), 0, 1)


def by_search(game: Game, expected: Floats, reward: Floats) -> tuple[Floats, Floats]:
    """Return the clients' best controls and the levels that these bring about, by dynamic programming.

    Clients expect levels (T+1, N), of which they look at the mean, and rewards (T+1,).
    """
    types = types_of(game.privacy_weight)
    return respond(game, types, values(game, types, expected.mean(axis=1), reward), reward)


Answer = Callable[[Game, Floats, Floats], tuple[Floats, Floats]]


@dataclass(frozen=True, eq=False)
class Equilibrium:
    """Choices of all clients, and their measured distance from an equilibrium."""

    rho: Floats  # (T+1, N) levels, which follow from the controls
    alpha: Floats  # (T+1, N) controls
    reward: Floats  # (T+1,)
    phi: Floats  # (T+1,) mean of the levels
    iterations: int
    gap: float  # largest |phi expected - phi that the controls chosen for it bring about|
    converged: bool  # the gap is within tolerance
    regret: Floats  # (sample,) share of its best utility that a client gives up, against phi as played

    @property
    def exploitable(self) -> float:
        """Return the share of the sampled clients that could gain more than 1 %."""
        return float(np.mean(self.regret > 0.01))


def equilibrium(
    game: Game,
    reward: float,
    answer: Answer = by_search,
    damping: float = 0.5,
    tolerance: float = 5e-3,
    iterations: int = 60,
) -> Equilibrium:
    """Return the fixed point of the mean field at a constant reward, where clients answer as `by_search`.

    Where no fixed point is reached, the iterate of least gap is returned, and `converged` says so. Clients
    switch between far-off levels, so with N clients gaps much below 1/N of a level may not exist.

    Guarantees: the levels returned are those that the controls returned bring about.
    """
    if not 0 < damping <= 1:
        raise InputError(f"damping is {damping:g}; expected above 0 and at most 1")
    if reward < 0:
        raise InputError(f"the reward is {reward:g}; expected at least 0")
    expected, offer = np.tile(game.rho0, (game.rounds + 1, 1)), np.full(game.rounds + 1, reward)
    least, best = np.inf, np.zeros_like(expected)
    count = 0
    while count < iterations and least > tolerance:
        count += 1
        alpha, rho = answer(game, expected, offer)
        gap = float(np.max(np.abs(rho.mean(axis=1) - expected.mean(axis=1))))
        if gap < least:
            least, best = gap, alpha
        expected = expected + damping * (rho - expected)
    rho, phi = play(game, best)
    _, regret = regrets(game, best, offer)
    return Equilibrium(rho, best, offer, phi, count, least, least <= tolerance, regret)


def regrets(game: Game, alpha: Floats, reward: Floats, sample: int = 20) -> tuple[Ints, Floats]:
    """Return clients, evenly over privacy weights, and the share of its best utility that each gives up.

    The better controls are played out, so a regret is one that a client could really avoid;
    the search is on a grid, so a regret of 0 means that none was found.
    """
    rho, phi = play(game, alpha)
    order = np.argsort(game.privacy_weight, kind="stable")
    picked = order[np.unique(np.linspace(0, len(order) - 1, min(sample, len(order))).astype(np.int64))]
    own = np.unique(np.append(game.privacy_weight[picked], [0.0, 1.0]))
    better, levels = respond(game, own, values(game, own, phi, reward, FINER), reward, phi)
    best = utility(game, levels, better, phi, reward)[picked]
    mine = utility(game, rho, alpha, phi, reward)[picked]
    scale = np.maximum(np.maximum(np.abs(best), np.abs(mine)), np.finfo(float).tiny)
    return picked, np.maximum(best - mine, 0.0) / scale


def welfare(game: Game, rho: Floats, reward: Floats) -> float:
    """Return the sum over rounds and clients of rho R - varphi rho² (30), for levels rho (T+1, N)."""
    return float(np.sum(rho * reward[:, None] - game.privacy_weight * rho**2))


def social_optimum(game: Game, reward: Floats) -> Floats:
    """Return the (T+1, N) levels of greatest welfare, R/(2 varphi), within [rho_low, rho_high]."""
    return np.clip(reward[:, None] / (2 * game.privacy_weight), game.rho_low, game.rho_high)


def price_of_anarchy(game: Game, rho: Floats, reward: Floats) -> float:
    """Return the greatest welfare over that of rho; infinite where rho is worth nothing to the clients.

    Guarantees: at least 1 if rho lies within [rho_low, rho_high].
    """
    achieved = welfare(game, rho, reward)
    return welfare(game, social_optimum(game, reward), reward) / achieved if achieved > 0 else float("inf")
