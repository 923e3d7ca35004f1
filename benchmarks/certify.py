"""How long the tight accountant takes: for plans that change every round, and for many different clients.

Run: python benchmarks/certify.py --rounds 1000 --classes 100 --clients 10000
"""

import argparse
import resource
import time
from collections.abc import Callable

import numpy as np

from discretion.accounting import certify
from discretion.accounting.pld import Pld
from discretion.arrays import Floats
from discretion.plan.phase import Phase
from discretion.plan.plan import Plan
from discretion.plan.population import Population
from discretion.plan.steps import Steps

DELTA = 1e-5


def varying_plan(rounds: int, classes: int) -> tuple[Plan, Population]:
    """A plan in which no two rounds or classes are alike: rates 0.02 to 0.1, multipliers 0.8 to 6."""
    when, kind = np.arange(rounds)[:, None] / rounds, np.arange(classes)[None] / classes
    rate = 0.06 + 0.04 * np.sin(7 * when + 6.3 * kind)
    least, most = 0.8 + 3.7 * kind, 2 + 4 * kind  # from noisy to noisier
    multiplier = least + (most - least) * (0.5 + 0.5 * np.cos(5 * when + 3 * kind))
    population = Population.of(np.linspace(1.0, 10.0, classes), DELTA)
    phases = [Phase.one_pool(1, q, 1 / s, 1.0) for q, s in zip(rate, multiplier, strict=True)]
    return Plan("varying", population.client, tuple(phases)), population


def constant(clients: int, seed: int) -> Steps:
    """Clients with a rate, multiplier and count of their own."""
    random = np.random.default_rng(seed)
    rate, multiplier = 10 ** random.uniform(-3, np.log10(0.3), clients), random.uniform(0.6, 5, clients)
    return Steps.same(rate, multiplier, np.round(10 ** random.uniform(1, 3, clients)).astype(np.int64))


def timed(what: str, work: Callable[[], Floats], each: int = 1) -> Floats:
    """The result of `work`, whose time (also of all cores together) is printed."""
    start, cores = time.perf_counter(), time.process_time()
    found = work()
    took, cores = time.perf_counter() - start, time.process_time() - cores
    print(f"{what}: {took:.2f} s ({cores:.2f} s of processor)", end="")
    print(f", {1000 * took / each:.2f} ms each" if each > 1 else "", end="")
    print(f"; epsilon {found.min():.3g} to {found.max():.3g}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    Pld().epsilon(Steps.same(np.array([0.5]), np.array([1.0]), 10), np.array([DELTA]))  # loads libraries

    plan, population = varying_plan(given.rounds, given.classes)
    timed(
        f"certificate of {given.rounds} different rounds for {given.classes} budget classes, curves included",
        lambda: certify(plan, population).spent,
    )
    many = constant(given.clients, given.seed)
    timed(
        f"{given.clients} clients with constant steps",
        lambda: Pld().epsilon(many, np.full(given.clients, DELTA)),
        given.clients,
    )
    print(f"most memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.2f} GB")


if __name__ == "__main__":
    main()
