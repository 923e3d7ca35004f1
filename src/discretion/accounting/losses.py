"""Privacy loss distributions of sampled Gaussian steps on a grid, composed without ever understating epsilon.

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
from scipy.fft import irfft, next_fast_len, rfft
from scipy.special import ndtr

from discretion.arrays import Floats, Ints

Complexes = npt.NDArray[np.complex128]

UNIT = 2.0**-53  # relative rounding error of one operation
NEGLIGIBLE = 1e-25  # amplitude of a frequency, far below the rounding of the others
FARTHEST = 600.0  # no answer is farther below `aim`: exp() has to stay finite
MANY = 16  # different steps, from which it pays to find out first which frequencies matter
HEARD = 4  # one in so many steps is listened to, to find out
BLOCK = 16, 128, 128  # rows, bins and columns of matrices that are multiplied by one thread
DIRECT = 32  # products per point of the circle that take as long as a fast transform


@dataclass(frozen=True)
class Losses:
    """Discrete losses of S steps of K clients: mass[..., i] at start + i * spacing, the rest at infinity."""

    mass: Floats  # (K, S, B)
    start: Floats  # (K, S, 1)
    infinite: Floats  # (K, S, 1)


@dataclass(frozen=True)
class LossView:
    """Which stretch of the composed loss to compute: `size` grid points from `bottom` upwards."""

    tilt: Floats  # (K, 1) above 0: weigh a loss by exp(tilt * loss) while composing
    bottom: Floats  # (K, 1)
    aim: Floats  # (K, 1) where epsilon is expected
    spacing: Floats  # (K, 1)
    size: int


def discretise(
    rate: Floats, multiplier: Floats, spacing: Floats, first: Ints, bins: Ints, columns: int
) -> tuple[Losses, Losses]:
    """Return the discrete losses of S steps of K clients: with the client removed, and with it added.

    Everything is (K, S, 1); the spacing may be (K, 1, 1). The grid is log(1 - rate) + i * spacing for
    i = first, ..., first + bins - 1, so that it meets the least possible loss (it is i * spacing where the
    rate is 1). Arrays have `columns` of at least `bins`: what a removed client could lose in those beyond
    its bins is taken as infinite.

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
    steps = (first + place) * spacing  # (K, S, B)
    with np.errstate(divide="ignore"):
        base = np.where(rate < 1, np.log1p(-rate), 0.0)
        # exp(loss) - (1 - rate), without cancellation
        excess = (1 - rate) * np.expm1(steps)
        if (rate == 1).any():
            excess = np.where(rate < 1, excess, np.exp(steps))
        # the loss is below a grid point where x / s is below this
        threshold = multiplier * np.log(excess / rate) + 0.5 / multiplier
    without, without_error = _between(threshold)  # (K, S, B + 1) Q of what lies between the points
    within, within_error = _between(threshold - 1 / multiplier)  # N(1, s²) of it
    width = np.broadcast_to(-np.expm1(-spacing), excess.shape).copy()

    # Removed: of the interval above point i the share that moves up to point i + 1, or to infinity, is
    # (P - exp(loss_i) Q) / (1 - exp(-spacing)); up to infinity there is no spacing.
    width[..., -1] = 1.0
    total = (1 - rate) * without[..., 1:] + rate * within[..., 1:]
    up = rate * within[..., 1:] - excess * without[..., 1:]
    up += rate * within_error[..., 1:] + excess * without_error[..., 1:]
    up = np.clip(up / width, 0.0, total)
    mass = total - up
    mass[..., 1:] += up[..., :-1]
    mass[..., :1] += (1 - rate) * without[..., :1] + rate * within[..., :1]
    outside = np.where(place >= bins, mass, 0.0)  # of the step's own grid: above all of it
    infinite = up[..., -1:] + outside.sum(axis=-1, keepdims=True)
    removed = Losses(mass - outside, base + steps[..., :1], infinite)

    # Added: the same with P and Q exchanged and the losses negated, so that up is towards lower x.
    width[..., -1], width[..., 0] = width[..., 0], 1.0
    total = without[..., :-1]
    up = excess * without[..., :-1] - rate * within[..., :-1]
    up += excess * without_error[..., :-1] + rate * within_error[..., :-1]
    up = np.clip(up / (width * (excess + (1 - rate))), 0.0, total)
    mass = total - up
    mass[..., :-1] += up[..., 1:]
    mass[..., -1:] += without[..., -1:]
    added = Losses(mass[..., ::-1], -(base + steps[..., -1:]), up[..., :1])
    return removed, added


def _between(threshold: Floats) -> tuple[Floats, Floats]:
    """Return the standard normal mass below, between and above (..., B) thresholds, and a bound on its error.

    Each difference is taken on the side where both terms are small, so that tails keep their digits.
    """
    tail = ndtr(-np.abs(threshold))
    # a threshold t rounded by UNIT * |t| changes the tail by a share of about UNIT * t²
    error = (np.minimum(threshold**2, 1e4) * (4 * UNIT) + 16 * UNIT) * tail
    signed = np.copysign(tail, -(threshold + 0.0))  # from below, or what is left above, negated
    mass = np.diff(signed, prepend=0.0, append=0.0)
    middle = (threshold < 0).sum(axis=-1, keepdims=True)
    np.put_along_axis(mass, middle, 1 + np.take_along_axis(mass, middle, axis=-1), axis=-1)
    np.maximum(mass, 0.0, out=mass)
    slip = 16 * UNIT * mass
    slip[..., :-1] += error
    slip[..., 1:] += error
    return mass, slip


def epsilon(parts: Sequence[tuple[Losses, Floats]], delta: Floats, view: LossView) -> Floats:
    """Return (K, 1) an upper bound on the epsilon at `delta` of all parts together, each taken count times.

    `parts` holds losses on the grid of `view`, with counts (K, S, 1); `delta` is (K, 1). Infinite where
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
          the composed mass at every point; so is a bound on all frequencies that are left out.
        - Infinite losses compose as 1 - (1 - infinite)^count.
    """
    size, tilt, spacing = view.size, view.tilt, view.spacing
    origin, log_moment, log_finite, relative, blur = np.zeros((5, len(delta), 1))
    transform = _transform_error(size)
    rows = sum(losses.mass.shape[1] for losses, _ in parts)  # a sum of so many adds that often UNIT of it
    masses = []
    for losses, count in parts:
        exponent = (tilt * spacing)[:, None] * np.arange(losses.mass.shape[2])  # (K, 1, B)
        with np.errstate(divide="ignore"):
            weighed = exponent + np.log(losses.mass)
        top = weighed.max(axis=2, keepdims=True)
        weighed = np.exp(weighed - top)
        total = weighed.sum(axis=2, keepdims=True)
        masses.append((weighed / total, count))
        moment, start = top + np.log(total), np.abs(losses.start)
        # the 64 is for masses above exp(-21) of the largest, and sums; what rarer ones miss is below `noise`
        turns = losses.mass.shape[2] // size  # around the circle, each an addition
        rounding = 64 + turns + 8 * exponent[..., -1:] + 8 * np.abs(top) + rows * np.abs(moment)
        relative += (count * UNIT * rounding).sum(axis=1)
        rounding = 16 * (1 + start + spacing[:, None] * losses.mass.shape[2]) + rows * start
        blur += (count * UNIT * rounding).sum(axis=1)
        log_moment += (count * moment).sum(axis=1)
        log_finite += (count * np.log1p(-losses.infinite)).sum(axis=1)
        origin += (count * losses.start).sum(axis=1)
    spectrum, noise = _product(_spectra(masses, size), size)
    composed = np.maximum(irfft(spectrum, size, axis=1), 0.0)
    composed += noise + transform * np.sqrt((composed**2).sum(axis=1, keepdims=True))
    first = np.floor((view.bottom - origin) / spacing)
    place = (first.astype(np.int64) + np.arange(size)) % size
    composed = np.take_along_axis(composed, place, axis=1)
    loss = origin + (first + np.arange(size + 1)) * spacing  # (K, size + 1): the last is out of view
    log_scale = log_moment - tilt * (view.aim - origin)
    relative += UNIT * (8 * size + 8 * np.abs(log_moment) + 8 * tilt * np.abs(view.aim - origin))
    infinite = -np.expm1(log_finite) * (1 + (8 + rows) * UNIT)
    with np.errstate(over="ignore", invalid="ignore"):  # far beside the point, where it proves nothing
        scale = np.exp(log_scale + relative)
        found = _root(composed * scale, loss, infinite, scale, delta, view)
    return found + blur + 8 * UNIT * (np.abs(origin) + np.abs(found))


def _root(
    composed: Floats, loss: Floats, infinite: Floats, scale: Floats, delta: Floats, view: LossView
) -> Floats:
    """Return (K, 1) the least loss in view at which the curve is at most `delta`, exact between grid points.

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
    """Return, for each column, the sum over it and all later columns."""
    return np.cumsum(terms[:, ::-1], axis=1)[:, ::-1]


def _fold(mass: Floats, size: int) -> Floats:
    """Return (K, S, size) the (K, S, B) masses wrapped around a circle of `size` points."""
    *rows, bins = mass.shape
    if bins % size:
        mass = np.concatenate([mass, np.zeros((*rows, -bins % size))], axis=-1)
    return np.asarray(mass.reshape(*rows, -1, size).sum(axis=-2))


def _transform_error(size: int) -> float:
    """Return the relative error of a fast Fourier transform in Euclidean norm (Higham 2002, theorem 24.2)."""
    return float(8 * UNIT * np.log2(size))


Spectra = list[tuple[Complexes, Floats, Floats]]  # (K, S, F), (K, S, 1) its error and (K, S, 1) its power


def _spectra(masses: Sequence[tuple[Floats, Floats]], size: int) -> Spectra:
    """Return the lowest frequencies of (K, S, B) masses that sum to 1, each with its error and its count.

    The error is a bound on the Euclidean norm over all frequencies. For many steps, only the frequencies at
    which the product of all spectra may matter are computed, one by one where they are few. A sum of B
    products, with cosines accurate to 16 UNIT, is accurate to (B + 16) UNIT.
    """
    kept, bins = size // 2 + 1, []
    if sum(mass.shape[1] for mass, _ in masses) >= MANY:
        kept = _heard(masses, size)
        bins = [mass.shape[2] for mass, _ in masses if mass.shape[2] * kept < DIRECT * size]
        turns = np.arange(max(bins, default=0))[:, None] * np.arange(kept) % size
        waves = np.exp(-2j * np.pi / size * np.arange(size))[turns].view(np.float64)  # (B, 2 F)
    spectra = []
    for mass, count in masses:
        length = mass.shape[2]
        if length in bins:
            spectrum = _times(mass, waves[:length]).view(np.complex128)
            error = np.full(count.shape, 2 * UNIT * (length + 16) * np.sqrt(2 * kept))
        else:
            circle = _fold(mass, size)
            spectrum = rfft(circle, axis=2)[..., :kept]
            error = _transform_error(size) * np.sqrt(size * (circle**2).sum(axis=2, keepdims=True))
        spectra.append((spectrum, error, count))
    return spectra


def _times(mass: Floats, waves: Floats) -> Floats:
    """Return mass @ waves, in blocks too small for several threads, whose number would change last digits."""
    rows, bins, columns = BLOCK
    *shape, length = mass.shape
    mass = mass.reshape(-1, length)
    padded = np.concatenate([mass, np.zeros((-len(mass) % rows, length))]).reshape(-1, rows, length)
    product = np.zeros((*padded.shape[:2], waves.shape[1]))
    for f in range(0, waves.shape[1], columns):
        for b in range(0, length, bins):
            product[..., f : f + columns] += padded[..., b : b + bins] @ waves[b : b + bins, f : f + columns]
    return product.reshape(-1, waves.shape[1])[: len(mass)].reshape(*shape, -1)


def _heard(masses: Sequence[tuple[Floats, Floats]], size: int) -> int:
    """Return the number of frequencies up to the last at which the product of all may exceed NEGLIGIBLE.

    No spectrum exceeds 1, so the product of some, every HEARD-th, bounds that of all. A product of powers
    is at most the power of the mean: with n steps in all, |product|² is at most (mean of |spectrum|²)^n.
    That mean is the spectrum of the mean autocorrelation, which is no longer than two steps are: short
    transforms for each step, and a long one for all. With masses that sum to 1 and three transforms, no
    frequency of it is wrong by more than 5 sqrt(size) times the error of one.
    """
    clients = len(masses[0][0])
    together, total, rows = np.zeros((clients, size)), np.zeros((clients, 1)), 0
    for mass, count in ((mass[:, ::HEARD], count[:, ::HEARD]) for mass, count in masses):
        length = min(int(next_fast_len(2 * mass.shape[2], real=True)), size)
        spectrum = rfft(mass if mass.shape[2] <= length else _fold(mass, length), length, axis=2)
        power = (count * (spectrum.real**2 + spectrum.imag**2)).sum(axis=1)
        lagged = irfft(power, length, axis=1)
        ahead, behind = (length + 1) // 2, length // 2
        together[:, :ahead] += lagged[:, :ahead]
        together[:, size - behind :] += lagged[:, ahead:]
        total += count.sum(axis=1)
        rows += mass.shape[1]
    error = 8 * np.sqrt(size) * _transform_error(size) + rows * UNIT
    power = np.maximum(rfft(together, axis=1).real / total, 0.0) + error
    return int(np.flatnonzero((total / 2 * np.log(power) > np.log(NEGLIGIBLE)).any(axis=0))[-1]) + 1


def _product(spectra: Spectra, size: int) -> tuple[Complexes, Floats]:
    """Return (K, F) the product of spectra to integer powers, and (K, 1) a bound on its rounding error.

    As |a^n - b^n| <= n |a - b| max(|a|, |b|)^(n - 1), and by Cauchy and Schwarz, no point of the
    inverse transform of the product is wrong by more than the bound, which also covers the rounding of the
    multiplications. High frequencies, where the product is NEGLIGIBLE, are left out.
    """
    log_sizes = [np.log(np.abs(spectrum) + error) for spectrum, error, _ in spectra]
    log_size = np.zeros(log_sizes[0][:, 0].shape)  # of the product
    for own, (_, _, count) in zip(log_sizes, spectra, strict=True):
        log_size += (count * own).sum(axis=1)
    # each client's own end of the spectrum, and a sequential sum: no client's answer depends, even in its
    # last digit, on the clients computed beside it
    ends = len(log_size[0]) - np.argmax((log_size > np.log(NEGLIGIBLE))[:, ::-1], axis=1)
    kept = int(ends.max())
    mine = np.arange(kept) < ends[:, None]
    noise = np.full((len(log_size), 1), NEGLIGIBLE)
    product = mine.astype(np.complex128)
    for (spectrum, error, count), own in zip(spectra, log_sizes, strict=True):
        others = np.where(mine[:, None], np.exp(2 * (log_size[:, None] - own)[..., :kept]), 0.0)
        rest = np.cumsum(others, axis=2)[..., -1:]
        noise += (count * (error + 8 * UNIT * np.sqrt(size)) * np.sqrt(2 * rest) / size).sum(axis=1)
        left, base = count.astype(np.int64), spectrum[..., :kept]
        power = np.ones_like(base)
        while left.any():
            power = np.where(left & 1, power * base, power)
            left, base = left >> 1, base * base
        product = product * power.prod(axis=1)
    return product, noise
