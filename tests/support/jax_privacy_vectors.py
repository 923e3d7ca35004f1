"""Lower bounds by jax-privacy, printed as test vectors for tests/audit (lower_bound and one_run).

jax-privacy is none of our requirements. In an environment of its own:
pip install jax-privacy==2.0.0
python tests/support/jax_privacy_vectors.py
"""

import numpy as np
from jax_privacy import auditing

# hits, canaries that were there, false alarms, canaries that were not, delta, chance
COUNTS = [
    (90, 100, 5, 100, 0.0, 0.05),
    (100, 100, 0, 100, 1e-5, 0.01),
    (1000, 5000, 200, 5200, 1e-5, 1e-4),
    (4900, 5000, 2500, 5000, 1e-3, 0.01),
    (7, 3000, 0, 3000, 0.0, 0.05),
    (10, 100, 30, 100, 0.0, 0.05),
]
# correct guesses, guesses, canaries, delta, chance
ONE_RUN = [
    (95, 100, 1000, 0.0, 0.05),
    (100, 100, 100, 1e-5, 0.05),
    (700, 1000, 1000, 1e-5, 0.01),
    (180, 200, 2000, 1e-6, 0.001),
    (52, 100, 100, 1e-5, 0.05),
    (900, 1000, 20000, 1e-4, 0.05),
]

# the same for the bound by privacy curves, where a delta of 0 has no Gaussian
ONE_RUN_CURVES = [(95, 100, 1000, 1e-5, 0.05), *ONE_RUN[1:]]


def of_counts(hits: int, there: int, alarms: int, not_there: int, delta: float, chance: float) -> float:
    inside = np.repeat([1.0, 0.0], [hits, there - hits])
    outside = np.repeat([1.0, 0.0], [alarms, not_there - alarms])
    found = auditing.CanaryScoreAuditor(inside, outside)
    return float(
        found.epsilon_clopper_pearson(chance, delta, threshold_strategy=auditing.Explicit(threshold=0.5))
    )


if __name__ == "__main__":
    for case in COUNTS:
        print(f"({case}, {of_counts(*case):.9f}),")
    for correct, guesses, canaries, delta, chance in ONE_RUN:
        bound = auditing._epsilon_one_run(0.0, canaries, guesses, correct, chance, delta)
        print(f"({(correct, guesses, canaries, delta, chance)}, {bound:.9f}),")
    for correct, guesses, canaries, delta, chance in ONE_RUN_CURVES:
        bound = auditing._epsilon_one_run_fdp(0.0, canaries, guesses, correct, chance, delta)
        print(f"({(correct, guesses, canaries, delta, chance)}, {bound:.9f}),")
