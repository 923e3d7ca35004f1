"""Privacy losses of sampled Gaussian steps on a grid, composed so that nothing is ever understated.

One step adds noise of `multiplier` to a sum that a client enters with probability `rate`. With and
without the client it releases, at worst, P = (1 - rate) N(0, s²) + rate N(1, s²) and Q = N(0, s²), and
the privacy loss log dP/dQ grows with the release x. Removing the client is the pair (P, Q), adding it
the pair (Q, P). The cost of many steps is the hockey-stick curve
delta(epsilon) = E[(1 - exp(epsilon - sum of losses))+], in the worse of the two directions.

Where the caller looks (tilt, window, grid) decides how tight the answer is, never whether it holds:
whatever is cut off, folded over or rounded is added back to delta.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.fft import irfft, rfft
from scipy.special import ndtr

from discretion.population import Floats, Ints

Complexes = npt.NDArray[np.complex128]

UNIT = 2.0**-53  # relative rounding error of one operation
NEGLIGIBLE = 1e-25  # amplitude of a frequency, far below the rounding of the others
FARTHEST = 600.0  # no answer is farther below `aim`: exp() has to stay finite


@dataclass(frozen=True)
class Losses:
    """A discrete loss of K clients: mass[:, i] at start + i * spacing, the rest at infinity."""

    mass: Floats  # (K, B)
    start: Floats  # (K, 1)
    infinite: Floats  # (K, 1)


@dataclass(frozen=True)
class View:
    """Which stretch of the composed loss to compute: `size` grid points from `bottom` upwards."""

    tilt: Floats  # (K, 1) above 0: weigh a loss by exp(tilt * loss) while composing
    bottom: Floats  # (K, 1)
    aim: Floats  # (K, 1) where epsilon is expected
    spacing: Floats  # (K, 1)
    size: int


def discretise(
    rate: Floats, multiplier: Floats, spacing: Floats, first: Ints, bins: Ints, columns: int
) -> tuple[Losses, Losses]:
    """The loss of one step of K clients, (K, 1) each: when the client is removed, and when added.

    The grid is log(1 - rate) + i * spacing for i = first, ..., first + bins - 1, so that it meets the
    least possible loss (it is i * spacing where the rate is 1). Arrays have `columns` of at least `bins`:
    what a removed client could lose in those beyond its bins is taken as infinite.

    Connect the dots (Doroshenko, Ghazi, Kamath, Kumar and Manurangsi 2022): whatever lies between two
    grid points is divided among them so that its probability under P and under Q stays the same. The
    curve of the result is the piecewise linear interpolation, in exp(epsilon), of the true curve, which
    is convex; so it lies above it, and so does every composition (Zhu, Dong and Wang 2022, theorem 10).

    Guarantees:
        At every epsilon the hockey-stick curve of the result is at least the true one (up to the rounding
        of the grid points themselves, which `epsilon` adds as `blur`).
        What lies above the grid is divided among its last point and infinity by the same rule; what lies
        below moves up to its first point.
        Mass and `infinite` sum to 1.
        Rounding is on the safe side: the part that moves up is raised by a bound on its rounding error.
    """
    place = np.arange(columns)
    steps = (first + place) * spacing  # (K, B)
    with np.errstate(divide="ignore"):
        base = np.where(rate < 1, np.log1p(-rate), 0.0)
        # exp(loss) - (1 - rate), without cancellation
        excess = np.where(rate < 1, (1 - rate) * np.expm1(steps), np.exp(steps))
        # the loss is below a grid point where x / s is below this
        threshold = multiplier * np.log(excess / rate) + 0.5 / multiplier
    without, without_error = _between(threshold)  # (K, B + 1) Q of what lies between the points
    within, within_error = _between(threshold - 1 / multiplier)  # N(1, s²) of it
    width = np.broadcast_to(-np.expm1(-spacing), excess.shape).copy()

    # Removed: of the interval above point i the share that moves up to point i + 1, or to infinity, is
    # (P - exp(loss_i) Q) / (1 - exp(-spacing)); up to infinity there is no spacing.
    width[:, -1] = 1.0
    total = (1 - rate) * without[:, 1:] + rate * within[:, 1:]
    up = rate * within[:, 1:] - excess * without[:, 1:]
    up += rate * within_error[:, 1:] + excess * without_error[:, 1:]
    up = np.clip(up / width, 0.0, total)
    mass = total - up
    mass[:, 1:] += up[:, :-1]
    mass[:, :1] += (1 - rate) * without[:, :1] + rate * within[:, :1]
    outside = place >= bins  # of the client's own grid: above all of it
    infinite = up[:, -1:] + np.where(outside, mass, 0.0).sum(axis=1, keepdims=True)
    removed = Losses(np.where(outside, 0.0, mass), base + steps[:, :1], infinite)

    # Added: the same with P and Q exchanged and the losses negated, so that up is towards lower x.
    width[:, -1], width[:, 0] = width[:, 0], 1.0
    total = without[:, :-1]
    up = excess * without[:, :-1] - rate * within[:, :-1]
    up += excess * without_error[:, :-1] + rate * within_error[:, :-1]
    up = np.clip(up / (width * (excess + (1 - rate))), 0.0, total)
    mass = total - up
    mass[:, :-1] += up[:, 1:]
    mass[:, -1:] += without[:, -1:]
    added = Losses(mass[:, ::-1], -(base + steps[:, -1:]), up[:, :1])
    return removed, added


def _between(threshold: Floats) -> tuple[Floats, Floats]:
    """Standard normal mass below, between and above (K, B) thresholds, and a bound on its rounding.

    Each difference is taken on the side where both terms are small, so that tails keep their digits.
    """
    tail = ndtr(-np.abs(threshold))
    upper = (threshold >= 0).astype(np.float64)
    signed = np.where(threshold < 0, tail, -tail)
    # a threshold t rounded by UNIT * |t| changes the tail by a share of about UNIT * t²
    error = UNIT * (16 + 4 * np.minimum(threshold**2, 1e4)) * tail
    mass = np.diff(signed, prepend=0.0, append=0.0) + np.diff(upper, prepend=0.0, append=1.0)
    mass = np.maximum(mass, 0.0)
    ends = np.pad(error, ((0, 0), (1, 1)))
    return mass, ends[:, 1:] + ends[:, :-1] + 16 * UNIT * mass


def epsilon(parts: Sequence[tuple[Losses, Floats]], delta: Floats, view: View) -> Floats:
    """(K, 1) an upper bound on the epsilon at `delta` of all parts together, each taken count times.

    `parts` holds losses on the grid of `view`, with counts (K, 1); `delta` is (K, 1). Infinite where
    the view does not reach high enough.

    The losses are composed after weighing them by exp(tilt * loss) (an Esscher transform), which puts
    the middle of the composed loss where delta is decided. All errors below are therefore small
    shares of delta, however small delta is.

    Guarantees:
        Never less than the true epsilon of the discrete losses, for any view:
        - Composition on a circle of `size` points adds what lies outside the view to what lies inside,
          so inside nothing is understated.
        - What lies above the view is bounded by Chernoff, with the moments of the discrete losses, and
          added to delta; what lies below it does not count towards delta, and no answer is below it.
        - The rounding of both Fourier transforms and of the powers is bounded, and the bound is added to
          the composed mass at every point.
        - Infinite losses compose as 1 - (1 - infinite)^count.
    """
    size, tilt, spacing = view.size, view.tilt, view.spacing
    origin, log_moment, log_finite, relative, blur = np.zeros((5, len(delta), 1))
    transform = 8 * UNIT * np.log2(size)  # relative, in the Euclidean norm (Higham 2002, theorem 24.2)
    spectra = []
    for losses, count in parts:
        exponent = tilt * (spacing * np.arange(losses.mass.shape[1]))
        with np.errstate(divide="ignore"):
            weighed = exponent + np.log(losses.mass)
        top = weighed.max(axis=1, keepdims=True)
        weighed = np.exp(weighed - top)
        total = weighed.sum(axis=1, keepdims=True)
        circle = _fold(weighed / total, size)
        norm = np.sqrt(size * (circle**2).sum(axis=1, keepdims=True))
        spectra.append((rfft(circle, axis=1), transform * norm, count))
        relative += count * UNIT * (64 + 8 * exponent[:, -1:] + 8 * np.abs(top))
        blur += count * 16 * UNIT * (1 + np.abs(losses.start) + spacing * losses.mass.shape[1])
        log_moment += count * (top + np.log(total))
        log_finite += count * np.log1p(-losses.infinite)
        origin += count * losses.start
    spectrum, noise = _product(spectra, size)
    composed = np.maximum(irfft(spectrum, size, axis=1), 0.0)
    composed += noise + transform * np.sqrt((composed**2).sum(axis=1, keepdims=True))
    first = np.floor((view.bottom - origin) / spacing)
    place = (first.astype(np.int64) + np.arange(size)) % size
    composed = np.take_along_axis(composed, place, axis=1)
    loss = origin + (first + np.arange(size + 1)) * spacing  # (K, size + 1): the last is out of view
    log_scale = log_moment - tilt * (view.aim - origin)
    relative += UNIT * (8 * size + 8 * np.abs(log_moment) + 8 * tilt * np.abs(view.aim - origin))
    infinite = -np.expm1(log_finite) * (1 + 8 * UNIT)
    with np.errstate(over="ignore", invalid="ignore"):  # far beside the point, where it proves nothing
        scale = np.exp(log_scale + relative)
        found = _root(composed * scale, loss, infinite, scale, delta, view)
    return found + blur + 8 * UNIT * (np.abs(origin) + np.abs(found))


def _root(
    composed: Floats, loss: Floats, infinite: Floats, scale: Floats, delta: Floats, view: View
) -> Floats:
    """(K, 1) the least loss in view at which the curve is at most `delta`, exact between grid points.

    With the true masses c_i = composed_i exp(-tilt (loss_i - aim)), the curve falls from loss_(j-1) to
    loss_j by (1 - exp(-spacing)) slope_j, where slope_j = sum over i >= j of c_i exp(loss_j - loss_i):
    sums of what is positive, so no digits are lost.
    """
    tilt, aim = view.tilt, view.aim
    loss, end = loss[:, :-1], loss[:, -1:]
    least = np.maximum(loss[:, :1], aim - FARTHEST / (1 + tilt))
    shift = np.clip(loss - aim, least - aim, FARTHEST)
    # E[(1 - exp(epsilon - loss))+; loss >= end] <= scale exp(-tilt (end - aim)) times the largest value
    # of exp(-tilt y) (end - epsilon + y) over y >= 0, which is at most max(end - epsilon, 1 / tilt)
    reach = np.minimum(1.0, np.maximum(end - least, 1 / tilt))
    beyond = infinite + scale * np.exp(-tilt * (end - aim)) * reach
    far = loss - aim > FARTHEST  # as good as infinite
    if far.any():
        beyond += np.where(far, composed * np.exp(-tilt * (loss - aim)), 0.0).sum(axis=1, keepdims=True)
        composed = np.where(far, 0.0, composed)
    slope = np.exp(shift) * _from_above(composed * np.exp(-(tilt + 1) * shift))
    fall = _from_above(-np.expm1(-view.spacing) * slope)
    left = np.concatenate([beyond + fall, beyond], axis=1)  # the curve one point below each point
    where = (left[:, :-1] > delta).sum(axis=1, keepdims=True)  # the curve falls: these come first
    at = np.maximum(where - 1, 0)
    room = delta - np.take_along_axis(left, at + 1, axis=1)
    with np.errstate(divide="ignore"):
        share = np.maximum(room / np.take_along_axis(slope, at, axis=1), 0.0)
        root = np.take_along_axis(loss, at, axis=1) + np.log1p(-share)
    root = np.where(where == 0, least, np.maximum(root, least))
    proven = (beyond <= delta) & ~np.isnan(left[:, :1])  # whatever is not a number ends up in the first
    return np.where(proven, root, np.inf)


def _from_above(terms: Floats) -> Floats:
    """Sums over this and all later columns."""
    return np.cumsum(terms[:, ::-1], axis=1)[:, ::-1]


def _fold(mass: Floats, size: int) -> Floats:
    """(K, B) masses wound around a circle of `size` points."""
    clients, bins = mass.shape
    padded = np.pad(mass, ((0, 0), (0, -bins % size)))
    return np.asarray(padded.reshape(clients, -1, size).sum(axis=1))


def _product(spectra: Sequence[tuple[Complexes, Floats, Floats]], size: int) -> tuple[Complexes, Floats]:
    """The product of (K, F) spectra to whole (K, 1) powers, and a bound (K, 1) on its rounding.

    Each spectrum comes with a bound on the Euclidean norm of its error over all frequencies, and with its
    power. As |a^n - b^n| <= n |a - b| max(|a|, |b|)^(n - 1), and by Cauchy and Schwarz, no point of the
    inverse transform of the product is wrong by more than the bound, which also covers the rounding of the
    multiplications. High frequencies, where the product is NEGLIGIBLE, are left out.
    """
    log_size = np.zeros(spectra[0][0].shape)  # of the product
    log_sizes = []
    for spectrum, error, count in spectra:
        log_sizes.append(np.log(np.abs(spectrum) + error))
        log_size += count * log_sizes[-1]
    # where each client's own spectrum ends, and a sum that adds one by one: so no client's answer depends,
    # even in its last digit, on who is computed beside it
    ends = len(log_size[0]) - np.argmax((log_size > np.log(NEGLIGIBLE))[:, ::-1], axis=1)
    kept = int(ends.max())
    mine = np.arange(kept) < ends[:, None]
    noise = np.full((len(log_size), 1), NEGLIGIBLE)
    product = mine.astype(np.complex128)
    for (spectrum, error, count), own in zip(spectra, log_sizes, strict=True):
        others = np.where(mine, np.exp(2 * (log_size - own)[:, :kept]), 0.0)
        rest = np.cumsum(others, axis=1)[:, -1:]
        noise += count * (error + 8 * UNIT * np.sqrt(size)) * np.sqrt(2 * rest) / size
        left, base = count.astype(np.int64), spectrum[:, :kept]
        while left.any():
            product = np.where(left & 1, product * base, product)
            left, base = left >> 1, base * base
    return product, noise
