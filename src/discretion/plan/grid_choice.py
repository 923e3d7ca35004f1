"""Choice of the grid for sums of shares: the finest step on which nothing wraps around."""

import math

import numpy as np

from discretion.errors import PlanError
from discretion.plan.grid import MODULUS, SMOOTHING, Grid
from discretion.plan.plan import Plan

FINE = 2.0**-60  # step on which lengths are measured, before one is chosen
ROOM = 1 + 2.0**-5  # for what the grid itself adds to clips and noise
MOST_COST = 0.01  # share of its noise that a plan may pay for whole numbers


def on_finest_grid(plan: Plan, size: int) -> Plan:
    """Return the plan on the finest grid for updates of `size` coordinates whose sums fit 32 bits.

    The step follows from the plan's clips, noise and pools and from `size` alone, which are public.

    Guarantees:
        No coordinate of a sum leaves 32 bits in any round, with all clients and their noise, but for a chance
        of 2^-64 in the whole run.
        No multiplier is smaller than on no grid. That takes up to 1 % more noise; where it would take more,
        `PlanError` says what to change.
    """
    measure, length = Grid(FINE, size), 0.0
    least_clip = least_share = math.inf
    for phase in plan.phases:
        taking = phase.expected > 0
        clip, own = phase.clip[taking], plan.own_noise(phase)[taking]
        length = max(length, FINE * float(measure.reach(clip, own / FINE, phase.pool[taking]).max()))
        least_clip = min(least_clip, float(np.min(clip, where=clip > 0, initial=math.inf)))
        least_share = min(least_share, float(np.min(own, where=own > 0, initial=math.inf)))
    if not (math.isfinite(length) and math.isfinite(least_clip)):
        raise PlanError("a grid needs updates that are clipped: found infinite clips, or clips of 0 alone")
    step = 2.0 ** math.ceil(math.log2(ROOM * length / max(MODULUS // 2 - len(plan.clients), 1)))
    rounding, smoothing = math.sqrt(size) / 2 * step / least_clip, (SMOOTHING * step / least_share) ** 2 / 2
    if rounding + smoothing > MOST_COST:
        raise PlanError(
            f"sums of 32 bits are too short for this plan: found clips down to {least_clip / step:.3g} steps "
            f"and shares of the noise down to {least_share / step:.3g} steps, which would take "
            f"{rounding + smoothing:.1%} more noise; expected at most {MOST_COST:.0%}. Put fewer clients in "
            "a pool, choose clips nearer to each other, or a smaller model."
        )
    return plan.on_grid(step, size)
