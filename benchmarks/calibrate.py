"""Noise for very many clients, each with a budget, rate and rounds of its own, beside dp-accounting.

Ours solves all clients at once; dp-accounting's `calibrate_dp_mechanism` takes them one by one, so a few
are timed and the time is taken times the number of clients. Our privacy loss accountant then computes
what a random part of the clients spends.

Run: python benchmarks/calibrate.py --clients 100000 --theirs 5 --verified 1000 --seed 1
"""

import argparse
import sys
import time

import dp_accounting
import numpy as np
from dp_accounting.pld import PLDAccountant

from discretion.accounting import Pld, noise_multiplier
from discretion.plan.steps import Steps

DELTA = 1e-5


def theirs(epsilon: float, rate: float, rounds: int) -> float:
    def event(multiplier: float) -> dp_accounting.DpEvent:
        step = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(multiplier))
        return dp_accounting.SelfComposedDpEvent(step, rounds)

    return float(dp_accounting.calibrate_dp_mechanism(PLDAccountant, event, epsilon, DELTA))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--clients", type=int, default=100_000)
    parser.add_argument("--theirs", type=int, default=5, help="clients that dp-accounting is timed on")
    parser.add_argument("--verified", type=int, default=1000, help="clients whose epsilon is computed")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    random = np.random.default_rng(given.seed)
    epsilon = 10 ** random.uniform(-1, 1, given.clients)
    rate = 10 ** random.uniform(-3, np.log10(0.5), given.clients)
    rounds = np.rint(10 ** random.uniform(1, 3, given.clients)).astype(np.int64)
    delta = np.full(given.clients, DELTA)

    start = time.perf_counter()
    multiplier = noise_multiplier(epsilon, delta, rate, rounds)
    ours = time.perf_counter() - start
    print(f"ours: {given.clients} clients in {ours:.1f} s", flush=True)

    who = random.permutation(given.clients)[: given.verified]
    spent = Pld().epsilon(Steps.same(rate[who], multiplier[who], rounds[who]), delta[who])
    share = spent / epsilon[who]
    over = int((share > 1).sum())
    print(
        f"spent / budget of {len(who)} random clients by PLD: {share.min():.5f} to {share.max():.5f}; "
        f"{(share >= 0.995).mean():.2%} spend at least 0.995; {over} over budget",
        flush=True,
    )

    if given.theirs:
        start = time.perf_counter()
        for i in who[: given.theirs]:
            found = theirs(float(epsilon[i]), float(rate[i]), int(rounds[i]))
            print(
                f"  epsilon {epsilon[i]:8.4f}  rate {rate[i]:.4f}  rounds {rounds[i]:4d}: "
                f"multiplier {multiplier[i]:9.4f}, by dp-accounting {found:9.4f}",
                flush=True,
            )
        each = (time.perf_counter() - start) / min(given.theirs, len(who))
        whole = each * given.clients
        print(
            f"dp-accounting: {each:.2f} s a client, so {whole:,.0f} s for all; "
            f"ours is {whole / ours:,.0f} times faster"
        )
    sys.exit(1 if over else 0)


if __name__ == "__main__":
    main()
