"""Cost of a record by Yuan and Wang, in zero-concentrated privacy (rho) for each round.

The paper names no total. Rho adds up over rounds; the conversions are those of Bun and Steinke 2016.
"""

import numpy as np

from discretion.arrays import Floats


def noise_std(rho: Floats, size: Floats, clip: float) -> Floats:
    """Return (N,) sigma_i(t) of Proposition 1, from rho = sensitivity² / (2 sigma²).

    Defect: takes the sensitivity for 2W/|D|, while W bounds the whole update (46), which one record may
    turn round: 2W. See `true_rho`.
    """
    return np.sqrt(2 / rho) * clip / size


def true_rho(rho: Floats, size: Floats) -> Floats:
    """Return (N,) the cost of a round where only the update is clipped: |D|² times Proposition 1's."""
    return (2 / noise_std(rho, size, 1.0)) ** 2 / 2


def multiplier(rho: Floats) -> Floats:
    """Return the (N,) noise multipliers with which a release costs rho."""
    return 1 / np.sqrt(2 * rho)


def to_epsilon(rho: Floats, delta: Floats) -> Floats:
    """Return the (N,) epsilon that follows from rho: Proposition 1.3 of Bun and Steinke. Not tight."""
    return np.asarray(rho + 2 * np.sqrt(-rho * np.log(delta)))


def from_epsilon(epsilon: Floats, delta: Floats) -> Floats:
    """Return the (N,) rho from which epsilon follows."""
    return (np.sqrt(epsilon - np.log(delta)) - np.sqrt(-np.log(delta))) ** 2
