"""Parts that several methods are built from: accounting modes, turns drawn when planning, clients on their
own."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from discretion.accounting import Accountant, gaussian, noise_scale
from discretion.accounting.papers.opacus import Opacus
from discretion.accounting.spent import TIGHT
from discretion.kinds import distinct
from discretion.phase import Phase, frozen
from discretion.plan import Accounting
from discretion.population import Floats, Ints, Population
from discretion.steps import Steps
from discretion.streams import Purpose, stream

NODES = 24  # budgets that are solved, of one kind of clients
MARGIN = 5e-4  # on what is read off between them

ACCOUNTANTS: dict[Accounting, Accountant] = {"tight": TIGHT, "paper": Opacus()}


def finite(epsilon: Floats) -> Floats:
    """(N,) a public client, of infinite budget, is treated as generously as the most generous other."""
    largest = np.max(epsilon, where=np.isfinite(epsilon), initial=0.0)
    return np.minimum(epsilon, largest) if largest > 0 else epsilon


def schedule_scale(epsilon: Floats, delta: Floats, kind: Ints, steps_of: Callable[[Ints], Steps]) -> Floats:
    """(N,) the factor on its noise multipliers that makes each client's schedule cost its budget.

    `steps_of` gives the schedules of some clients. Clients of one kind and delta differ in their budget only:
    with many budgets, some are solved and the others are read off between them, a little on the safe side.

    Guarantees:
        By PLD no schedule costs more than the budget: who would pass it by what was read off is solved.
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
    """A client of each budget if they are few, else of some budgets, evenly spaced in logarithm."""
    _, first = np.unique(epsilon[mine], return_index=True)
    distinct = mine[first]
    if len(distinct) <= NODES:
        return distinct
    log = np.log(epsilon[distinct])
    places = np.searchsorted(log, np.linspace(log[0], log[-1], NODES)[1:-1])
    return np.asarray(distinct[np.unique([0, *places.tolist(), len(distinct) - 1])])


def cohort_of(population: Population, rate: float) -> int:
    """How many draws a round has."""
    return max(1, round(rate * len(population)))


def shares(population: Population) -> Floats:
    """(N,) each client's share of all records."""
    return np.asarray(population.size / population.size.sum())


def draw(probability: Floats, cohort: int, rounds: int, seed: int) -> Ints:
    """(T, N) public turns: in every round `cohort` draws with replacement; (T, N) or (N,) probabilities."""
    random = stream(seed, Purpose.TURNS)
    rows = np.broadcast_to(probability, (rounds, np.shape(probability)[-1]))
    return np.stack([random.multinomial(cohort, row / row.sum()) for row in rows])


def whole_gaussian(epsilon: Floats, delta: Floats, count: Ints) -> Floats:
    """(N,) the noise multiplier of `count` releases without sampling that use up the budget exactly."""
    shift = gaussian.shift_of(epsilon, delta) * (1 - 1e-9)
    with np.errstate(divide="ignore"):
        return np.asarray(np.sqrt(np.maximum(count, 1)) / shift)


def own_phases(
    turns: Ints,
    clip: float,
    noise: Floats,
    weight: Floats,
    batch: float | None = None,
    steps: int = 1,
    read: Floats | None = None,
) -> tuple[Phase, ...]:
    """A phase for each round of (T, N) public turns, in which every client releases its own noisy work.

    `noise` and the `weight` of an upload are (N,), or (T, N) where they change. With `batch`, clients take
    so many noisy `steps` on batches of their records; `read` is the (N,) noise of a statistic about them.
    """
    rounds, clients = turns.shape
    one, pool, clips = (
        frozen(column) for column in (np.ones(clients), np.arange(clients), np.full(clients, clip))
    )
    batches = None if batch is None else frozen(np.full(clients, batch))
    reads = None if read is None else frozen(read)

    def in_each_round(column: Floats) -> list[Floats]:
        return [frozen(column)] * rounds if column.ndim == 1 else [frozen(row) for row in column]

    return tuple(
        Phase(1, one, clips, mine, pool, scale, turns=row, batch=batches, steps=steps, read=reads)
        for row, mine, scale in zip(turns, in_each_round(noise), in_each_round(weight), strict=True)
    )
