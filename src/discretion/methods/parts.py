"""Building blocks of methods: accounting modes, noise and rates by budget, turns drawn when planning."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from discretion.accounting import Accountant, gaussian, noise_multiplier, noise_scale
from discretion.accounting.accountant import TIGHT
from discretion.arrays import Floats, Ints, distinct
from discretion.methods.papers.opacus import Opacus
from discretion.plan.phase import Phase, frozen
from discretion.plan.plan import Accounting, Plan
from discretion.plan.population import Population
from discretion.plan.steps import Steps
from discretion.randomness.streams import Purpose, stream

NODES = 24  # budgets that are solved for one kind of clients; others are interpolated
MARGIN = 5e-4  # relative, on interpolated factors

ACCOUNTANTS: dict[Accounting, Accountant] = {"tight": TIGHT, "paper": Opacus()}


def finite(epsilon: Floats, otherwise: float = np.inf) -> Floats:
    """Return (N,) budgets in which a public client has the largest finite one, or `otherwise` if none is."""
    largest = np.max(epsilon, where=np.isfinite(epsilon), initial=0.0)
    return np.minimum(epsilon, largest if largest > 0 else otherwise)


def schedule_scale(epsilon: Floats, delta: Floats, kind: Ints, steps_of: Callable[[Ints], Steps]) -> Floats:
    """Return the (N,) factors on the noise multipliers with which each client's schedule costs its budget.

    `steps_of` takes client numbers and returns these clients' schedules. Clients of one kind and delta differ
    in their budget only: where there are many budgets, some are solved and the others are interpolated, a
    little on the safe side.

    Guarantees:
        By PLD no schedule costs more than the budget: a client that would pass it by interpolation is solved.
    """
    factor, read = np.empty(len(epsilon)), np.zeros(len(epsilon), dtype=bool)
    _, cell = distinct(np.stack([kind, delta]))
    order = np.lexsort([epsilon, cell])
    cells = np.split(order, np.flatnonzero(np.diff(cell[order])) + 1)
    nodes = [_nodes(epsilon, mine) for mine in cells]
    solved = np.concatenate(nodes)
    factor[solved] = noise_scale(steps_of(solved), epsilon[solved], delta[solved])
    for mine, node in zip(cells, nodes, strict=True):
        between = np.exp(np.interp(np.log(epsilon[mine]), np.log(epsilon[node]), np.log(factor[node])))
        at = np.searchsorted(epsilon[node], epsilon[mine])
        read[mine] = epsilon[node][at] != epsilon[mine]
        factor[mine] = np.where(read[mine], between * (1 + MARGIN), factor[node][at])
    again = np.flatnonzero(read)
    if len(again):
        made = steps_of(again)
        scaled = replace(made, multiplier=made.multiplier * factor[again])
        again = again[TIGHT.epsilon(scaled, delta[again]) > epsilon[again]]
    if len(again):
        factor[again] = noise_scale(steps_of(again), epsilon[again], delta[again])
    return factor


def _nodes(epsilon: Floats, mine: Ints) -> Ints:
    """Return one client of each budget if there are few, else of budgets evenly spaced in logarithm."""
    _, first = np.unique(epsilon[mine], return_index=True)
    distinct = mine[first]
    if len(distinct) <= NODES:
        return distinct
    log = np.log(epsilon[distinct])
    places = np.searchsorted(log, np.linspace(log[0], log[-1], NODES)[1:-1])
    return np.asarray(distinct[np.unique([0, *places.tolist(), len(distinct) - 1])])


def unknown_noise(plan: Plan) -> Floats:
    """Return (P,) the part of each pool's noise variance that colluding clients do not know, in phase 0.

    They know most where as many other clients drop out as are provided for.
    """
    phase = plan.phases[0]
    shares = np.ones(len(phase.noise))
    shares[phase.pool] = plan.shares(phase)
    return 1 - np.minimum(plan.colluding, shares - 1) / shares


def cohort_of(population: Population, rate: float) -> int:
    """Return the number of draws in a round, at least 1."""
    return max(1, round(rate * len(population)))


def shares(population: Population) -> Floats:
    """Return each client's share (N,) of all records."""
    return np.asarray(population.size / population.size.sum())


def draw(probability: Floats, cohort: int, rounds: int, seed: int) -> Ints:
    """Return (T, N) public turns: `cohort` draws a round with replacement, by (T, N) or (N,) chances."""
    random = stream(seed, Purpose.TURNS)
    rows = np.broadcast_to(probability, (rounds, np.shape(probability)[-1]))
    return np.stack([random.multinomial(cohort, row / row.sum()) for row in rows])


def whole_gaussian(epsilon: Floats, delta: Floats, count: Ints) -> Floats:
    """Return (N,) noise multipliers with which `count` releases without sampling cost the budget exactly."""
    shift = gaussian.shift_of(epsilon, delta) * (1 - 1e-9)
    with np.errstate(divide="ignore"):
        return np.asarray(np.sqrt(np.maximum(count, 1)) / shift)


def multipliers(population: Population, count: Ints, batch: float) -> Floats:
    """Return (N,) noise multipliers of `count` steps on batches; 0 for public clients."""
    private, out = np.isfinite(population.epsilon), np.zeros(len(population))
    epsilon, delta = population.epsilon[private], population.delta[private]
    out[private] = noise_multiplier(epsilon, delta, batch, np.maximum(count[private], 1))
    return out


def own_phases(
    turns: Ints,
    clip: float,
    noise: Floats,
    weight: Floats,
    batch: float | None = None,
    steps: int = 1,
    read: Floats | None = None,
) -> tuple[Phase, ...]:
    """Return one phase for each round of (T, N) public turns; every client releases its own noisy work.

    `noise` and the `weight` of an upload are (N,), or (T, N) where they change. With `batch`, a turn is
    `steps` noisy steps on batches of the client's records; `read` is the (N,) noise of a statistic of them.
    """
    rounds, clients = turns.shape
    one, pool, clips = map(frozen, (np.ones(clients), np.arange(clients), np.full(clients, clip)))
    batches = None if batch is None else frozen(np.full(clients, batch))
    reads = None if read is None else frozen(read)

    def in_each_round(column: Floats) -> list[Floats]:
        return [frozen(column)] * rounds if column.ndim == 1 else [frozen(row) for row in column]

    return tuple(
        Phase(1, one, clips, mine, pool, scale, turns=row, batch=batches, steps=steps, read=reads)
        for row, mine, scale in zip(turns, in_each_round(noise), in_each_round(weight), strict=True)
    )
