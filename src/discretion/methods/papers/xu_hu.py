"""Cost of a client whose group of equal budgets is summed by itself, by Xu, Hu and Kotevska.

In every round r_m = q_m |G_m| clients of group m are drawn, without replacement. Table I and Table III hold
the settings and the noise that were published.
"""

from dataclasses import dataclass

import numpy as np

from discretion.arrays import Floats


@dataclass(frozen=True, eq=False)
class Setting:
    """A line of Table I, with delta = n^-1.1 and groups of equal size."""

    clients: int
    rounds: int
    clip: float
    rate: float
    epsilon: Floats  # (M,)
    rates: Floats  # (M,) published as optimal

    @property
    def delta(self) -> Floats:
        return np.full(len(self.epsilon), self.clients**-1.1)

    @property
    def equal_rates(self) -> Floats:
        return np.full(len(self.epsilon), self.rate)


_SMALL, _LARGE = np.array([0.5, 1.5, 3.0]), np.array([2.0, 6.0, 12.0])
TABLE_1 = {
    "FMNIST": Setting(6000, 50, 1.5, 0.02, _SMALL, np.array([0.0069, 0.0189, 0.0342])),
    "SVHN": Setting(6000, 100, 1.0, 0.05, _SMALL, np.array([0.0166, 0.0467, 0.0868])),
    "Shakespeare": Setting(714, 50, 1.0, 0.1, _SMALL, np.array([0.0479, 0.0983, 0.1521])),
    "CIFAR-10": Setting(600, 100, 1.5, 0.1, _LARGE, np.array([0.0361, 0.0962, 0.1677])),
}
# sigma² as published, at equal rates and at the optimal ones
TABLE_3 = {
    "FMNIST": (np.array([2.26, 0.90, 0.53]), np.array([1.42, 0.87, 0.70])),
    "CIFAR-10": (np.array([3.52, 0.95, 0.49]), np.array([0.98, 0.91, 0.83])),
}


def theorem_1(epsilon: Floats, delta: Floats, rate: Floats, rounds: int) -> Floats:
    """Return the (M,) noise multipliers sigma_m of Theorem 1.

    Defect: said to hold for all epsilon below 2 log(1/delta), but not for sigma² below about 0.7, where
    epsilon is larger than promised; elsewhere it is 2 to 6 times smaller.
    """
    return np.asarray(rate * np.sqrt(7 * rounds * (epsilon + 2 * np.log(1 / delta))) / epsilon)


def optimal_rates(epsilon: Floats, delta: Floats, sizes: Floats, rate: float) -> Floats:
    """Return the (M,) rates that solve Problem 1 with the noise of Theorem 1, in closed form:

    r_m ~ |G_m| epsilon_m / sqrt(epsilon_m + 2 log(1/delta)).

    Defect: noise is not proportional to the rate; with what is really needed, the objective is least where
    only the most generous group is asked.
    """
    share = sizes * epsilon / np.sqrt(epsilon + 2 * np.log(1 / delta))
    return np.asarray(rate * sizes.sum() * share / share.sum() / sizes)


def weights(drawn: Floats) -> Floats:
    """Return (M,) omega_m, times the cohort q n: r_m² / sum of r².

    Defect: a sum gets the weight of a mean, so that the model moves by less than a mean update.
    """
    return np.asarray(drawn**2 / (drawn**2).sum())
