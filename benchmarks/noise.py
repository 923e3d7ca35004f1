"""How many noise samples a second each source and shape gives, on one core.

Run: python benchmarks/noise.py --size 2000000
"""

import argparse
import time
from collections.abc import Callable, Iterator

import numpy as np

from discretion.plan.grid import Grid
from discretion.randomness.discrete import Draw, discrete_gaussian, gaussian, rounded_gaussian
from discretion.randomness.sources import Cryptographic, Seeded, Source
from discretion.randomness.streams import Purpose, stream

Work = Callable[[Source, int], object]
Sampler = Callable[[int, float, Draw], object]


def drawing(sampler: Sampler, sigma: float) -> Work:
    return lambda source, size: sampler(size, sigma, source.words)


def rounding(source: Source, size: int) -> object:
    update = np.zeros((size // 1000, 1000))
    return Grid(2.0**-20, 1000).rounded(update, np.ones(len(update)))


def rows() -> Iterator[tuple[str, Work]]:
    yield "random words", lambda source, size: source.words(size)
    yield "Gaussian, floats", lambda source, size: source.gaussian(size, 1.0)
    yield "Gaussian, floats, exact sampler", drawing(gaussian, 1.0)
    for sigma in (0.5, 10.0, 1000.0, 2.0**20):
        yield f"Gaussian, rounded, sigma {sigma:g}", drawing(rounded_gaussian, sigma)
    for sigma in (0.5, 10.0, 1000.0, 2.0**20):
        yield f"Gaussian, discrete, sigma {sigma:g}", drawing(discrete_gaussian, sigma)
    yield "update to grid", rounding


def rate(work: Work, source: Source, size: int) -> float:
    """Return millions a second, the best of five; the first call, which builds tables, is not counted."""
    work(source, size)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        work(source, size)
        times.append(time.perf_counter() - start)
    return size / min(times) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=2_000_000)
    size = parser.parse_args().size
    sources: tuple[Source, ...] = (Seeded(stream(1, Purpose.NOISE)), Cryptographic())
    print(f"{'millions a second':36}{'seeded':>10}{'cryptographic':>15}")
    for name, work in rows():
        seeded, cryptographic = (rate(work, source, size) for source in sources)
        print(f"{name:36}{seeded:10.1f}{cryptographic:15.1f}", flush=True)


if __name__ == "__main__":
    main()
