"""Our privacy loss accountant beside google's dp-accounting: the same epsilon, and how long each takes.

Ours should be at least its pessimistic value less 1e-4, and at most 1.005 times it. Where it is not,
dp-accounting is asked again on a grid four times finer: its own error falls with the square of the grid, and
is a few 1e-4 where thousands of steps cost little. Where ours does not promise to be tight, the line says so.

Run: python benchmarks/pld.py --settings 20 --seed 1
"""

import argparse
import math
import time
from collections.abc import Callable

import numpy as np
from dp_accounting.pld import privacy_loss_distribution as distribution

from discretion.accounting.pld import Pld
from discretion.plan.steps import Steps

Setting = tuple[float, float, int, float]  # rate, multiplier, count, delta
BELOW, ABOVE = 1e-4, 1.005
HEAD = (
    "     rate  multiplier  count    delta |  optimistic        ours        dp-acc   ratio |"
    "  ms ours   ms dp-acc"
)


def draw(random: np.random.Generator) -> Setting:
    """Rate 1e-4 to 1, multiplier 0.3 to 50, 1 to 10,000 rounds, delta 1e-10 to 1e-3."""
    rate, multiplier = 10 ** random.uniform(-4, 0), 0.3 * (50 / 0.3) ** random.uniform()
    return rate, multiplier, int(10 ** random.uniform(0, 4)), 10 ** random.uniform(-10, -3)


def ours(setting: Setting) -> float:
    rate, multiplier, count, delta = setting
    steps = Steps.same(np.array([rate]), np.array([multiplier]), count)
    return float(Pld().epsilon(steps, np.array([delta]))[0])


def tight(setting: Setting) -> bool:
    rate, multiplier, count, delta = setting
    steps = Steps.same(np.array([rate]), np.array([multiplier]), count)
    return bool(Pld().tight(steps, np.array([delta]))[0])


def theirs(setting: Setting, grid: float, pessimistic: bool) -> float:
    rate, multiplier, count, delta = setting
    step = distribution.from_gaussian_mechanism(
        multiplier,
        value_discretization_interval=grid,
        sampling_prob=rate,
        pessimistic_estimate=pessimistic,
        use_connect_dots=pessimistic,
        neighboring_relation=distribution.NeighborRel.ADD_OR_REMOVE_ONE,
    )
    return float(step.self_compose(count).get_epsilon_for_delta(delta))


def grid_for(setting: Setting, epsilon: float) -> float:
    """Fine enough that dp-accounting's own error is small, coarse enough that it ends."""
    _, multiplier, _, _ = setting
    longest = (1 / multiplier**2 + 14 / multiplier) / 3e5
    return max(min(1e-4, max(epsilon / 3000, 2e-7)), epsilon / 30_000, longest)


def timed(work: Callable[[], float]) -> tuple[float, float]:
    start = time.perf_counter()
    value = work()
    return value, 1000 * (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    random = np.random.default_rng(given.seed)
    ours((0.5, 1.0, 10, 1e-5))  # the first call loads libraries
    print(HEAD)
    ratios, times, outside = list[float](), list[tuple[float, float]](), 0
    while len(ratios) < given.settings:
        setting = draw(random)
        epsilon, ms = timed(lambda setting=setting: ours(setting))  # type: ignore[misc]
        if not 0 < epsilon < 400:
            continue
        grid = grid_for(setting, epsilon)
        optimistic = theirs(setting, grid, False)
        upper, their_ms = timed(lambda setting=setting, grid=grid: theirs(setting, grid, True))  # type: ignore[misc]
        remark = "" if tight(setting) else " not promised to be tight"
        if not upper - BELOW <= epsilon <= ABOVE * upper:
            upper, remark = theirs(setting, grid / 4, True), remark + " finer grid"
        if not upper - BELOW <= epsilon <= ABOVE * upper:
            outside, remark = outside + 1, remark + " OUTSIDE"
        ratio = epsilon / upper if upper > 0 else math.inf
        ratios.append(ratio)
        times.append((ms, their_ms))
        rate, multiplier, count, delta = setting
        print(
            f"{rate:9.5f} {multiplier:11.4f} {count:6d} {delta:8.1e} | {optimistic:#11.7g} {epsilon:#11.7g} "
            f"{upper:#13.7g} {ratio:7.4f} | {ms:8.1f} {their_ms:11.1f}{remark}",
            flush=True,
        )
    middle = np.median(np.array(times), axis=0)
    print(f"{outside} of {given.settings} outside")
    print(f"ratio from {min(ratios):.4f} to {max(ratios):.4f}; median ms {middle[0]:.1f} and {middle[1]:.1f}")


if __name__ == "__main__":
    main()
