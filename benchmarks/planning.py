"""How long each method takes to plan for many clients, and how much memory: each in a process of its own.

Run: python benchmarks/planning.py --clients 100000 --budgets 1000 --rounds 100
     python benchmarks/planning.py --clients 2000 --budgets 50 --rounds 20 --certify --methods gdpfed pfa
"""

import argparse
import os
import resource
import subprocess
import sys
import time

import numpy as np

from discretion.accounting import certify
from discretion.methods import METHODS, make_plan
from discretion.plan.population import Population

MOST_SECONDS, MOST_GIGABYTES = 30.0, 4.0  # the bar, at the default size


def population(clients: int, budgets: int, seed: int) -> Population:
    """So many distinct budgets between 0.5 and 10, evenly in logarithm; 50 to 500 records, delta 1e-6."""
    random = np.random.default_rng(seed)
    epsilon = np.geomspace(0.5, 10.0, budgets)[random.permutation(clients) % budgets]
    return Population.of(epsilon, 1e-6, random.integers(50, 501, clients))


def one(method: str, given: argparse.Namespace) -> None:
    """Plan in this process, and print one line: seconds, gigabytes before and at most, and the rest."""
    people = population(given.clients, given.budgets, given.seed)
    shared = {"rounds": given.rounds, "rate": given.rate, "clip": 1.0}
    settings = {name: value for name, value in shared.items() if name in METHODS[method].parameters}
    if "accounting" in METHODS[method].parameters:
        settings["accounting"] = given.accounting
    before, start, cores = _gigabytes(), time.perf_counter(), time.process_time()
    plan = make_plan(method, people, settings)
    took, cores, memory = time.perf_counter() - start, time.process_time() - cores, _gigabytes()
    line = f"{method:22}{took:9.1f} s {cores:7.1f} s of processor {memory:7.2f} GB ({before:.2f} GB before)"
    if given.certify:
        start = time.perf_counter()
        certificate = certify(plan, people)
        over = "no privacy" if certificate.promises_nothing else f"{len(certificate.overspent)} over budget"
        line += f"; certificate {time.perf_counter() - start:7.1f} s {_gigabytes():7.2f} GB, {over}"
    passed = took > MOST_SECONDS or memory > MOST_GIGABYTES
    print(line + ("  OVER THE BAR" if passed else ""), flush=True)


def _gigabytes() -> float:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--clients", type=int, default=100_000)
    parser.add_argument("--budgets", type=int, default=1000, help="distinct ones")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--rate", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--accounting", choices=["tight", "paper"], default="tight")
    parser.add_argument("--certify", action="store_true", help="certify each plan, too")
    parser.add_argument("--methods", nargs="*", choices=METHODS, default=list(METHODS))
    parser.add_argument("--only", choices=METHODS, help="plan by this method, in this process")
    given = parser.parse_args()
    if given.only:
        return one(given.only, given)
    load = os.getloadavg()[0]
    print(f"{given.clients} clients, {given.budgets} budgets, {given.rounds} rounds; load before {load:.1f}")
    for method in given.methods:
        command = [sys.executable, __file__, *sys.argv[1:], "--only", method]
        if (status := subprocess.run(command).returncode) != 0:
            print(f"{method:22} failed with exit code {status}", flush=True)


if __name__ == "__main__":
    main()
