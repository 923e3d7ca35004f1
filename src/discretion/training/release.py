"""The privacy mechanism: what leaves a client and what leaves a round, clipped and with noise.

Noise is drawn only here and, as shares on a grid, in `integer_release`. Clients, in this process or behind a
guard, and the server call the same functions.
"""

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from discretion.arrays import Floats, Ints
from discretion.errors import LedgerError, PlanError
from discretion.plan.phase import Phase
from discretion.plan.plan import Plan
from discretion.randomness.discrete import rounded_gaussian
from discretion.randomness.sources import Source
from discretion.timing import Profile
from discretion.training.clip import Matrix, add_layers, finite_and_factor, layers_of
from discretion.training.orders import Updates

LARGEST_SCALE = 2.0**40
ROUNDED = 1e-9  # share of a pool's noise variance: where less is missing, that is rounding
FARTHEST = 12.0  # noise is longer than its usual length, by so many standard deviations, but for 1e-30
WHOLE = [slice(None)]

OwnNoise = Callable[[int, int], Source]  # source of a client's own noise, by client number and turn


def noisy_sum(total: Floats, std: float, source: Source) -> Floats:
    """Return (d,) a sum of clipped updates, gradients or statistics plus noise.

    Guarantees:
        The noise is drawn even where the sum is empty, and does not depend on the summands.
    """
    noise = source.gaussian(len(total), std)
    noise += total
    return noise


def hand_out(
    change: Matrix, clip: Floats, layers: Sequence[slice], std: Floats, sources: Sequence[Source]
) -> Matrix:
    """Return (k, d) what clients hand out: their updates, clipped and with their own noise.

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
    """Return (m,) a client's statistic with its noise; numbers that are not finite count as 0."""
    value = np.where(np.isfinite(value), value, 0.0)
    return noisy_sum(value, std, source) if std > 0 else value


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
    """Return the pools' (P, d) noisy sums and the scale of later clips: nothing else leaves a round.

    `source` gives the server's noise, by pool. (N,) `count` is the weight of each client's updates, which
    differs from 1 only where their steps are noisy. Where the server may not `top_up` the noise of a secure
    sum and shares are missing, nothing leaves the round: return None in place of the sums.

    Guarantees:
        Each pool's sum of clipped updates gets noise of the planned standard deviation, whichever clients
        took part: the server adds what the clients that answered did not add themselves. If floating point
        could not draw that noise, nothing is released: `PlanError`.
        Pools in which no client can take part release nothing.
        Where each client has a pool of its own and pools are only added up, only their (1, d) weighted sum is
        computed, with the noise of all pools together.
        Under adaptive clipping each update adds +1/2 or -1/2 (within its clip or not) to a noisy sum of bits.
    """
    if plan.grid is not None and plan.grid.size != size:  # rounding more coordinates would cost more
        raise PlanError(
            f"the plan's grid is of {plan.grid.size} parameters, the model has {size}: plan for this model"
        )
    if plan.grid is not None and plan.has_shares:
        from discretion.training.integer_release import release_whole

        return release_whole(
            plan, plan.grid, phase, asked, updates, source, own_noise, profile, top_up
        ), scale
    with (profile or Profile())("clip"):
        sums, within, shares = clipped_sums(plan, phase, scale, updates, asked, size, own_noise, count)
    missing = missing_noise(plan, phase, shares)
    if plan.noise_at == "secure_sum" and not top_up and (missing > ROUNDED).any():
        return None, scale
    noise = server_noise(plan, phase, missing, scale)
    if plan.noise_at != "steps":  # there every step was noisy
        for pool in np.flatnonzero(noise > 0):
            drawn, std = source(int(pool)), float(noise[pool])
            if plan.grid is None:
                sums[pool] += drawn.gaussian(size, std)
            else:
                sums[pool] += plan.grid.step * rounded_gaussian(size, std / plan.grid.step, drawn.words)
    quantile = plan.clipping.quantile
    if quantile is not None:
        bits = within - len(asked) / 2 + source(len(phase.noise)).gaussian(1, quantile.noise)[0]
        share = bits / max(phase.expected.sum(), 1.0) + 0.5
        power = math.log(scale) - quantile.learning_rate * (share - quantile.target)
        most = math.log(LARGEST_SCALE)  # so that clips and noise neither underflow nor overflow
        scale = math.exp(min(max(power, -most), most))
    return sums, scale


def missing_noise(plan: Plan, phase: Phase, shares: Ints) -> Floats:
    """Return (P,) the part of each pool's planned noise variance that the clients' (N,) shares did not bring.

    Guarantees:
        This part and the clients' shares add up to the planned variance, or to more where fewer clients
        dropped out than provided for.
    """
    if not plan.has_shares:
        return phase.pool_releases.astype(np.float64)
    brought = np.bincount(phase.pool, shares / plan.shares(phase), len(phase.noise))
    return np.asarray(np.maximum(phase.pool_releases - brought, 0.0))


def server_noise(plan: Plan, phase: Phase, missing: Floats, scale: float) -> Floats:
    """Return (P,) standard deviations of the noise that the server draws; one if pools are merged.

    (P,) `missing` is the part of each pool's planned noise variance that clients did not bring.

    Guarantees:
        No pool gets less than what it misses, up to a billionth, which is far less than clipping spares
        (`clip.ROUNDING`): checked on the result, by logarithms, which neither under- nor overflow.
    """
    short = (phase.noise > 0) & (missing > 0)
    with np.errstate(divide="ignore", over="ignore"):
        each = phase.noise * np.sqrt(missing) * scale
        planned = np.log(phase.noise) + np.log(missing) / 2 + math.log(scale)
        if plan.merges(phase):
            each = length(phase.weight * each)
            planned += np.log(np.abs(phase.weight))
            short &= phase.weight != 0
        drawn = np.broadcast_to(np.log(each), planned.shape)
    got = np.isfinite(drawn) & (drawn >= planned - ROUNDED)
    if not got[short].all():
        pool = int(np.flatnonzero(short & ~got)[0])
        raise PlanError(
            f"the noise of pool {pool} cannot be drawn: found standard deviation {phase.noise[pool]:g}, "
            f"weight {phase.weight[pool]:g} and scale {scale:g}, whose product floats do not carry. Nothing "
            "was released. Plan with numbers nearer to 1."
        )
    return each


def length(numbers: Floats) -> Floats:
    """Return (1,) the root of the sum of squares, which neither under- nor overflows on the way.

    Scaling by a power of two is exact, so the result is the same to the last bit.
    """
    exponent = int(np.frexp(np.max(np.abs(numbers)))[1])
    root = np.sqrt(np.square(np.ldexp(numbers, -exponent)).sum(keepdims=True))
    return np.asarray(np.ldexp(root, exponent))


def clipped_sums(
    plan: Plan,
    phase: Phase,
    scale: float,
    updates: Iterator[Updates],
    asked: Ints,
    size: int,
    own_noise: OwnNoise,
    count: Floats | None = None,
) -> tuple[Floats, int, Ints]:
    """Return (P, d) sums of clipped updates, how many were within their clips, and (N,) numbers of shares.

    The sums are of each pool, with the clients' own noise where they add it; where pools of single clients
    are merged, the (1, d) weighted sum. The last are the shares of the noise that each client brought.

    Guarantees:
        A client enters at most as often as it was asked, with updates no longer than its clip. Where a client
        hands out its update with noise of its own, its clipping and noise are its own responsibility.
        An update with a number that is not finite, or too long for float32 to shorten, counts as zero; where
        the update should have brought noise, it counts as not answered. So does one with noise that is longer
        than clip and noise can make it: beside it, sums would lose others' noise by rounding.
    """
    own, layers = plan.merges(phase), layers_of(plan.clipping.layers, size)
    sums = np.zeros((1 if own else len(phase.noise), size))
    due = np.bincount(asked, minlength=len(phase.rate))
    waiting, shares = due.copy(), np.zeros(len(phase.rate), dtype=np.int64)
    own_std = plan.own_noise(phase) * scale
    within = 0

    def add(who: Ints, change: Matrix, factor: Floats, layers: Sequence[slice]) -> None:
        share = np.ones(len(who)) if count is None else count[who]
        if own:
            add_layers(sums[0], phase.weight[who] * share, change, factor, layers)
            return
        for pool in np.unique(phase.pool[who]):
            add_layers(sums[pool], share * (phase.pool[who] == pool), change, factor, layers)

    for part in updates:
        who = checked(part, size, waiting)
        clip = np.full(len(who), math.inf) if plan.noise_at == "steps" else phase.clip[who] * scale
        change = part.change
        if plan.noise_at == "clients" or (plan.noise_at == "secure_sum" and part.handed_out):
            if not part.handed_out:
                turn = due[who] - waiting[who] - _still_to_come(who) - 1
                sources = [own_noise(int(c), int(t)) for c, t in zip(who, turn, strict=True)]
                change = hand_out(change, clip, layers, own_std[who], sources)
            honest = 1.001 * (clip + own_std[who] * (math.sqrt(size) + FARTHEST))
            change, factor = finite_and_factor(change, honest, WHOLE)
            factor = np.floor(factor)
            np.add.at(shares, who, factor[:, 0] > 0)
            add(who, change, factor, WHOLE)
            continue
        change, factor = finite_and_factor(change, clip, layers)
        within += int((factor == 1).all(axis=1).sum())
        if plan.grid is not None:
            whole = plan.grid.rounded(factor * change, clip)
            change, factor = plan.grid.step * whole, np.ones_like(factor)  # float64: their sums are exact
        add(who, change, factor, layers)
    return sums, within, shares


def checked(part: Updates, size: int, waiting: Ints, kind: type = np.float32) -> Ints:
    """Check a part of the updates, and return (k,) its client numbers; `waiting` is lowered for each.

    `kind` is the type of the numbers: float32, because the proof of clipping covers its rounding; or int64
    for what was handed out on a grid. Only such numbers may be summed already, in one row for all clients.
    """
    who = np.asarray(part.clients)
    rows = 1 if part.summed and kind is np.int64 else len(who)
    if who.dtype.kind not in "iu" or part.change.shape != (rows, size):
        raise LedgerError(
            f"updates must be numbered by client and be {rows} rows of {size} numbers, found client "
            f"numbers of type {who.dtype} and updates of shape {part.change.shape}"
        )
    if part.change.dtype != kind:
        raise LedgerError(f"updates must be {kind.__name__}, found {part.change.dtype}")
    if ((who < 0) | (who >= len(waiting))).any():
        raise LedgerError(
            f"found an update of a client that does not exist, expected 0 to {len(waiting) - 1}"
        )
    np.subtract.at(waiting, who, 1)
    if (waiting[who] < 0).any():
        raise LedgerError("an update came from a client that was not asked, or came twice")
    return who


def _still_to_come(who: Ints) -> Ints:
    """Return (k,) the number of later entries of the same client."""
    order = np.argsort(who, kind="stable")
    end = np.searchsorted(who[order], who[order], side="right")
    later = np.empty(len(who), dtype=np.int64)
    later[order] = end - 1 - np.arange(len(who))
    return later
