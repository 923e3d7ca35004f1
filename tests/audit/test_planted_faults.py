"""The audit has power: each planted fault is found, and correct code is not accused."""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from discretion.accounting import certify
from discretion.arrays import Floats
from discretion.audit.attack import FOUND, Audit, audit
from discretion.clients import dp_sgd
from discretion.engine import CompiledSums
from discretion.methods import make_plan
from discretion.plan.population import Population
from discretion.randomness.sources import Seeded, Source, heads, run_source
from discretion.randomness.streams import Purpose
from discretion.training import loop, release
from discretion.training.clip import add_layers, finite_and_factor
from discretion.training.server_update import PLAIN, Server

PEOPLE = Population.of([1.0] * 20 + [8.0] * 20, 1e-5, 10)
GAMES = 120
Fault = AbstractContextManager[Any]

LESS_NOISE = "there is less noise than planned"
LOUD = "a sum moves by more than a canary's clip"
OFTEN = "canaries take part more often than planned"
ODD_NUMBERS = "the number of clients in a round does not vary as that of independent coins"
ODD_TURNS = "a canary's number of turns does not vary as that of independent coins"
SMALL = "small noise is more frequent than planned"
DIRECTION = "along some directions there is less noise than planned"


def less_noise() -> Fault:
    """Noise of 0.7 times the planned standard deviation."""
    whole = release.release

    def quiet(plan: Any, phase: Any, *rest: Any) -> Any:
        return whole(plan, replace(phase, noise=0.7 * phase.noise), *rest)

    return patch.object(loop, "release", quiet)


def reused_noise() -> Fault:
    """Noise that is drawn once and used in two rounds."""

    def same(seed: int, run: str, plan: str, round_: int, purpose: Purpose, *counter: int) -> Source:
        once = round_ - (round_ % 2 == 0) if purpose == Purpose.NOISE else round_
        return run_source(seed, run, plan, once, purpose, *counter)

    return patch.object(loop, "run_source", same)


def one_seed() -> Fault:
    """One seed for the noise of all pools."""

    def same(seed: int, run: str, plan: str, round_: int, purpose: Purpose, *counter: int) -> Source:
        return run_source(seed, run, plan, round_, purpose, *(() if purpose == Purpose.NOISE else counter))

    return patch.object(loop, "run_source", same)


def unclipped() -> Fault:
    """A clip that is not applied to 1 % of the updates."""
    clip, draw = finite_and_factor, np.random.default_rng(0)

    def seldom(change: Any, limit: Floats, layers: Any) -> Any:
        change, factor = clip(change, limit, layers)
        return change, np.where(draw.random((len(factor), 1)) < 0.01, 1.0, factor)

    return patch.object(release, "finite_and_factor", seldom)


def frequent_coins() -> Fault:
    """Coins of 1.3 times the planned rate."""
    whole = loop.select

    def often(phase: Any, *rest: Any) -> Any:
        return whole(replace(phase, rate=np.minimum(1.3 * phase.rate, 1.0)), *rest)

    return patch.object(loop, "select", often)


def fixed_size() -> Fault:
    """A fixed number of clients in each round, charged as if each had its own coin."""
    whole = loop.select

    def fixed(phase: Any, source: Any, willing: Any, fixed_size: bool) -> Any:
        return whole(phase, source, willing, True)

    return patch.object(loop, "select", fixed)


def counted_twice() -> Fault:
    """A client whose update enters the sum twice."""

    def twice(total: Floats, weight: Floats, *rest: Any) -> None:
        add_layers(total, weight, *rest)
        add_layers(total, weight, *rest)

    return patch.object(release, "add_layers", twice)


def heavy_weights() -> Fault:
    """Weights from 1 to 1.5 of updates that are clipped already."""

    def heavy(total: Floats, weight: Floats, *rest: Any) -> None:
        add_layers(total, weight * np.linspace(1.0, 1.5, len(weight)), *rest)

    return patch.object(release, "add_layers", heavy)


def raw_momentum() -> Fault:
    """A momentum that is fed with sums before they get noise."""
    sums, raw, faults = release.clipped_sums, [], ExitStack()

    def kept(plan: Any, phase: Any, *rest: Any) -> Any:
        found = sums(plan, phase, *rest)
        raw.append(phase.weight @ found[0])
        return found

    def leaking(self: Server, model: Any, velocity: Any, square: Any, step: Floats, round_: int) -> Any:
        before = self.momentum * velocity
        moved = model + self.learning_rate * (before + step)
        return moved.astype(np.float32), (before + raw.pop()).astype(np.float32), square

    faults.enter_context(patch.object(release, "clipped_sums", kept))
    faults.enter_context(patch.object(Server, "move", leaking))
    return faults


def missing_shares() -> Fault:
    """A server that does not add the shares of the noise that clients did not bring: half of them."""
    whole = release.missing_noise
    return patch.object(release, "missing_noise", lambda *given: 0.5 * whole(*given))


def largest_number() -> Fault:
    """Clipping by the largest number of an update instead of its length."""

    def clip(change: Any, limit: Floats, layers: Any) -> Any:
        factor = limit[:, None] / np.maximum(np.abs(change).max(axis=1, keepdims=True), limit[:, None])
        return change, np.repeat(factor, len(layers), axis=1)

    return patch.object(release, "finite_and_factor", clip)


def other_noise(shape: Callable[[np.random.Generator, int], Floats]) -> Fault:
    """Noise of the planned standard deviation that is not Gaussian and independent over coordinates."""

    class Other(Seeded):
        def gaussian(self, size: int, std: float) -> Floats:
            return std * shape(self.rng, size)

    def source(seed: int, *place: Any) -> Source:
        found = run_source(seed, *place)
        return Other(found.rng) if isinstance(found, Seeded) else found

    return patch.object(loop, "run_source", source)


def correlated_noise() -> Fault:
    """Noise with a correlation of 0.5 between any two coordinates."""

    def shape(draw: np.random.Generator, size: int) -> Floats:
        return np.asarray(np.sqrt(0.5) * (draw.standard_normal(size) + draw.standard_normal(1)))

    return other_noise(shape)


def paired_noise() -> Fault:
    """Two coordinates each with the same noise, which their difference does not have."""

    def shape(draw: np.random.Generator, size: int) -> Floats:
        return np.repeat(draw.standard_normal(-(-size // 2)), 2)[:size]

    return other_noise(shape)


def uniform_noise() -> Fault:
    """Noise of the planned standard deviation that is never large."""
    return other_noise(lambda draw, size: draw.uniform(-np.sqrt(3), np.sqrt(3), size))


def same_coins(since: Callable[[int], int]) -> Fault:
    """Coins of a round that are those of an earlier one."""

    def same(seed: int, run: str, plan: str, round_: int, purpose: Purpose, *counter: int) -> Source:
        once = since(round_) if purpose == Purpose.COINS else round_
        return run_source(seed, run, plan, once, purpose, *counter)

    return patch.object(loop, "run_source", same)


def coins_of_two_rounds() -> Fault:
    """Coins that are flipped once for two rounds."""
    return same_coins(lambda round_: round_ - (round_ % 2 == 0))


def coins_of_all_rounds() -> Fault:
    """Coins that are flipped once for all rounds."""
    return same_coins(lambda round_: 1)


@dataclass(frozen=True)
class Planted:
    fault: Callable[[], Fault]
    said: str  # what the audit must find
    method: str = "idp_fedavg"
    server: Server = PLAIN


FAULTS = [
    Planted(less_noise, LESS_NOISE),
    Planted(less_noise, FOUND),
    Planted(reused_noise, FOUND),
    Planted(one_seed, FOUND, "pfa"),
    Planted(unclipped, LOUD),
    Planted(frequent_coins, OFTEN),
    Planted(fixed_size, ODD_NUMBERS, "dp_fedavg"),
    Planted(counted_twice, FOUND),
    Planted(heavy_weights, FOUND),
    Planted(raw_momentum, FOUND, server=Server(momentum=0.9)),
    Planted(missing_shares, LESS_NOISE, "gdpfed"),
    Planted(largest_number, FOUND),
    Planted(correlated_noise, DIRECTION),
    Planted(paired_noise, DIRECTION),
    Planted(paired_noise, DIRECTION, "pfa"),
    Planted(uniform_noise, SMALL),
    Planted(coins_of_two_rounds, ODD_TURNS),
    Planted(coins_of_all_rounds, ODD_TURNS, "dp_fedavg"),
]


def attacked(planted: Planted) -> Audit:
    plan = make_plan(planted.method, PEOPLE, {"rounds": 8, "rate": 0.4, "clip": 1.0})
    certificate = certify(plan, PEOPLE)
    return audit(plan, PEOPLE, certificate, games=GAMES, server=planted.server, against=("clients",))


@pytest.mark.parametrize("planted", FAULTS, ids=lambda planted: planted.fault.__name__)
def test_a_planted_fault_is_found_and_correct_code_is_not_accused(planted: Planted) -> None:
    assert attacked(planted).contradictions == ()
    with planted.fault():
        assert planted.said in attacked(planted).contradictions


def quiet_steps() -> Fault:
    """Steps with 0.7 times the planned noise."""
    whole = release.noisy_sum
    return patch.object(dp_sgd, "noisy_sum", lambda total, std, source: whole(total, 0.7 * std, source))


def loud_records() -> Fault:
    """Gradients of records that are clipped to twice the clip."""
    whole = CompiledSums.clipped_sum

    def loud(self: Any, model: Any, drawn: Any, clip: float, layers: Any) -> Any:
        return whole(self, model, drawn, 2 * clip, layers)

    return patch.object(CompiledSums, "clipped_sum", loud)


def frequent_records() -> Fault:
    """Batches of 1.3 times the planned rate."""
    return patch.object(dp_sgd, "heads", lambda coins, rate: heads(coins, min(1.3 * rate, 1.0)))


def largest_gradient_number() -> Fault:
    """Gradients that are clipped by their largest number: they get longer than the clip."""
    whole = CompiledSums.clipped_sum

    def loud(self: Any, model: Any, drawn: Any, clip: float, layers: Any) -> Any:
        each = [whole(self, model, drawn[i : i + 1], clip, layers) for i in range(len(drawn))]
        return sum((clip / np.abs(one).max() * one for one in each), np.zeros(len(model)))

    return patch.object(CompiledSums, "clipped_sum", loud)


def reused_steps() -> Fault:
    """Coins and noise of steps that are drawn once for all rounds."""

    def same(seed: int, run: str, plan: str, round_: int, purpose: Purpose, *counter: int) -> Source:
        return run_source(seed, run, plan, 1 if purpose == Purpose.STEPS else round_, purpose, *counter)

    return patch.object(loop, "run_source", same)


def reused_step_noise() -> Fault:
    """Noise of steps that is drawn once for all rounds, with coins of their own."""

    class Mixed(Seeded):
        def __init__(self, now: Any, first: Any) -> None:
            object.__setattr__(self, "rng", now.rng)
            object.__setattr__(self, "gaussian", first.gaussian)

    def same(seed: int, run: str, plan: str, round_: int, purpose: Purpose, *counter: int) -> Source:
        if purpose != Purpose.STEPS:
            return run_source(seed, run, plan, round_, purpose, *counter)
        return Mixed(*(run_source(seed, run, plan, each, purpose, *counter) for each in (round_, 0)))

    return patch.object(loop, "run_source", same)


RECORD_FAULTS = [
    (quiet_steps, LESS_NOISE),
    (loud_records, FOUND),
    (frequent_records, OFTEN),
    (largest_gradient_number, FOUND),
    (reused_steps, ODD_TURNS),
    (reused_step_noise, FOUND),
    (paired_noise, DIRECTION),
]


@pytest.mark.parametrize(("fault", "said"), RECORD_FAULTS)
def test_a_fault_in_noisy_steps_is_found(fault: Callable[[], Fault], said: str) -> None:
    people = Population.of([1.0, 1.0, 8.0, 8.0], 1e-5, 10)
    plan = make_plan("concert_records", people, {"rounds": 4, "rate": 0.5, "clip": 1.0})
    certificate = certify(plan, people)
    assert audit(plan, people, certificate, games=60, against=("server",)).contradictions == ()
    with fault():
        assert said in audit(plan, people, certificate, games=60, against=("server",)).contradictions
