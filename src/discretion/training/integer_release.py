"""The privacy mechanism for shares on a grid: what leaves a client and a round, in whole numbers."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from discretion.arrays import Floats, Ints
from discretion.errors import LedgerError
from discretion.plan.grid import Grid
from discretion.plan.phase import Phase
from discretion.plan.plan import Plan
from discretion.randomness.discrete import discrete_gaussian
from discretion.randomness.sources import Source
from discretion.timing import Profile
from discretion.training.clip import Matrix, finite_and_factor
from discretion.training.orders import Updates
from discretion.training.release import ROUNDED, WHOLE, OwnNoise, checked, missing_noise, server_noise


def hand_out_on_grid(
    grid: Grid, change: Matrix, clip: Floats, std: Floats, sources: Sequence[Source]
) -> Ints:
    """Return (k, d) what clients hand out on a grid, in whole steps: clipped updates and their own shares.

    Guarantees:
        No update is longer than `Grid.norm_bound` before it gets noise; one that is not finite counts as 0.
        Each gets a discrete Gaussian of its own standard deviation from its own source; where that is 0,
        none. Sums are of whole numbers: nothing is lost by rounding.
    """
    change, factor = finite_and_factor(change, clip, WHOLE)
    whole = grid.rounded(factor * change, clip)
    for i, source in enumerate(sources):
        whole[i] += discrete_gaussian(grid.size, float(std[i]) / grid.step, source.words)
    return whole


def release_whole(
    plan: Plan,
    grid: Grid,
    phase: Phase,
    asked: Ints,
    updates: Iterator[Updates],
    source: Callable[[int], Source],
    own_noise: OwnNoise,
    profile: Profile | None,
    top_up: bool,
) -> Floats | None:
    """Return what `release` does, for shares on a grid: sums of whole numbers, modulo 2^32.

    Guarantees:
        The sums are bit for bit those of a secure sum modulo 2^32 of what the clients hand out.
        Where shares of a pool are missing, they are drawn here: for a secure sum, one for each client that
        brought none, from the client's own source; else one in place of all.
    """
    with (profile or Profile())("clip"):
        sums, shares = whole_sums(plan, grid, phase, updates, asked, own_noise)
    missing = missing_noise(plan, phase, shares)
    missing[missing <= ROUNDED] = 0.0  # shares are whole numbers
    if plan.noise_at == "secure_sum":
        if not top_up and missing.any():
            return None
        std = plan.own_noise(phase)
        for client in np.flatnonzero((shares == 0) & (phase.expected > 0) & (missing[phase.pool] > 0)):
            drawn = own_noise(int(client), 0).words
            sums[phase.pool[client]] += discrete_gaussian(grid.size, float(std[client]) / grid.step, drawn)
    else:
        for pool, each in enumerate(server_noise(plan, phase, missing, scale=1.0).tolist()):
            sums[pool] += discrete_gaussian(grid.size, each / grid.step, source(pool).words)
    return np.asarray(grid.step * grid.lifted(sums), dtype=np.float64)


def whole_sums(
    plan: Plan, grid: Grid, phase: Phase, updates: Iterator[Updates], asked: Ints, own_noise: OwnNoise
) -> tuple[Ints, Ints]:
    """Return (P, d) sums on a grid of what clients hand out, in whole steps, and (N,) numbers of shares.

    Guarantees:
        A client enters at most once, with an update no longer than its clip on the grid. Where a client hands
        out its update with noise of its own, its clipping and noise are its own responsibility.
        What was summed elsewhere is taken as it is, for clients of one pool.
    """
    sums = np.zeros((len(phase.noise), grid.size), dtype=np.int64)
    waiting, shares = np.bincount(asked, minlength=len(phase.rate)), np.zeros(len(phase.rate), dtype=np.int64)
    own = plan.own_noise(phase) if plan.noise_at == "clients" else np.zeros(len(phase.rate))
    for part in updates:
        who = checked(part, grid.size, waiting, np.int64 if part.handed_out else np.float32)
        if part.handed_out:
            whole = part.change
        else:
            sources = [own_noise(client, 0) for client in who.tolist()]
            whole = hand_out_on_grid(grid, part.change, phase.clip[who], own[who], sources)
        shares[who] += part.handed_out or plan.noise_at == "clients"
        pools = phase.pool[who].tolist()
        if part.summed and len(set(pools)) != 1:
            raise LedgerError(
                f"found a sum over clients of the pools {sorted(set(pools))}, expected one pool"
            )
        for pool, row in zip(pools[: len(whole)], whole, strict=True):
            sums[pool] += row
    return sums, shares
