"""Game of incentives: a server pays for privacy levels, and clients move theirs towards the mean or not.

The two-stage Stackelberg mean-field game of Yuan and Wang. A privacy level is a rho of zero-concentrated
privacy for one round. The game is played at t = 0, …, T, so that every path has T + 1 rows.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from discretion.arrays import Floats, Ints
from discretion.errors import InputError
from discretion.plan.phase import frozen

By = Literal["search", "costates", "printed"]
FINER = 401  # states of the search for regret, so that the search for equilibria does not judge itself
STATES = 161
CONTROLS = 17
TYPES = 65


@dataclass(frozen=True, eq=False)
class Game:
    """Public facts of the game; nothing here depends on a client's data."""

    rho0: Floats  # (N,) privacy level at t = 0
    privacy_weight: Floats  # (N,) varphi: what privacy is worth to a client, against steadiness
    size: Floats  # (N,) number of records
    rounds: int  # T
    cohort: int  # K
    accuracy_weight: float = 1.0  # one unit of relative noise variance against one unit of reward
    gamma: float = 0.5  # the server's weight of accuracy against payment
    rho_low: float = 0.01
    rho_high: float = 12.0

    def __post_init__(self) -> None:
        for name in ("rho0", "privacy_weight", "size"):
            object.__setattr__(self, name, frozen(np.asarray(getattr(self, name)), np.float64))
        checks = {
            "rho0, privacy_weight and size must be of one length, at least 1": (
                self.rho0.ndim == 1
                and self.rho0.size > 0
                and self.rho0.shape == self.privacy_weight.shape == self.size.shape
            ),
            f"rho0 must lie in [{self.rho_low:g}, {self.rho_high:g}], with 0 < rho_low < rho_high": (
                0 < self.rho_low < self.rho_high
                and bool(np.all((self.rho0 >= self.rho_low) & (self.rho0 <= self.rho_high)))
            ),
            "privacy_weight must lie strictly between 0 and 1": bool(
                np.all((self.privacy_weight > 0) & (self.privacy_weight < 1))
            ),
            "size must be at least 1": bool(np.all(self.size >= 1)),
            f"rounds is {self.rounds}; expected at least 1": self.rounds >= 1,
            f"cohort is {self.cohort}; expected 1 to {len(self.rho0)}": 1 <= self.cohort <= len(self.rho0),
            f"accuracy_weight is {self.accuracy_weight:g}; expected at least 0": self.accuracy_weight >= 0,
            f"gamma is {self.gamma:g}; expected a number between 0 and 1": 0 < self.gamma < 1,
        }
        wrong = [message for message, sound in checks.items() if not sound]
        if wrong:
            raise InputError("the game cannot be played: " + "; ".join(wrong))

    @property
    def theta(self) -> Floats:
        """Return (N,) weights of the clients in the model: their shares of the records."""
        return np.asarray(self.size / self.size.sum())


def chance(game: Game, rho: Floats, phi: Floats) -> tuple[Floats, Floats]:
    """Return the chance 1 - (1-x)^K to be drawn, x = rho/(N phi), and its slope in rho."""
    x = np.minimum(rho / (len(game.rho0) * phi), 1.0)
    missed = (1 - x) ** (game.cohort - 1)
    return 1 - (1 - x) * missed, game.cohort / (len(game.rho0) * phi) * missed


def gain(chosen: Floats, rho: Floats, alpha: Floats, reward: Floats, privacy_weight: Floats) -> Floats:
    """Return what a round is worth to a client that is drawn with chance `chosen`: a term of (14)."""
    return np.asarray(chosen * (rho * reward - privacy_weight * rho**2 - (1 - privacy_weight) * alpha**2))


def utility(game: Game, rho: Floats, alpha: Floats, phi: Floats, reward: Floats) -> Floats:
    """Return (N,) what the whole game is worth to each client, where the others' mean is phi (T+1,)."""
    chosen, _ = chance(game, rho, phi[:, None])
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


def slopes(game: Game, rho: Floats, phi: Floats, literal: bool = False) -> tuple[Floats, Floats]:
    """Return what a higher level gains per unit of reward, and its loss of privacy; each (T+1, N).

    The paper's Q, and its -M without the controls' part. `literal` leaves out the factor K/(N phi) in M,
    as Theorem 1 prints it.
    """
    chosen, slope = chance(game, rho, phi[:, None])
    steep = _steepness(game, slope, phi, literal)
    return chosen + slope * rho, game.privacy_weight * (2 * rho * chosen + steep * rho**2)


def costates(game: Game, rho: Floats, reward: Floats, literal: bool = False) -> tuple[Floats, Floats]:
    """Return costates lambda and the controls that follow, before projection to [0, 1]; each (T+1, N).

    The levels rho (T+1, N) are those around which the maximum principle is written; phi is their mean.
    """
    phi = rho.mean(axis=1)
    chosen, slope = chance(game, rho, phi[:, None])
    steep = _steepness(game, slope, phi, literal)
    gained, lost = slopes(game, rho, phi, literal)
    costate, wanted = np.zeros_like(rho), np.zeros_like(rho)
    later = np.zeros_like(game.rho0)
    for t in range(game.rounds, -1, -1):
        if t < game.rounds:
            wanted[t] = later * (rho[t] - phi[t]) / (2 * (1 - game.privacy_weight) * chosen[t])
        alpha = np.clip(wanted[t], 0.0, 1.0)
        steadiness = steep[t] * (1 - game.privacy_weight) * alpha**2
        later = alpha * later + gained[t] * reward[t] - lost[t] - steadiness
        costate[t] = later
    return costate, wanted


def _steepness(game: Game, slope: Floats, phi: Floats, literal: bool) -> Floats:
    return slope * len(game.rho0) * phi[:, None] / game.cohort if literal else slope


def types_of(privacy_weight: Floats) -> Floats:
    """Return the privacy weights to compute values for: all of them if few, else evenly spread ones."""
    own = np.unique(privacy_weight)
    spread = own if len(own) <= TYPES else np.linspace(own[0], own[-1], TYPES)
    return spread if len(spread) > 1 else np.append(spread, spread + 1.0)


def values(game: Game, types: Floats, phi: Floats, reward: Floats, states: int = STATES) -> Floats:
    """Return (T+1, types, states) the most that a client can still gain, if the others' mean is phi."""
    levels, alpha = _levels(game, states), np.linspace(0, 1, CONTROLS)[:, None]
    weight = types[:, None, None]
    value = np.empty((game.rounds + 1, len(types), states))
    for t in range(game.rounds, -1, -1):
        chosen, _ = chance(game, levels, phi[t])
        if t == game.rounds:
            value[t] = gain(chosen, levels, np.zeros(1), reward[t], types[:, None])
            continue
        index, part = _between(game, step(game, levels, alpha, float(phi[t])), states)  # (CONTROLS, states)
        later = (1 - part) * value[t + 1][:, index] + part * value[t + 1][:, index + 1]
        value[t] = (gain(chosen, levels, alpha, reward[t], weight) + later).max(axis=1)
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
        chosen, _ = chance(game, rho[t], np.array(mean))
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


@dataclass(frozen=True, eq=False)
class Convergence:
    """Measured distance from an equilibrium; nothing here is assumed."""

    iterations: int
    gap: float  # largest |phi expected - phi that the controls chosen for it bring about|
    reward_gap: float  # largest |reward expected - reward the server then prefers|; 0 if it is fixed
    converged: bool  # both gaps within tolerance
    regret: Floats  # (sample,) share of its best utility that a client gives up, against phi as played
    clients: Ints  # (sample,) whose regret it is

    @property
    def exploitable(self) -> float:
        """Return the share of the sampled clients that could gain more than 1 %."""
        return float(np.mean(self.regret > 0.01))


@dataclass(frozen=True, eq=False)
class Equilibrium:
    """Choices of all clients. Levels follow from the controls, and phi is the mean of the levels."""

    rho: Floats  # (T+1, N)
    alpha: Floats  # (T+1, N)
    reward: Floats  # (T+1,)
    phi: Floats  # (T+1,)
    report: Convergence


def equilibrium(
    game: Game,
    reward: float,
    by: By = "search",
    damping: float = 0.5,
    tolerance: float = 5e-3,
    iterations: int = 60,
    sample: int = 20,
    server: Callable[[Game, Floats, Floats], Floats] | None = None,
) -> Equilibrium:
    """Return the fixed point of the mean field, at a constant reward or, from there on, at the server's own.

    `by` says how clients answer: "search" by dynamic programming; "costates" by the maximum principle,
    whose paths need not be best; "printed" with the formula of Theorem 1, which lacks a factor. `server`
    returns the rewards (T+1,) that it prefers for levels (T+1, N) under the rewards (T+1,) so far.
    Where no fixed point is reached, the iterate of least gap is returned and the report says so. Clients
    switch between far-off levels, so with N clients gaps much below 1/N of a level may not exist.

    Guarantees: the levels returned are those that the controls returned bring about.
    """
    if not 0 < damping <= 1:
        raise InputError(f"damping is {damping:g}; expected above 0 and at most 1")
    if reward < 0:
        raise InputError(f"the reward is {reward:g}; expected at least 0")
    types = types_of(game.privacy_weight)
    expected = np.tile(game.rho0, (game.rounds + 1, 1))
    offer = np.full(game.rounds + 1, reward)
    least, best = np.inf, (np.zeros_like(expected), offer, 0.0, 0.0)
    count = 0
    while count < iterations:
        count += 1
        phi = expected.mean(axis=1)
        if by == "search":
            alpha, rho = respond(game, types, values(game, types, phi, offer), offer)
        else:
            alpha = np.clip(costates(game, expected, offer, by == "printed")[1], 0.0, 1.0)
            rho, _ = play(game, alpha)
        gap = float(np.max(np.abs(rho.mean(axis=1) - phi)))
        wanted = server(game, rho, offer) if server else offer
        reward_gap = float(np.max(np.abs(wanted - offer)))
        if gap + reward_gap < least:
            least, best = gap + reward_gap, (alpha, offer, gap, reward_gap)
        if max(gap, reward_gap) <= tolerance:
            break
        expected = expected + damping * (rho - expected)
        offer = offer + damping * (wanted - offer)
    alpha, offer, gap, reward_gap = best
    rho, phi = play(game, alpha)
    clients, regret = regrets(game, alpha, offer, sample)
    report = Convergence(count, gap, reward_gap, max(gap, reward_gap) <= tolerance, regret, clients)
    return Equilibrium(rho, alpha, offer, phi, report)


def regrets(game: Game, alpha: Floats, reward: Floats, sample: int) -> tuple[Ints, Floats]:
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


def social_optimum(game: Game, reward: Floats, bounded: bool = True) -> Floats:
    """Return the (T+1, N) levels of greatest welfare, R/(2 varphi), within [rho_low, rho_high].

    Defect of the paper: `bounded=False`, levels that no client may choose; with varphi uniform on (0, 1)
    the mean of that optimum over populations is infinite.
    """
    free = reward[:, None] / (2 * game.privacy_weight)
    return np.clip(free, game.rho_low, game.rho_high) if bounded else free


def all_at(game: Game, level: float) -> Floats:
    """Return one level (T+1, N) for all: rho_low under random participation, rho_high in the worst case."""
    return np.full((game.rounds + 1, len(game.rho0)), level)


def price_of_anarchy(game: Game, rho: Floats, reward: Floats, bounded: bool = True) -> float:
    """Return the greatest welfare over that of rho; infinite where rho is worth nothing to the clients.

    Guarantees: at least 1 if `bounded` and rho lies within [rho_low, rho_high].
    """
    achieved = welfare(game, rho, reward)
    if achieved <= 0:
        return float("inf")
    return welfare(game, social_optimum(game, reward, bounded), reward) / achieved
