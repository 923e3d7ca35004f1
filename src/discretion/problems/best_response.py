"""What a client would best do in the game of incentives: dynamic programming over its privacy level."""

import numpy as np

from discretion.population import Floats, Ints
from discretion.problems.incentives import Game, chance, gain, step

STATES = 161
CONTROLS = 17
TYPES = 65


def types_of(privacy_weight: Floats) -> Floats:
    """Privacy weights for which values are computed: all of them if few, else evenly spread over them."""
    own = np.unique(privacy_weight)
    spread = own if len(own) <= TYPES else np.linspace(own[0], own[-1], TYPES)
    return spread if len(spread) > 1 else np.append(spread, spread + 1.0)


def values(game: Game, types: Floats, phi: Floats, reward: Floats, states: int = STATES) -> Floats:
    """(T+1, types, states) most that a client can still gain from a level on, if the others' mean is phi."""
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
    """Controls and levels, each (T+1, N), of clients that look ahead by `value`.

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
    """(states,) levels, closer together where they are low and a client's chance bends most."""
    return np.asarray(game.rho_low + (game.rho_high - game.rho_low) * np.linspace(0, 1, states) ** 2)


def _between(game: Game, rho: Floats, states: int) -> tuple[Ints, Floats]:
    """Index of the level below, and how far rho is on the way to the level above."""
    levels = _levels(game, states)
    root = np.sqrt(np.clip((rho - game.rho_low) / (game.rho_high - game.rho_low), 0, 1))
    index = np.minimum((root * (states - 1)).astype(np.int64), states - 2)
    return index, np.clip((rho - levels[index]) / (levels[index + 1] - levels[index]), 0, 1)
