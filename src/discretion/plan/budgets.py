"""Budget mixes: distributions of epsilon over clients, in a one-line notation.

    groups:10@34,20@43,30@23        three groups with shares, which need not sum to 100
    groups:0.5,1.5,3                even shares
    uniform:0.1,1                   U(a, b)
    gaussians:0.5~0.04@30,10~1@70   0.3 N(0.5, 0.04) + 0.7 N(10, 1) without what is ≤ 0; mean~variance@share
    pareto:2,0.5                    shape and smallest value

A name from `NAMED` stands for the mix of a paper.
"""

from collections.abc import Callable

import numpy as np

from discretion.arrays import Floats
from discretion.errors import PopulationError, nearest

NAMED = {
    "10-20-30": "groups:10@34,20@43,30@23",
    "10-15-20": "groups:10@34,15@43,20@23",
    "0.5-1.5-3": "groups:0.5,1.5,3",
    "2-6-12": "groups:2,6,12",
    "uniform": "uniform:0.05,1",
    "small-and-dispersed": "gaussians:0.5~0.04@30,10~1@70",
    "large-and-concentrated": "gaussians:2~0.04@30,8~1@70",
    "pareto": "pareto:2,0.5",
}


def draw(mix: str, clients: int, rng: np.random.Generator) -> Floats:
    """Return (N,) epsilons for `clients` clients, drawn from a mix in the notation above or by its name."""
    notation = NAMED.get(mix, mix)
    kind, _, arguments = notation.partition(":")
    if kind not in _KINDS or not arguments:
        hint = nearest(mix, [*NAMED, *_KINDS])
        raise PopulationError(
            f"unknown budget mix {mix!r}.{hint} Known by name: {', '.join(NAMED)}; or write "
            "one, such as groups:10@34,20@43,30@23 or uniform:0.1,1"
        )
    if clients < 1:
        raise PopulationError(f"found {clients} clients, expected at least 1 client")
    try:
        return _KINDS[kind](arguments.split(","), clients, rng)
    except ValueError as problem:
        raise PopulationError(f"budget mix {mix!r}: {problem}") from None


def _shares(terms: list[str]) -> tuple[list[str], Floats]:
    values, _, shares = zip(*(term.partition("@") for term in terms), strict=True)
    weights = [float(share) if share else 1.0 for share in shares]
    total = np.array(weights)
    if not (np.isfinite(total).all() and (total > 0).all()):
        raise ValueError(f"found shares {', '.join(map(str, weights))}, expected finite numbers above 0")
    return list(values), total / total.sum()


def _groups(terms: list[str], clients: int, rng: np.random.Generator) -> Floats:
    values, shares = _shares(terms)
    budgets = np.array([float(value) for value in values])
    if not (budgets > 0).all():
        raise ValueError(f"found epsilons {', '.join(values)}, expected numbers above 0")
    exact = shares * clients
    counts = np.floor(exact).astype(np.int64)
    largest = np.argsort(counts - exact, kind="stable")[: clients - counts.sum()]
    counts[largest] += 1  # the clients that are left go to the largest remainders
    return rng.permutation(np.repeat(budgets, counts))


def _uniform(terms: list[str], clients: int, rng: np.random.Generator) -> Floats:
    if len(terms) != 2:
        raise ValueError(f"found {len(terms)} numbers, expected two: uniform:a,b")
    low, high = (float(term) for term in terms)
    if not 0 <= low < high < np.inf:
        raise ValueError(f"expected 0 ≤ a < b, found {low:g} and {high:g}")
    # 1 - random() lies in (0, 1], so a budget is never exactly 0
    return low + (high - low) * (1.0 - rng.random(clients))


def _gaussians(terms: list[str], clients: int, rng: np.random.Generator) -> Floats:
    values, shares = _shares(terms)
    pairs = [value.split("~") for value in values]
    if any(len(pair) != 2 for pair in pairs):
        raise ValueError(f"found {', '.join(values)}, expected terms mean~variance@share such as 0.5~0.04@30")
    mean, variance = np.array([[float(part) for part in pair] for pair in pairs]).T
    sound = np.isfinite(mean) & np.isfinite(variance) & (mean > 0) & (variance >= 0)
    if not sound.all():
        raise ValueError(f"found {', '.join(values)}, expected finite means above 0 and variances from 0 on")
    drawn = np.zeros(clients)
    while (bad := drawn <= 0).any():
        part = rng.choice(len(shares), int(bad.sum()), p=shares)
        drawn[bad] = rng.normal(mean[part], np.sqrt(variance[part]))
    return drawn


def _pareto(terms: list[str], clients: int, rng: np.random.Generator) -> Floats:
    if len(terms) != 2:
        raise ValueError(f"found {len(terms)} numbers, expected two: pareto:shape,smallest epsilon")
    shape, low = (float(term) for term in terms)
    if not (0 < shape < np.inf and 0 < low < np.inf):
        raise ValueError(
            f"found shape {shape:g} and smallest epsilon {low:g}, expected finite numbers above 0"
        )
    drawn = low * (1.0 + rng.pareto(shape, clients))
    if not np.isfinite(drawn).all():
        raise ValueError(f"found shape {shape:g}, which makes some budgets infinite: choose a larger shape")
    return drawn


_KINDS: dict[str, Callable[[list[str], int, np.random.Generator], Floats]] = {
    "groups": _groups,
    "uniform": _uniform,
    "gaussians": _gaussians,
    "pareto": _pareto,
}
