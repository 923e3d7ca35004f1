"""What leaves a client and what leaves a round: clipped, with noise. The only place where noise is drawn.

Who plays a client, in this process or behind a guard, and who plays the server call the same functions.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from discretion.clip import Matrix, add_layers, finite_and_factor, layers_of
from discretion.discrete import rounded_gaussian
from discretion.errors import LedgerError, PlanError
from discretion.grid import Grid, to_grid
from discretion.noise import Source
from discretion.orders import Updates
from discretion.phase import Phase
from discretion.plan import Plan
from discretion.population import Floats, Ints
from discretion.profile import Profile

LARGEST_SCALE = 2.0**40
ROUNDED = 1e-9  # of a pool's variance: less is missing by rounding only
WHOLE = [slice(None)]

OwnNoise = Callable[[int, int], Source]  # of a client's own noise, by its number and turn


def noisy_sum(total: Floats, std: float, source: Source) -> Floats:
    """(d,) a sum of clipped updates, gradients or statistics with noise.

    Guarantees:
        The noise is drawn even where the sum is empty, and does not depend on what was in it.
    """
    noise = source.gaussian(len(total), std)
    noise += total
    return noise


def hand_out(
    change: Matrix, clip: Floats, layers: Sequence[slice], std: Floats, sources: Sequence[Source]
) -> Matrix:
    """(k, d) what clients hand out of their updates: within their clips, with noise of their own.

    Guarantees:
        No update is longer than its clip before it gets noise; one that is not finite counts as zero.
        Each gets noise of its own standard deviation from its own source; where that is 0, none.
    """
    change, factor = finite_and_factor(change, clip, layers)
    out = np.empty(change.shape, np.float32)
    for i in range(len(change)):
        row = np.zeros(change.shape[1])
        add_layers(row, np.ones(1), change[i : i + 1], factor[i : i + 1], layers)
        out[i] = noisy_sum(row, float(std[i]), sources[i]) if std[i] > 0 else row
    return out


def hand_out_statistic(value: Floats, std: float, source: Source) -> Floats:
    """(m,) what a client hands out of a statistic: with its noise; what is not finite counts as 0."""
    value = np.where(np.isfinite(value), value, 0.0)
    return noisy_sum(value, std, source) if std > 0 else value


class Sums(NamedTuple):
    """What the updates of a round add up to."""

    sums: Floats  # (P, d) of each pool; where pools of single clients are `merged`, (1, d) the weighted sum
    within: int  # updates that were within their clips
    shares: Ints  # (N,) shares of the noise that came from each client, with its updates


def merged(plan: Plan, phase: Phase) -> bool:
    """Whether pools of single clients become one sum: nothing is asked of each but to be added."""
    return phase.own_pools and plan.combine.rule == "sum"


def release(
    plan: Plan,
    phase: Phase,
    size: int,
    scale: float,
    asked: Ints,
    updates: Iterator[Updates],
    source: Callable[[int], Source],
    own_noise: OwnNoise,
    count: Floats | None = None,
    profile: Profile | None = None,
    top_up: bool = True,
) -> tuple[Floats | None, float]:
    """(P, d) the pools' noisy sums, and the scale of later clips: nothing else leaves a round.

    `source` is of the server's noise, by pool. (N,) `count` is how much each client's updates count: where
    their steps were noisy, else 1. Where the server may not `top_up` the noise of a secure sum and shares are
    missing, nothing leaves the round: None.

    Guarantees:
        Each pool's sum of clipped updates gets noise of the planned standard deviation, whoever took part:
        what the clients that answered did not add to it themselves, the server adds.
        Pools in which nobody can take part release nothing.
        Where each client has a pool of its own and pools are just added up, only their weighted sum is made,
        (1, d), with the noise that all of theirs add up to.
        Each update moves the sum of the bits by 1/2.
    """
    with (profile or Profile())("clip"):
        sums, within, shares = clipped_sums(plan, phase, scale, updates, asked, size, own_noise, count)
    missing = missing_noise(plan, phase, shares)
    if plan.noise_at == "secure_sum" and not top_up and (missing > ROUNDED).any():
        return None, scale
    noise = phase.noise * np.sqrt(missing) * scale
    if merged(plan, phase):
        noise = np.sqrt(np.square(phase.weight * noise).sum(keepdims=True))
    if plan.noise_at != "steps":  # there every step was noisy
        for pool in np.flatnonzero(noise > 0):
            sums[pool] += _noise(source(int(pool)), size, float(noise[pool]), plan.grid)
    quantile = plan.clipping.quantile
    if quantile is not None:
        bits = within - len(asked) / 2 + source(len(phase.noise)).gaussian(1, quantile.noise)[0]
        share = bits / max(phase.expected.sum(), 1.0) + 0.5
        scale = rescaled(scale, -quantile.learning_rate * (share - quantile.target))
    return sums, scale


def missing_noise(plan: Plan, phase: Phase, shares: Ints) -> Floats:
    """(P,) of the variance of each pool's planned noise, what (N,) shares of clients did not bring along.

    Guarantees:
        It and the shares that came are together the planned variance, or more where drop-outs are provided
        for and did not happen.
    """
    # (P,) releases of each pool in this round: a public number
    releases = phase.turns if phase.turns is not None and phase.own_pools else phase.open_pools
    if plan.noise_at not in ("clients", "secure_sum"):
        return np.asarray(releases, dtype=np.float64)
    brought = np.bincount(phase.pool, shares / plan.shares(phase), len(phase.noise))
    return np.asarray(np.maximum(releases - brought, 0.0))


def rescaled(scale: float, power: float) -> float:
    """scale · exp(power), but never so far from 1 that clips or noise would leave floating point."""
    most = math.log(LARGEST_SCALE)
    return math.exp(min(max(math.log(scale) + power, -most), most))


def _noise(source: Source, size: int, std: float, grid: Grid | None) -> Floats:
    if grid is None:
        return source.gaussian(size, std)
    return np.asarray(grid.step * rounded_gaussian(size, std / grid.step, source.words), dtype=np.float64)


def clipped_sums(
    plan: Plan,
    phase: Phase,
    scale: float,
    updates: Iterator[Updates],
    asked: Ints,
    size: int,
    own_noise: OwnNoise,
    count: Floats | None = None,
) -> Sums:
    """The sum of the clipped updates of each pool, with the clients' own noise where they add it.

    Guarantees:
        A client enters as often as it was asked at most, and with updates no longer than its clip, but for
        noise of its own, which only its own word stands for.
        An update with a number that is not finite, or so long that float32 cannot shorten it, counts as zero;
        where it should have brought noise along, it counts as not answered.
    """
    if plan.grid is not None and plan.grid.size != size:  # rounding more coordinates would cost more
        raise PlanError(f"the plan's grid is of {plan.grid.size} parameters, the model has {size}")
    own, layers = merged(plan, phase), layers_of(plan.clipping.layers, size)
    sums = np.zeros((1 if own else len(phase.noise), size))
    due = np.bincount(asked, minlength=len(phase.rate))
    waiting, shares = due.copy(), np.zeros(len(phase.rate), dtype=np.int64)
    own_std = plan.own_noise(phase) * scale
    within = 0
    for part in updates:
        who = _checked(part, size, waiting)
        clip = np.full(len(who), math.inf) if plan.noise_at == "steps" else phase.clip[who] * scale
        change = part.change
        if plan.noise_at == "clients" or (plan.noise_at == "secure_sum" and part.handed_out):
            if not part.handed_out:
                turn = due[who] - waiting[who] - _still_to_come(who) - 1
                sources = [own_noise(int(c), int(t)) for c, t in zip(who, turn, strict=True)]
                change = hand_out(change, clip, layers, own_std[who], sources)
            change, factor = finite_and_factor(change, np.full(len(who), math.inf), WHOLE)
            np.add.at(shares, who, factor[:, 0] > 0)
            _add(sums, plan, phase, who, count, change, factor, WHOLE)
            continue
        change, factor = finite_and_factor(change, clip, layers)
        within += int((factor == 1).all(axis=1).sum())
        if plan.grid is not None:
            whole = to_grid(factor * change, clip, plan.grid.step)
            change, factor = plan.grid.step * whole, np.ones_like(factor)  # float64: their sums are exact
        _add(sums, plan, phase, who, count, change, factor, layers)
    return Sums(sums, within, shares)


def _checked(part: Updates, size: int, waiting: Ints) -> Ints:
    """(k,) whose updates these are; they are no longer waited for."""
    who = np.asarray(part.clients)
    if who.dtype.kind not in "iu" or part.change.shape != (len(who), size):
        raise LedgerError(f"updates of {len(who)} clients must be numbered and {len(who)} rows of {size}")
    if part.change.dtype != np.float32:  # clipping is proved for its rounding
        raise LedgerError(f"updates must be float32, found {part.change.dtype}")
    if ((who < 0) | (who >= len(waiting))).any():
        raise LedgerError("an update came from a client that does not exist")
    np.subtract.at(waiting, who, 1)
    if (waiting[who] < 0).any():
        raise LedgerError("an update came from a client that was not asked, or came twice")
    return who


def _still_to_come(who: Ints) -> Ints:
    """(k,) how many later entries are of the same client."""
    order = np.argsort(who, kind="stable")
    end = np.searchsorted(who[order], who[order], side="right")
    later = np.empty(len(who), dtype=np.int64)
    later[order] = end - 1 - np.arange(len(who))
    return later


def _add(
    sums: Floats,
    plan: Plan,
    phase: Phase,
    who: Ints,
    count: Floats | None,
    change: Matrix,
    factor: Floats,
    layers: Sequence[slice],
) -> None:
    share = np.ones(len(who)) if count is None else count[who]
    if merged(plan, phase):
        add_layers(sums[0], phase.weight[who] * share, change, factor, layers)
        return
    for pool in np.unique(phase.pool[who]):
        add_layers(sums[pool], share * (phase.pool[who] == pool), change, factor, layers)
