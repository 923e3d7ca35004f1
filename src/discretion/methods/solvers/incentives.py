"""A game for privacy: a server pays by the round, clients move their privacy level towards or from the mean.

The two-stage Stackelberg mean-field game of Yuan and Wang. A privacy level is a rho of zero-concentrated
privacy for one round. The game is played at t = 0, …, T, so that every path has T + 1 rows.
"""

from dataclasses import dataclass

import numpy as np

from discretion.errors import InputError
from discretion.population import Floats
from discretion.problems.cohorts import inclusion

POINTS = 65  # rewards tried in every round before the best is refined
HALVINGS = 60
GOLDEN = (5**0.5 - 1) / 2


@dataclass(frozen=True, eq=False)
class Game:
    """The public facts of the game; nothing here depends on a client's data."""

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
            column = np.array(getattr(self, name), dtype=np.float64)
            column.flags.writeable = False
            object.__setattr__(self, name, column)
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
        """(N,) weight of a client in the model: its share of the records."""
        return np.asarray(self.size / self.size.sum())


def printed_accuracy_weight(game: Game) -> float:
    """The accuracy weight that the paper's cost (13) has: mean of (theta/|D|)², of the order 1e-10."""
    return float(np.mean((game.theta / game.size) ** 2))


def chance(game: Game, rho: Floats, phi: Floats) -> tuple[Floats, Floats]:
    """The chance 1 - (1-x)^K to be drawn, x = rho/(N phi), and its slope in rho."""
    x = np.minimum(rho / (len(game.rho0) * phi), 1.0)
    missed = (1 - x) ** (game.cohort - 1)
    return 1 - (1 - x) * missed, game.cohort / (len(game.rho0) * phi) * missed


def gain(chosen: Floats, rho: Floats, alpha: Floats, reward: Floats, privacy_weight: Floats) -> Floats:
    """What a round is worth to a client that is drawn with chance `chosen`: a term of (14)."""
    return np.asarray(chosen * (rho * reward - privacy_weight * rho**2 - (1 - privacy_weight) * alpha**2))


def utility(game: Game, rho: Floats, alpha: Floats, phi: Floats, reward: Floats) -> Floats:
    """(N,) what the whole game is worth to each client, where phi (T+1,) is what the others do."""
    chosen, _ = chance(game, rho, phi[:, None])
    return np.asarray(gain(chosen, rho, alpha, reward[:, None], game.privacy_weight).sum(axis=0))


def play(game: Game, alpha: Floats) -> tuple[Floats, Floats]:
    """Levels (T+1, N) and their mean phi (T+1,) when everybody follows its controls alpha (T+1, N).

    Guarantees: phi is the mean of the levels to the last digit; levels stay in [rho_low, rho_high].
    """
    rho = np.empty((game.rounds + 1, len(game.rho0)))
    rho[0] = game.rho0
    for t in range(game.rounds):
        rho[t + 1] = step(game, rho[t], alpha[t], float(rho[t].mean()))
    return rho, rho.mean(axis=1)


def step(game: Game, rho: Floats, alpha: Floats, phi: float) -> Floats:
    """The next level: phi + alpha (rho - phi)."""
    return np.clip(phi + alpha * (rho - phi), game.rho_low, game.rho_high)


def slopes(game: Game, rho: Floats, phi: Floats, literal: bool = False) -> tuple[Floats, Floats]:
    """What a higher level gains per unit of reward, and what it loses in privacy; each (T+1, N).

    The paper's Q, and its -M without the controls' part. `literal` leaves out the factor K/(N phi) in M,
    as Theorem 1 prints it.
    """
    chosen, slope = chance(game, rho, phi[:, None])
    steep = _steepness(game, slope, phi, literal)
    return chosen + slope * rho, game.privacy_weight * (2 * rho * chosen + steep * rho**2)


def costates(game: Game, rho: Floats, reward: Floats, literal: bool = False) -> tuple[Floats, Floats]:
    """Costates lambda and the controls they ask for, before projection to [0, 1]; each (T+1, N).

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
        alpha = project(wanted[t])
        steadiness = steep[t] * (1 - game.privacy_weight) * alpha**2
        later = alpha * later + gained[t] * reward[t] - lost[t] - steadiness
        costate[t] = later
    return costate, wanted


def project(wanted: Floats) -> Floats:
    """Controls as clients can play them, in [0, 1]."""
    return np.clip(wanted, 0.0, 1.0)


def response_line(game: Game, rho: Floats, reward: Floats, literal: bool = False) -> tuple[Floats, Floats]:
    """G >= 0 and H, each (T, N): Lemma 2's level at t = 1, …, T as a line G R + H in that round's reward.

    Defect: the line forgets that controls end at 0 and 1; about half of all H are below 0 or far above
    rho_high, and the server's cost along it has poles. `best_reward` cuts it where controls end.
    """
    phi = rho.mean(axis=1)
    costate, _ = costates(game, rho, reward, literal)
    gained, _ = slopes(game, rho, phi, literal)
    chosen, _ = chance(game, rho, phi[:, None])
    away = rho[:-1] - phi[:-1, None]
    pull = away / (2 * (1 - game.privacy_weight) * chosen[:-1])
    return away * pull * gained[1:], phi[:-1, None] + away * pull * (costate - gained * reward[:, None])[1:]


def best_reward(game: Game, rho: Floats, reward: Floats, literal: bool = False) -> Floats:
    """(T+1,) reward that costs the server least in each round, given the others; 0 where nothing answers.

    In the server's cost (13) every client counts with the probability that it is drawn, and 1/t is
    1/(t+1). A level answers along `response_line` as far as controls go, which makes the cost
    neither convex nor smooth: each round is searched on a grid up to where payment alone costs too much,
    then refined by golden section around the best point of the grid.
    """
    line, start = response_line(game, rho, reward, literal)
    phi = rho[:-1].mean(axis=1, keepdims=True)
    least, most = np.minimum(rho[:-1], phi), np.maximum(rho[:-1], phi)
    drawn = inclusion(rho[1:], game.cohort)
    variance = (game.theta / game.size) ** 2 / np.mean((game.theta / game.size) ** 2)
    accuracy = game.gamma * game.accuracy_weight * variance / np.arange(2, game.rounds + 2)[:, None]

    def cost(offer: Floats) -> Floats:
        level = np.clip(line * offer[:, None] + start, least, most)
        return np.asarray(
            (drawn * (accuracy / level + (1 - game.gamma) * offer[:, None] * level)).sum(axis=1)
        )

    # beyond this offer the payment alone costs more than offering nothing
    end = cost(np.zeros(game.rounds)) / ((1 - game.gamma) * (drawn * least).sum(axis=1))
    shares = np.linspace(0, 1, POINTS) ** 2
    best = np.argmin([cost(share * end) for share in shares], axis=0)
    low, high = shares[np.maximum(best - 1, 0)] * end, shares[np.minimum(best + 1, POINTS - 1)] * end
    for _ in range(HALVINGS):
        left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
        lower = cost(left) <= cost(right)
        low, high = np.where(lower, low, left), np.where(lower, right, high)
    found = np.stack([np.zeros(game.rounds), shares[best] * end, low])
    cheapest = np.argmin([cost(offer) for offer in found], axis=0)
    return np.concatenate([[0.0], found[cheapest, np.arange(game.rounds)]])  # rho0 does not answer


def _steepness(game: Game, slope: Floats, phi: Floats, literal: bool) -> Floats:
    return slope * len(game.rho0) * phi[:, None] / game.cohort if literal else slope
