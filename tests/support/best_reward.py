"""The server's side of the game of incentives: the rewards that cost it least, by Lemma 2."""

from dataclasses import dataclass

import numpy as np
from costates import costates, slopes

from discretion.arrays import Floats
from discretion.errors import InputError
from discretion.methods.solvers.cohorts import inclusion
from discretion.methods.solvers.incentives import Game, by_search, chance, play

POINTS = 65  # rewards tried in every round before the best is refined
HALVINGS = 60
GOLDEN = (5**0.5 - 1) / 2


@dataclass(frozen=True, eq=False, kw_only=True)
class PaidGame(Game):
    """A game whose server chooses the rewards."""

    size: Floats  # (N,) number of records
    accuracy_weight: float = 1.0  # one unit of relative noise variance against one unit of reward
    gamma: float = 0.5  # the server's weight of accuracy against payment

    def __post_init__(self) -> None:
        super().__post_init__()
        checks = {
            "rho0 and size must be of one length": self.size.shape == self.rho0.shape,
            "size must be at least 1": bool(np.all(self.size >= 1)),
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


def response_line(game: Game, rho: Floats, reward: Floats, literal: bool = False) -> tuple[Floats, Floats]:
    """Return G >= 0 and H, each (T, N): Lemma 2's level at t = 1, …, T as a line G R + H in the reward.

    Defect: the line forgets that controls end at 0 and 1; about half of all H are below 0 or far above
    rho_high, and the server's cost along it has poles. `best_reward` cuts it where controls end.
    """
    phi = rho.mean(axis=1)
    costate, _ = costates(game, rho, reward, literal)
    gained, _ = slopes(game, rho, phi, literal)
    chosen = chance(game, rho, phi[:, None])
    away = rho[:-1] - phi[:-1, None]
    pull = away / (2 * (1 - game.privacy_weight) * chosen[:-1])
    return away * pull * gained[1:], phi[:-1, None] + away * pull * (costate - gained * reward[:, None])[1:]


def best_reward(game: PaidGame, rho: Floats, reward: Floats, literal: bool = False) -> Floats:
    """Return (T+1,) rewards that cost the server least in each round, given the others; 0 where none helps.

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


@dataclass(frozen=True, eq=False)
class Paid:
    """Where clients and server end up, and how far from rest."""

    reward: Floats  # (T+1,)
    phi: Floats  # (T+1,)
    gap: float  # largest |phi expected - phi that the controls chosen for it bring about|
    reward_gap: float  # largest |reward expected - reward the server then prefers|
    converged: bool  # both gaps within tolerance


def paid_equilibrium(game: PaidGame, reward: float, iterations: int = 60, tolerance: float = 5e-3) -> Paid:
    """Return the fixed point of clients and server, or the iterate of least gap."""
    expected, offer = np.tile(game.rho0, (game.rounds + 1, 1)), np.full(game.rounds + 1, reward)
    found: list[tuple[float, float, Floats, Floats]] = []
    while len(found) < iterations:
        alpha, rho = by_search(game, expected, offer)
        wanted = best_reward(game, rho, offer)
        gap = float(np.max(np.abs(rho.mean(axis=1) - expected.mean(axis=1))))
        reward_gap = float(np.max(np.abs(wanted - offer)))
        found.append((gap, reward_gap, alpha, offer))
        if max(gap, reward_gap) <= tolerance:
            break
        expected = expected + (rho - expected) / 2
        offer = offer + (wanted - offer) / 2
    gap, reward_gap, alpha, offer = min(found, key=lambda each: each[0] + each[1])
    return Paid(offer, play(game, alpha)[1], gap, reward_gap, max(gap, reward_gap) <= tolerance)
