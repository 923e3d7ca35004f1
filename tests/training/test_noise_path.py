"""From plan to noise: whatever plan is valid and certifies gets the noise that its accountant assumed."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discretion.accounting import certify
from discretion.errors import InputError, PlanError
from discretion.plan.combine import Combine
from discretion.plan.grid import Grid
from discretion.plan.phase import LARGEST, SMALLEST, Clipping, Phase, Quantile
from discretion.plan.plan import Plan
from discretion.plan.population import Population
from discretion.randomness.sources import Seeded
from discretion.training.orders import Updates
from discretion.training.release import LARGEST_SCALE, ROUNDED, clipped_sums, length, release, server_noise
from discretion.training.server_update import Server

sizes = st.floats(math.log(SMALLEST), math.log(LARGEST)).map(
    lambda power: min(max(math.exp(power), SMALLEST), LARGEST)
)
sizes |= st.sampled_from([SMALLEST, 1.0, LARGEST])


@dataclass(frozen=True)
class Recorder(Seeded):
    """A source that draws zeros, and writes down of which standard deviation."""

    rng: np.random.Generator = field(default_factory=np.random.default_rng)
    drawn: list[float] = field(default_factory=list)

    def gaussian(self, size: int, std: float) -> np.ndarray:
        self.drawn.append(std)
        return np.zeros(size)


def zeros(asked: np.ndarray) -> Iterator[Updates]:
    yield Updates(asked, np.zeros((len(asked), 2), np.float32))


def delivered(plan: Plan, scale: float, answering: np.ndarray) -> np.ndarray:
    """(N,) the standard deviation of the noise on the pool of each client, in one round."""
    (phase,) = plan.phases
    asked = np.repeat(np.arange(len(phase.rate)), np.ceil(phase.expected).astype(np.int64))
    servers = [Recorder() for _ in range(len(phase.noise) + 1)]
    own: dict[int, Recorder] = {}
    answers = zeros(asked[answering[asked]])
    sums, _ = release(
        plan, phase, 2, scale, asked, answers, servers.__getitem__, lambda i, _: own.setdefault(i, Recorder())
    )
    assert sums is not None and np.isfinite(sums).all()
    merged = plan.merges(phase)
    by_server = np.array([math.hypot(*source.drawn) for source in servers[:-1]])
    brought = [
        [std for i in own if phase.pool[i] == p for std in own[i].drawn] for p in range(len(by_server))
    ]
    by_clients = np.array([math.hypot(*each) for each in brought])
    if merged:  # the weighted sum has the noise of all pools
        total = math.hypot(by_server[0], *(abs(phase.weight) * by_clients).tolist())
        with np.errstate(divide="ignore", invalid="ignore"):
            alone = total / np.abs(phase.weight)
        return np.asarray(
            np.where(phase.weight == 0, math.inf, alone)[phase.pool]
        )  # of weight 0 nothing is released
    return np.asarray(np.hypot(by_server, by_clients)[phase.pool])


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    clients = draw(st.integers(1, 4))
    own = draw(st.booleans())
    pools = clients if own else draw(st.integers(1, 2))

    def column(of: st.SearchStrategy[float], length: int) -> np.ndarray:
        return np.array(draw(st.lists(of, min_size=length, max_size=length)))

    noise_at: Any = draw(st.sampled_from(["server", "clients", "secure_sum"]))
    public = draw(st.booleans())
    quantile = noise_at == "server" and draw(st.booleans())
    most = 1 if quantile or not own else 1000
    turns = column(st.integers(0, most), clients) if public else None
    rates = np.ones(clients) if public else column(st.sampled_from([0.0, 1e-300, 0.5, 1.0]), clients)

    def near(base: float) -> st.SearchStrategy[float]:  # farther apart, sums would lose the shortest
        return st.floats(1, 100).map(lambda times: min(base * times, LARGEST))

    clip, weight = draw(sizes | st.just(math.inf)), near(draw(sizes))
    phase = Phase(
        rounds=1,
        rate=rates,
        clip=np.full(clients, clip) if clip == math.inf else column(near(clip) | st.just(0.0), clients),
        noise=column(sizes | st.just(0.0), pools),
        pool=np.arange(clients) if own else np.array(draw(st.permutations(range(clients)))) % pools,
        weight=column(weight | weight.map(lambda x: -x) | st.just(0.0), pools),
        turns=turns,
    )
    return Plan(
        "made",
        tuple(f"c{i}" for i in range(clients)),
        (phase,),
        noise_at=noise_at,
        adjacency=draw(st.sampled_from(["add_remove", "replace"])) if public else "add_remove",
        promise=draw(st.sampled_from(["public", "clients", "server"])),
        colluding=draw(st.integers(0, 3)),
        dropout=draw(st.sampled_from([0.0, 0.5])) if noise_at == "secure_sum" else 0.0,
        clipping=Clipping(quantile=Quantile(0.5, draw(sizes), draw(sizes)) if quantile else None),
        combine=Combine("top_k", (0.5,) * pools) if draw(st.booleans()) else Combine(),
    )


@settings(max_examples=400, deadline=None)
@given(plans(), st.sampled_from([1 / LARGEST_SCALE, 1.0, LARGEST_SCALE]), st.lists(st.booleans(), min_size=4))
def test_every_client_gets_the_noise_that_was_accounted_for(
    plan: Plan, scale: float, answers: list[bool]
) -> None:
    """For each client with a finite epsilon, at extreme values, whoever answers."""
    (phase,) = plan.phases
    scale = scale if plan.clipping.quantile is not None else 1.0
    names = len(plan.clients)
    found = delivered(plan, scale, np.array(answers[:names]))
    population = Population(plan.clients, np.full(names, math.inf), np.full(names, 1e-5), np.full(names, 5))
    epsilon = certify(plan, population).epsilon["public"]
    with np.errstate(invalid="ignore"):
        assumed = plan.view(phase, "public")[1] * plan.sensitivity(phase) * scale
    taking = (phase.expected > 0) & (plan.sensitivity(phase) > 0) & np.isfinite(epsilon)
    times = np.sqrt(1 if phase.turns is None else phase.turns)  # each turn is a release of its own
    taking &= np.isfinite(phase.clip)  # without a clip, no noise is assumed
    assert (found >= assumed * times * (1 - ROUNDED))[taking].all()


@pytest.mark.parametrize("weight", [1e-170, 1e-21, 1e21, math.inf, math.nan, -1e-170])
def test_weights_that_lose_the_noise_are_refused(weight: float) -> None:
    """A weight of 1e-170 used to be certified at a small epsilon, and its square is 0: no noise was drawn."""
    with pytest.raises(PlanError, match="weight must be 0, or from 1e-20 to 1e\\+20, or minus that, found"):
        own_pools(weight=np.array([weight, weight]))


def own_pools(**more: Any) -> Phase:
    two = {"clip": np.ones(2), "noise": np.full(2, 50.0), "weight": np.ones(2), "pool": np.arange(2)}
    return Phase(**{"rounds": 1, "rate": np.ones(2), **two, **more})


LONG = 2.0**66


@pytest.mark.parametrize("clips", [(1.0, 1e20, 1e20), (1.0, math.inf, math.inf), (1.0, 1.0, 1e17)])
@pytest.mark.parametrize("own", [True, False])
def test_noise_that_floats_lose_beside_longer_clips_does_not_count(
    clips: tuple[float, ...], own: bool
) -> None:
    """Certified at epsilon 0.34, such a plan released one number with client a and another without it: beside
    2^66 and 8191.5 of two others, the noise was less than half of a unit in the last place."""
    clip, people = np.array(clips), Population.of([1.0, math.inf, math.inf])
    phase = Phase.one_pool(1, np.ones(3), clip, 10.0)
    if own:
        phase = Phase(1, np.ones(3), clip, np.array([10.0, 0, 0]), pool=np.arange(3), weight=np.ones(3))
    plan = Plan("made", people.client, (phase,))
    assert certify(plan, people).spent[0] > 20
    if own:  # pools that are released each on its own are summed with nobody
        assert certify(replace(plan, combine=Combine("top_k", (0.5,) * 3)), people).spent[0] < 0.5
    near = replace(phase, clip=np.array([1.0, 1e6, 1e6]))
    assert certify(replace(plan, phases=(near,)), people).spent[0] < 0.5


def test_many_updates_in_a_sum_are_charged_for_their_rounding() -> None:
    """Coins count as often as they come up, public turns all."""
    everybody, few = np.ones(200_000), np.full(200_000, 0.01)
    names = tuple(f"c{i}" for i in range(len(few)))
    phase = Phase.one_pool(1, few, everybody, 10.0)
    assert (Plan("made", names, (phase,)).sensitivity(phase) == 1).all()
    phase = Phase.one_pool(1, everybody, everybody, 10.0)
    found = Plan("made", names, (phase,)).sensitivity(phase)
    assert (found > 1).all() and found.max() < 1 + 1e-4


@pytest.mark.parametrize("length", [LONG, math.nan, 9.0])
def test_a_hand_out_that_is_too_long_counts_as_not_answered(length: float) -> None:
    """Beside it, the sum would lose the noise of the others by rounding."""
    phase = Phase.one_pool(1, np.ones(3), np.ones(3), 1.0)
    plan = Plan("made", ("a", "b", "c"), (phase,), noise_at="clients")
    change = np.array([[0.5, 0.5], [length, 0.0], [8.0, 0.0]], np.float32)
    sums, _, shares = clipped_sums(
        plan,
        phase,
        1.0,
        iter([Updates(np.arange(3), change, handed_out=True)]),
        np.arange(3),
        2,
        lambda client, turn: Recorder(),
    )
    assert shares.tolist() == [1, 0, 1] and sums.tolist() == [[8.5, 0.5]]


@pytest.mark.parametrize("weight", [1e-170, 1e-323])
def test_a_pool_without_its_noise_is_not_released(weight: float) -> None:
    """Even if such a weight passed validation: its square would be 0, its product with the noise may be."""
    phase, missing = own_pools(), np.ones(2)
    object.__setattr__(phase, "weight", np.array([weight, weight]))
    plan = Plan("made", ("a", "b"), (phase,))
    np.testing.assert_allclose(server_noise(plan, phase, missing, 1.0), weight * 50 * math.sqrt(2), rtol=0.01)
    object.__setattr__(phase, "noise", np.full(2, 1e-200))
    with pytest.raises(PlanError, match="noise of pool 0 cannot be drawn.*Nothing was released"):
        server_noise(plan, phase, missing, 1.0)
    object.__setattr__(phase, "weight", np.ones(2))
    object.__setattr__(phase, "noise", np.array([1.0, 1e300]))
    with pytest.raises(PlanError, match="noise of pool . cannot be drawn"):
        server_noise(plan, phase, missing, 1e200)


@given(st.lists(st.floats(-1e100, 1e100), min_size=1, max_size=9))
def test_lengths_neither_underflow_nor_overflow(numbers: list[float]) -> None:
    found, expected = length(np.array(numbers)), math.hypot(*numbers)
    assert found.shape == (1,)
    np.testing.assert_allclose(found[0], expected, rtol=1e-14, atol=5e-324)


@pytest.mark.parametrize(
    "bad",
    [{"learning_rate": x} for x in (1e170, 1e-170, 0.0, -1.0, math.nan, math.inf)]
    + [{name: x} for name in ("momentum", "adaptive", "average") for x in (-0.1, 1.0, 1e170, math.nan)],
)
def test_servers_that_cannot_be_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(InputError, match="invalid server optimizer: found .*expected a learning rate from"):
        Server(**bad)


@settings(max_examples=30, deadline=None)
@given(st.integers(-40, 40), st.floats(-3, 3))
def test_noise_on_a_grid_has_its_std_at_any_scale(power: int, more: float) -> None:
    step = 2.0**power
    phase = Phase.one_pool(1, np.ones(2), np.full(2, step * 100), step * 10.0**more * 10)
    plan = Plan("made", ("a", "b"), (phase,)).on_grid(step, 4000)
    (phase,) = plan.phases
    updates = iter([Updates(np.zeros(1, np.int64), np.zeros((1, 4000), np.float32))])
    source = Seeded(np.random.default_rng(5))
    sums, _ = release(
        plan, phase, 4000, 1.0, np.zeros(1, np.int64), updates, lambda _: source, lambda *_: source
    )
    assert sums is not None
    expected = math.sqrt(phase.noise[0] ** 2 + step**2 / 12)  # rounding adds a little
    assert sums.std() == pytest.approx(expected, rel=0.06 if more > -1.5 else math.inf)
    np.testing.assert_array_equal(sums / step, np.rint(sums / step))


def test_noise_beyond_a_grid_is_refused_before_the_run() -> None:
    phase = Phase.one_pool(1, np.ones(2), np.ones(2), 1e20)
    with pytest.raises(PlanError, match="noise on a grid must be at most 2\\^50 steps"):
        replace(Plan("made", ("a", "b"), (phase,)), grid=Grid(2.0**-20, 4))
