"""Problem 1 solved exactly against CVXPY with Clarabel: whose objective is smaller, and how long each takes.

Run: python benchmarks/selection.py --instances 1000
"""

import argparse
import time
import warnings
from collections.abc import Callable
from functools import partial

import cvxpy
import numpy as np

from discretion.arrays import Floats
from discretion.methods.solvers.selection import default_weight, objective, select, select_affine

ROUNDING = 1e-14


def by_cvxpy(share: Floats, noise: Floats, weight: float) -> Floats:
    """(N,) its answer, with what it leaves outside the simplex put back."""
    p, bias = cvxpy.Variable(len(share)), cvxpy.Variable(nonneg=True)
    scaled = cvxpy.multiply(np.sqrt(weight * noise), p)
    loss = bias + cvxpy.norm(cvxpy.hstack([bias, scaled]), 2)
    problem = cvxpy.Problem(cvxpy.Minimize(loss), [cvxpy.norm1(p - share) <= bias, cvxpy.sum(p) == 1, p >= 0])
    problem.solve(solver="CLARABEL")
    found = np.maximum(np.asarray(p.value), 0.0)
    result: Floats = found / found.sum()
    return result


def instance(rng: np.random.Generator) -> tuple[Floats, Floats, float]:
    """Two to 5,000 clients; noise and weight over six orders of magnitude, the weight around the default."""
    clients = int(np.exp(rng.uniform(np.log(2), np.log(5000))))
    size = rng.uniform(0.5, 1.5, clients)
    share, noise = size / size.sum(), 10 ** rng.uniform(-3, 3, clients)
    return share, noise, default_weight(share, noise) * 10 ** rng.uniform(-3, 3)


def compare(instances: int) -> None:
    rng = np.random.default_rng(0)
    excess = []
    failed = unmoved = 0
    for _ in range(instances):
        share, noise, weight = instance(rng)
        p = select(share, noise, weight)
        unmoved += bool((p == share).all())
        try:
            theirs = objective(by_cvxpy(share, noise, weight), share, noise, weight)
        except cvxpy.error.SolverError:
            failed += 1
            continue
        excess.append(theirs / objective(p, share, noise, weight) - 1)
    found = np.array(excess)
    print(f"{instances} instances, CVXPY found no answer in {failed}; nobody moves in {unmoved}")
    print(
        f"ours larger: {int((found < 0).sum())}, by more than {ROUNDING:g}: {int((found < -ROUNDING).sum())}"
    )
    print(f"theirs over ours - 1: {found.min():.1e} to {found.max():.1e}, median {np.median(found):.1e}")


def seconds(work: Callable[[], object], times: int) -> float:
    """The best of a few."""
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return min(taken)


def speed(clients: int, with_cvxpy: bool) -> None:
    rng = np.random.default_rng(1)
    size = rng.uniform(0.5, 1.5, clients)
    share, noise = size / size.sum(), 10 ** rng.uniform(-3, 3, clients)
    intercept = rng.uniform(0, 2, clients) * float(np.mean(noise * share))
    for factor in (1.0, 100.0):
        weight = factor * default_weight(share, noise)
        ours = seconds(partial(select, share, noise, weight), 5)
        affine = seconds(partial(select_affine, share, intercept, noise, weight), 3)
        line = f"{clients:8} clients, {factor:3g} x default: {ours:8.4f} s, affine {affine:8.4f} s"
        if with_cvxpy:
            theirs = seconds(partial(by_cvxpy, share, noise, weight), 2)
            line += f", CVXPY {theirs:7.3f} s, {theirs / ours:.0f} times"
        print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instances", type=int, default=1000)
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", message="Solution may be inaccurate")
    for clients in (100, 5000, 10**5, 10**6):
        speed(clients, with_cvxpy=clients <= 5000)
    compare(arguments.instances)


if __name__ == "__main__":
    main()
