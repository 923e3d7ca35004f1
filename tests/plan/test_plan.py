"""A plan says exactly what is released: nothing in it can be changed, lost or mistaken unnoticed."""

import json
import math
from dataclasses import fields, replace
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from discretion.errors import PlanError
from discretion.jsonfile import dump
from discretion.plan.combine import SUM, By, Combine
from discretion.plan.float_sums import rounding
from discretion.plan.grid import Grid
from discretion.plan.names import expected_of
from discretion.plan.phase import LARGEST, SMALLEST, Clipping, Phase, Quantile
from discretion.plan.plan import ADVERSARIES, Accounting, NoiseAt, Plan, Randomness
from discretion.plan.plan_json import FORMAT
from discretion.plan.selection_rules import READS, Reading
from discretion.plan.steps import Adjacency

rates = st.floats(0, 1)
noises = st.just(0.0) | st.floats(SMALLEST, 1e-3 * LARGEST)
clips = noises | st.just(math.inf)  # an infinite clip is no clip
weights = noises | noises.map(lambda weight: -weight)
never_or_always = st.sampled_from([0.0, 1.0])


@st.composite
def phases(
    draw: st.DrawFn,
    clients: int,
    noise_at: str = "server",
    coins: bool = True,
    clip: st.SearchStrategy[float] = clips,
    most_turns: int = 5,
    reads: bool = False,
    by_pool: bool = False,
) -> Phase:
    """Of any kind that goes with this place of noise; without coins nothing in it is secret."""
    own = noise_at == "steps" or draw(st.booleans())
    pools = clients if own else draw(st.integers(1, 3))

    def column(of: st.SearchStrategy[Any], length: int = clients) -> np.ndarray:
        # few distinct values, so that clients share classes
        few = draw(st.lists(of, min_size=1, max_size=3))
        return np.array(draw(st.lists(st.sampled_from(few), min_size=length, max_size=length)))

    turns = not by_pool and draw(st.booleans())
    secret = rates if coins else never_or_always
    rate = column(never_or_always if noise_at == "steps" else secret)
    pool = np.arange(clients) if own else column(st.integers(0, pools - 1))
    bounds = column(clip)
    if by_pool:  # a whole number of each pool, of clients alike
        members = np.bincount(pool, minlength=pools)
        number = [draw(st.sampled_from(range(0, n + 1, 1 if coins else max(n, 1)))) for n in members.tolist()]
        rate, bounds = (np.array(number) / np.maximum(members, 1))[pool], column(clip, pools)[pool]
    phase = Phase(
        rounds=draw(st.integers(1, 10**5)),
        rate=np.ones(clients) if turns else rate,
        clip=bounds,
        noise=column(noises, pools),
        pool=pool,
        weight=column(weights, pools),
        turns=column(st.integers(0, most_turns if own else 1)) if turns else None,
        batch=column(secret) if noise_at == "steps" else None,
        steps=draw(st.integers(1, 100)) if noise_at == "steps" else 1,
        read=column(noises) if reads else None,
    )
    assume(noise_at == "steps" or not rounding(phase, own).any())
    return phase


def combines(parts: tuple[Phase, ...]) -> st.SearchStrategy[Combine]:
    """All that fit these phases."""
    several = {len(phase.noise) for phase in parts}
    ways = [st.just(SUM)]
    if len(several) == 1:
        shares = st.lists(st.floats(0.01, 1), min_size=min(several), max_size=min(several))
        by = st.sampled_from(get_args(By))
        ways.append(st.builds(lambda keep, by: Combine("top_k", tuple(keep), by), shares, by))
    if min(several) > 1 and not any(phase.own_pools for phase in parts):
        ways.append(st.builds(lambda memory: Combine("project", memory=memory), st.integers(1, 9)))
    return st.one_of(ways)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Of every kind that there is."""
    name = st.text(min_size=1, max_size=100).filter(lambda name: not expected_of(name))
    clients = draw(st.lists(name, min_size=1, max_size=8, unique=True))
    parameter = st.one_of(name, weights, st.integers(), st.booleans())
    noise_at = draw(st.sampled_from(get_args(NoiseAt)))
    adjacency = draw(st.sampled_from(get_args(Adjacency)))
    accounting = draw(st.sampled_from(get_args(Accounting)))
    fixed_size = accounting == "paper" and noise_at != "steps" and draw(st.booleans())
    quantile = noise_at == "server" and draw(st.booleans())
    on_grid = noise_at != "steps" and not quantile and draw(st.booleans())
    positive = st.floats(1e-3, 1e3)
    reading = None
    if noise_at == "steps" and draw(st.booleans()):
        reading = Reading(draw(st.sampled_from(list(READS))), draw(st.integers(1, 9)), draw(positive))
    of = phases(
        len(clients),
        noise_at,
        coins=adjacency == "add_remove",
        clip=st.just(0.0) | st.floats(1e-6, 1000.0) if on_grid else clips,
        most_turns=1 if quantile or reading else 5,
        reads=reading is not None,
        by_pool=fixed_size,
    )
    parts = tuple(draw(st.lists(of, min_size=1, max_size=3)))
    grid = Grid(2.0 ** draw(st.integers(-10, 3)), draw(st.integers(1, 10**6)))
    fits = all((phase.noise <= grid.most_noise).all() and not phase.own_pools for phase in parts)
    if noise_at != "server":
        own = [phase.noise[phase.pool] / np.sqrt(phase.holders) / grid.step for phase in parts]
        fits = fits and all(((each == 0) | (each >= 12)).all() and each.max() < 2**24 for each in own)
    on_grid = on_grid and fits
    return Plan(
        method=draw(st.sampled_from(["one", "ünïcode"])),
        clients=tuple(clients),
        phases=parts,
        adjacency=adjacency,
        noise_at=noise_at,
        promise=draw(st.sampled_from(ADVERSARIES)),
        colluding=draw(st.integers(0, 10)),
        sampling="fixed_size" if fixed_size else "poisson",
        randomness=draw(st.sampled_from(get_args(Randomness))),
        accounting=accounting,
        clipping=Clipping(
            () if on_grid else tuple(draw(st.lists(st.integers(1, 1000), max_size=3))),
            Quantile(draw(st.floats(0.1, 0.9)), draw(positive), draw(positive)) if quantile else None,
        ),
        grid=grid if on_grid else None,
        reading=reading,
        combine=draw(combines(parts)),
        parameters=draw(st.dictionaries(st.sampled_from(["rate", "clip"]), parameter)),
    )


def two_pools() -> Phase:
    return Phase(
        rounds=4,
        rate=np.array([0.5, 0.25, 1.0]),
        clip=np.array([1.0, 2.0, 0.0]),
        noise=np.array([3.0, 5.0]),
        pool=np.array([0, 1, 1]),
        weight=np.array([0.1, 0.2]),
    )


def plan_of(*parts: Phase) -> Plan:
    return Plan("made", tuple(f"c{i}" for i in range(len(parts[0].rate))), parts)


# phases


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"rounds": 0}, "rounds must be a whole number from 1 to 1,000,000, found 0"),
        ({"rounds": -1}, "rounds must be a whole number from 1"),
        ({"rounds": math.nan}, "rounds"),
        ({"rounds": math.inf}, "rounds"),
        ({"rounds": 2.5}, "rounds"),
        ({"rate": np.array([0.5, 0.25])}, "one entry for each client"),
        ({"clip": np.array([1.0, 2.0])}, "one entry for each client"),
        ({"pool": np.array([0, 1])}, "one entry for each client"),
        ({"noise": np.array([3.0, 5.0, 1.0])}, "one entry for each pool"),
        ({"weight": np.array([3.0])}, "one entry for each pool"),
        ({"rate": np.array([0.5, 0.25, 1 + 1e-15])}, "rate must lie between 0 and 1, found"),
        ({"rate": np.array([0.5, -1e-300, 1])}, "rate must lie between 0 and 1, found"),
        ({"rate": np.array([0.5, np.nan, 1])}, "rate must lie between 0 and 1, found"),
        ({"clip": np.array([1.0, 2.0, -1e-300])}, "clip must be 0, infinite, or from"),
        ({"clip": np.array([1.0, 2.0, np.nan])}, "clip must be 0, infinite, or from"),
        ({"clip": np.array([1.0, 2.0, -np.inf])}, "clip must be 0, infinite, or from"),
        ({"clip": np.array([1.0, 2.0, 5e-324])}, "clip must be 0, infinite, or from 1e-20 to 1e+20"),
        ({"clip": np.array([1.0, 2.0, 1e300])}, "clip must be 0, infinite, or from"),
        ({"noise": np.array([3.0, 63 * 5e-324])}, "noise must be 0, or from 1e-20 to 1e+20"),
        ({"noise": np.array([3.0, -1.0])}, "noise must be 0, or from"),
        ({"noise": np.array([3.0, np.inf])}, "noise must be 0, or from"),
        ({"noise": np.array([np.nan, 1.0])}, "noise must be 0, or from"),
        (
            {"pool": np.array([0, 1, 2])},
            "pool must be the whole number of a pool with noise, from 0 to 1, found",
        ),
        (
            {"pool": np.array([0, -1, 1])},
            "pool must be the whole number of a pool with noise, from 0 to 1, found",
        ),
        ({"pool": np.array([0, 0.5, 1])}, "pool"),
        ({"weight": np.array([np.inf, 1.0])}, "weight must be 0, or from"),
        ({"weight": np.array([1.0, np.nan])}, "weight must be 0, or from"),
        ({"rate": np.full((3, 2), 0.5)}, "one entry for each client"),
        ({"steps": 0}, "steps must be a whole number, at least 1, found"),
        ({"steps": 2}, "several steps need batches"),
        ({"turns": np.ones(3, int)}, "a client with public turns must have rate 1"),
        ({"turns": np.ones(2, int)}, "one entry for each client"),
        ({"turns": np.array([1, 1, 2]), "rate": np.ones(3)}, "several turns must have a pool of its own"),
        ({"turns": np.array([1, 1, -1]), "rate": np.ones(3)}, "turns must be whole numbers, at least 0"),
        ({"turns": np.array([1, 1, 0.5]), "rate": np.ones(3)}, "turns must be whole numbers, at least 0"),
        ({"batch": np.ones(3), "rate": np.ones(3)}, "clients with batches must have pools of their own"),
        ({"rounds": 10**6 + 1}, "rounds must be a whole number from 1 to 1,000,000, found 1000001"),
        ({"read": np.ones(2)}, "one entry for each client"),
        ({"read": np.array([1.0, -1e-9, 1.0])}, "read must be 0, or from"),
        ({"read": np.array([1.0, np.nan, 1.0])}, "read must be 0, or from"),
        ({"read": np.array([1.0, 1e-170, 1.0])}, "read must be 0, or from"),
        ({"read": np.array([1.0, np.inf, 1.0])}, "read must be 0, or from"),
        ({"noise": np.full((2, 2), 0.5)}, "one entry for each pool"),
    ],
)
def test_a_phase_that_cannot_be_is_refused(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(PlanError, match="invalid phase: ") as caught:
        replace(two_pools(), **change)
    assert reason in str(caught.value)


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 10**400, 10**6])
def test_classes_beyond_the_clients_are_refused(number: int) -> None:
    record = json.loads(plan_of(two_pools()).to_json())
    record["class"][0] = number
    with pytest.raises(PlanError, match="expected one class number for each client"):
        Plan.from_json(json.dumps(record))


def test_a_plan_has_a_million_rounds_at_most() -> None:
    assert plan_of(replace(two_pools(), rounds=10**6)).rounds == 10**6
    with pytest.raises(PlanError, match="a plan must have at most 1,000,000 rounds, found 1000004"):
        plan_of(replace(two_pools(), rounds=10**6), two_pools())


def own_pools(**more: Any) -> Phase:
    """Two clients, released each on its own."""
    two = {"clip": np.ones(2), "noise": np.ones(2), "weight": np.ones(2), "pool": np.arange(2)}
    return Phase(**{"rounds": 3, "rate": np.ones(2), **two, **more})


@pytest.mark.parametrize("batch", [-0.1, 1.1, math.nan])
def test_batches_that_cannot_be_are_refused(batch: float) -> None:
    with pytest.raises(PlanError, match="batch must lie between 0 and 1"):
        own_pools(batch=np.array([0.5, batch]))


def test_whether_a_client_trains_on_batches_is_public() -> None:
    assert own_pools(batch=np.full(2, 0.5), rate=np.array([0.0, 1.0])).batch is not None
    with pytest.raises(PlanError, match="a client with batches must have rate 0 or 1"):
        own_pools(batch=np.full(2, 0.5), rate=np.array([0.5, 1.0]))


def test_counts_stay_exact() -> None:
    """Four rounds of 2^62 turns would be 2^64 releases: 0 in whole numbers of 64 bits, and free."""
    with pytest.raises(PlanError, match="rounds × turns × steps must be at most 2\\^40"):
        own_pools(rounds=10**6, turns=np.array([1, 2**62]))
    with pytest.raises(PlanError, match="rounds × turns × steps must be at most 2\\^40"):
        own_pools(rounds=10**6, turns=np.array([1, 4]), batch=np.ones(2), steps=2**20)


@pytest.mark.parametrize(
    "quantile", [(0.0, 0.2, 1.0), (1.0, 0.2, 1.0), (0.5, 0.0, 1.0), (0.5, 0.2, 0.0), (0.5, 0.2, math.inf)]
)
def test_a_quantile_that_cannot_be_is_refused(quantile: tuple[float, float, float]) -> None:
    with pytest.raises(PlanError, match="invalid quantile: .*expected a target between 0 and 1"):
        Quantile(*quantile)
    with pytest.raises(PlanError, match="invalid quantile: .*expected a target between 0 and 1"):
        Quantile(math.nan)


@pytest.mark.parametrize("layers", [(0,), (3, -1), (2.5,), (math.nan,), (math.inf,)])
def test_layers_that_cannot_be_are_refused(layers: tuple[int, ...]) -> None:
    with pytest.raises(PlanError, match="invalid layers: "):
        Clipping(layers)


def test_everything_that_is_wrong_with_a_phase_is_said() -> None:
    with pytest.raises(
        PlanError, match="rounds must be a whole number from 1.*; clip must be 0, infinite, or"
    ):
        replace(two_pools(), rounds=0, clip=np.array([1.0, -1.0, 1.0]))


def test_one_pool_divides_by_the_expected_number_of_updates() -> None:
    phase = Phase.one_pool(5, np.array([0.5, 0.25, 0.25]), np.array([1.0, 2.0, 3.0]), noise=4.0)
    assert phase.rounds == 5
    np.testing.assert_array_equal(phase.noise, [4.0])
    np.testing.assert_array_equal(phase.pool, [0, 0, 0])
    np.testing.assert_array_equal(phase.weight, [1.0])
    np.testing.assert_array_equal(Phase.one_pool(1, np.full(8, 0.25), np.ones(8), 1.0).weight, [0.5])


def test_one_pool_of_nobody_does_not_move_the_model() -> None:
    np.testing.assert_array_equal(Phase.one_pool(1, np.zeros(3), np.ones(3), 1.0).weight, [0.0])


def test_nobody_can_change_a_plan_later() -> None:
    """A certificate is of a digest: what is released must not move away from it."""
    rate, clip = np.full(2, 0.5), np.ones(2)
    plan = plan_of(Phase.one_pool(3, rate, clip, noise=1.0))
    digest = plan.digest()
    clip[1] = 100.0
    rate[1] = 1.0
    assert plan.digest() == digest
    assert plan.phases[0].clip[1] == 1.0 and plan.phases[0].rate[1] == 0.5
    phase = plan.phases[0]
    for column in (phase.rate, phase.clip, phase.noise, phase.pool, phase.weight):
        with pytest.raises(ValueError, match="read-only"):
            column[-1] = 0


# plans


def test_a_plan_needs_phases_and_one_entry_for_each_client() -> None:
    with pytest.raises(PlanError, match="at least one phase"):
        Plan("made", ("a",), ())
    with pytest.raises(PlanError, match="one entry for each of . clients"):
        Plan("made", ("a", "b"), (two_pools(),))
    with pytest.raises(PlanError, match="one entry for each of . clients"):
        plan_of(two_pools(), Phase.one_pool(1, np.ones(2), np.ones(2), 1.0))


def test_a_plan_of_nobody_or_of_one_client_twice_is_refused() -> None:
    with pytest.raises(PlanError):
        Plan("made", (), (Phase.one_pool(1, np.ones(0), np.ones(0), 1.0),))
    with pytest.raises(PlanError):
        Plan("made", ("a", "a"), (Phase.one_pool(1, np.ones(2), np.ones(2), 1.0),))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"colluding": -1}, "colluding must be a whole number from 0 to 2^53"),
        ({"colluding": 1.5}, "colluding must be a whole number from 0 to 2^53"),
        ({"colluding": math.inf}, "colluding must be a whole number from 0 to 2^53"),
        ({"noise_at": "steps"}, "exactly where the phases have batches"),
        ({"noise_at": "sever"}, "noise_at must be one of server, clients, secure_sum, steps"),
        ({"adjacency": "replace_one"}, "adjacency must be one of add_remove, replace"),
        ({"promise": "nobody"}, "promise must be one of public, clients, server"),
        ({"randomness": "good"}, "randomness must be one of seeded, cryptographic"),
        ({"sampling": "some"}, "sampling must be one of poisson, fixed_size"),
        ({"accounting": "loose"}, "accounting must be one of tight, paper"),
        ({"reading": Reading("norm", 1, 1.0)}, "selection by a statistic (reading) needs noise_at steps"),
        ({"grid": Grid(0.5, 3), "noise_at": "clients"}, "must be 0 or at least 12 steps"),
        ({"grid": Grid(0.5, 3), "noise_at": "secure_sum"}, "must be 0 or at least 12 steps"),
        ({"grid": Grid(0.5, 3), "noise_at": "secure_sum", "dropout": math.nan}, "dropout must be at least 0"),
        ({"grid": Grid(2.0**-40, 3), "noise_at": "secure_sum"}, "must stay within 2^31 steps"),
        ({"grid": Grid(0.5, 3), "noise_at": "steps"}, "a grid needs noise in sums of updates"),
        ({"combine": Combine("top_k", (0.5,))}, "top_k needs a share to keep of each pool"),
        ({"sampling": "fixed_size", "accounting": "paper"}, "one rate and clip for all clients"),
        ({"grid": Grid(0.5, 3), "clipping": Clipping((1, 2))}, "clients or secure_sum), flat clipping"),
        ({"grid": Grid(0.5, 3), "clipping": Clipping((), Quantile())}, "needs noise_at server, no grid"),
        ({"noise_at": "clients", "clipping": Clipping((), Quantile())}, "needs noise_at server, no grid"),
        ({"noise_at": "secure_sum", "clipping": Clipping((), Quantile())}, "needs noise_at server, no grid"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(PlanError, match="invalid plan: ") as caught:
        replace(plan_of(two_pools()), **change)
    assert reason in str(caught.value)


def test_what_does_not_go_with_pools_of_ones_own_is_refused() -> None:
    with pytest.raises(PlanError, match="a grid needs .*pools of several clients"):
        replace(plan_of(own_pools()), grid=Grid(0.5, 3))
    batches = own_pools(batch=np.full(2, 0.5))
    with pytest.raises(PlanError, match="exactly where the phases have batches"):
        plan_of(batches)
    with pytest.raises(PlanError, match="exactly where the phases have batches"):
        Plan("made", ("a", "b"), (batches, own_pools()), noise_at="steps")


def test_a_quantile_with_several_turns_is_refused() -> None:
    """All bits of a round get one noise: r turns would move their sum by r/2, and cost r², not r."""
    one = replace(plan_of(own_pools(turns=np.array([1, 0]))), clipping=Clipping((), Quantile()))
    assert one.steps().count.tolist() == [[3, 0]]
    with pytest.raises(PlanError, match="at most one turn"):
        replace(one, phases=(own_pools(turns=np.array([2, 1])),))


def test_a_statistic_is_read_of_whole_clients_once_a_round() -> None:
    """It is charged once a round: read in each of two turns, with other noise, it would cost twice that."""
    batch, read = np.full(2, 0.5), np.ones(2)
    assert own_pools(turns=np.array([1, 0]), batch=batch, read=read).read is not None
    with pytest.raises(PlanError, match="a client whose statistic is read must have at most one turn"):
        own_pools(turns=np.array([1, 2]), batch=batch, read=read)


def test_reading_and_its_noise_go_together() -> None:
    phase, reading = own_pools(batch=np.ones(2), read=np.ones(2)), Reading("norm", 1, 1.0)
    plan = Plan("made", ("a", "b"), (phase,), noise_at="steps", reading=reading)
    assert plan.reads == READS["norm"]
    assert replace(plan, phases=(own_pools(batch=np.ones(2)),), reading=None).reads == "nothing"
    reason = "selection by a statistic .* needs noise_at steps"
    with pytest.raises(PlanError, match=reason):
        replace(plan, reading=None)
    with pytest.raises(PlanError, match=reason):
        replace(plan, phases=(phase, own_pools(batch=np.ones(2))))
    with pytest.raises(PlanError, match=reason):
        Plan("made", ("a", "b"), (own_pools(read=np.ones(2)),), reading=reading)


@pytest.mark.parametrize("more", [{"turns": np.ones(2)}, {"batch": np.ones(2)}])
def test_a_fixed_number_is_drawn_of_whole_clients_without_turns(more: dict[str, Any]) -> None:
    kind: dict[str, Any] = {"accounting": "paper", "noise_at": "steps" if "batch" in more else "server"}
    assert Plan("made", ("a", "b"), (own_pools(**more),), **kind).sampling == "poisson"
    with pytest.raises(PlanError, match="turns or batches"):
        Plan("made", ("a", "b"), (own_pools(**more),), sampling="fixed_size", **kind)


def test_whoever_would_never_be_asked_is_not_drawn_with_others() -> None:
    """A fixed number is drawn of all in a pool alike, but a client of rate 0 is charged nothing."""
    phase = Phase.one_pool(3, np.array([0.0, 0.5, 0.5]), np.ones(3), 1.0)
    with pytest.raises(PlanError, match="one rate and clip for all clients"):
        replace(plan_of(phase), accounting="paper", sampling="fixed_size")


def test_a_zero_has_no_sign() -> None:
    """Clients in one class are written alike, so they must be alike to the last bit."""
    plan = plan_of(own_pools(weight=np.array([0.0, -0.0]), clip=np.array([-0.0, 0.0])))
    assert plan.classes.tolist() == [0, 0]
    assert Plan.from_json(plan.to_json()).digest() == plan.digest()


def test_sampling_a_fixed_number_is_refused_with_advice() -> None:
    by_pool = plan_of(Phase.one_pool(3, np.full(3, 2 / 3), np.ones(3), 1.0))
    with pytest.raises(PlanError, match="makes room for another.*independent coin.*poisson.*same expected"):
        replace(by_pool, sampling="fixed_size")
    record = record_of(by_pool) | {"sampling": "fixed_size"}
    with pytest.raises(PlanError, match="independent coin.*poisson"):
        Plan.from_json(json.dumps(record))


def test_rounds_and_cohort() -> None:
    plan = plan_of(two_pools(), Phase.one_pool(12, np.array([0.0, 0.5, 0.25]), np.ones(3), 1.0))
    assert plan.rounds == 16
    assert plan.cohort == pytest.approx((4 * 1.75 + 12 * 0.75) / 16)


def test_phase_of_finds_the_phase_of_each_round() -> None:
    plan = plan_of(
        replace(two_pools(), rounds=2), replace(two_pools(), rounds=1), replace(two_pools(), rounds=3)
    )
    assert [plan.phase_of(t) for t in range(1, 7)] == [0, 0, 1, 2, 2, 2]
    for beyond in (0, -1, 7):
        with pytest.raises(PlanError, match=f"found round {beyond}, expected a round from 1 to 6"):
            plan.phase_of(beyond)


def test_release_divides_the_noise_of_the_pool_by_the_clip() -> None:
    phase = two_pools()
    rate, multiplier = plan_of(phase).release(phase)
    np.testing.assert_array_equal(rate, phase.rate)
    np.testing.assert_array_equal(multiplier, [3.0 / 1.0, 5.0 / 2.0, math.inf])


@pytest.mark.parametrize(
    ("clip", "noise", "multiplier"),
    [
        (0.0, 1.0, math.inf),
        (-0.0, 1.0, math.inf),
        (0.0, 0.0, math.inf),  # who cannot change the sum loses nothing, even without noise
        (1.0, 0.0, 0.0),
        (1.0, -0.0, 0.0),
        (math.inf, 1.0, 0.0),  # without a clip no noise is enough
        (math.inf, 0.0, 0.0),
        (SMALLEST, SMALLEST, 1.0),
        (LARGEST, SMALLEST, SMALLEST / LARGEST),
    ],
)
def test_release_at_the_edges(clip: float, noise: float, multiplier: float) -> None:
    phase = Phase.one_pool(1, np.array([0.5]), np.array([clip]), noise)
    assert plan_of(phase).release(phase)[1].tolist() == [multiplier]


def test_without_a_promise_against_the_server_a_secure_sum_is_none() -> None:
    """It sees one answer, an update if the client's own coin says so, and a share of the noise."""
    phase = Phase.one_pool(1, np.full(4, 0.5), np.ones(4), 2.0)
    kept = replace(plan_of(phase), noise_at="secure_sum", promise="server", colluding=0)
    lost = replace(kept, promise="clients")
    assert kept.view(phase, "server")[1].tolist() == [2.0] * 4 == lost.view(phase, "clients")[1].tolist()
    rate, multiplier = lost.view(phase, "server")
    assert rate.tolist() == [0.5] * 4 and multiplier.tolist() == [1.0] * 4


@settings(max_examples=40, deadline=None)
@given(phases(4))
def test_release_never_promises_more_than_noise_over_clip(phase: Phase) -> None:
    _, multiplier = plan_of(phase).release(phase)
    assert not np.isnan(multiplier).any() and (multiplier >= 0).all()
    changes = phase.clip > 0
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(
            multiplier[changes], phase.noise[phase.pool[changes]] / phase.clip[changes]
        )
    assert np.isinf(multiplier[~changes]).all()


def test_steps_of_the_first_rounds() -> None:
    later = Phase.one_pool(3, np.array([0.1, 0.2, 0.3]), np.ones(3), 2.0)
    plan = plan_of(two_pools(), later)
    whole = plan.steps()
    assert whole.count[:, 0].tolist() == [4, 3]
    np.testing.assert_array_equal(whole.rate, [two_pools().rate, later.rate])
    np.testing.assert_array_equal(whole.multiplier, [[3.0, 2.5, math.inf], [2.0, 2.0, 2.0]])
    assert plan.steps(7).count[:, 0].tolist() == plan.steps(100).count[:, 0].tolist() == [4, 3]
    assert plan.steps(5).count[:, 0].tolist() == [4, 1]
    assert plan.steps(4).count[:, 0].tolist() == [4]
    assert plan.steps(1).count[:, 0].tolist() == [1]
    nothing = plan.steps(0)
    assert nothing.rate.shape == nothing.multiplier.shape == (0, 3) and nothing.count.shape == (0, 3)


# classes


@settings(max_examples=40, deadline=None)
@given(plans())
def test_clients_are_in_one_class_just_where_they_are_treated_alike(plan: Plan) -> None:
    def treatment(i: int) -> tuple[float, ...]:
        columns = ((p.rate, p.clip, p.batch, p.read, *pools(p)) for p in plan.phases)
        return tuple(float(c[i]) for several in columns for c in several if c is not None)

    def pools(phase: Phase) -> tuple[np.ndarray, ...]:
        return (phase.noise, phase.weight) if phase.own_pools else (phase.pool,)

    number: dict[tuple[float, ...], int] = {}
    expected = [number.setdefault(treatment(i), len(number)) for i in range(len(plan.clients))]
    assert plan.classes.tolist() == expected


def test_classes_of_many_clients_over_many_phases() -> None:
    rng = np.random.default_rng(0)
    parts = [Phase.one_pool(1, rng.random(2000), rng.random(2000), 1.0) for _ in range(20)]
    assert plan_of(*parts).classes.tolist() == list(range(2000))


# JSON and digest


@settings(max_examples=40, deadline=None)
@given(plans())
def test_json_and_back_is_exact(plan: Plan) -> None:
    text = plan.to_json()
    again = Plan.from_json(text)
    for name in (f.name for f in fields(Plan) if f.name != "phases"):
        assert getattr(again, name) == getattr(plan, name), name
    assert len(again.phases) == len(plan.phases)
    for one, other in zip(again.phases, plan.phases, strict=True):
        for name in (f.name for f in fields(Phase)):
            ours, theirs = getattr(one, name), getattr(other, name)
            np.testing.assert_array_equal(ours, theirs)
            assert getattr(ours, "dtype", None) == getattr(theirs, "dtype", None)
    for who in (None, *ADVERSARIES):
        before, after = plan.steps(against=who), again.steps(against=who)
        assert (after.unit, after.adjacency) == (before.unit, before.adjacency) == (plan.unit, plan.adjacency)
        for name in ("rate", "multiplier", "count"):
            np.testing.assert_array_equal(getattr(after, name), getattr(before, name))
    assert again.to_json() == text
    assert again.digest() == plan.digest()


def test_json_is_readable_by_every_parser() -> None:
    phase = Phase.one_pool(1, np.full(3, 0.1), np.array([math.inf, 1.0, math.inf]), 0.0)

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    record = json.loads(plan_of(phase).to_json(), parse_constant=refuse)
    assert record["format"] == FORMAT
    assert record["class"] == [0, 1, 0]
    assert record["phases"] == [
        {"rounds": 1, "rate": [0.1, 0.1], "clip": ["inf", 1.0], "pool": [0, 0], "noise": [0.0]}
        | {"weight": phase.weight.tolist(), "turns": None, "batch": None, "steps": 1, "read": None}
    ]
    assert record["reading"] is record["grid"] is None
    combine = {"rule": "sum", "keep": [], "by": "largest", "memory": 0, "average": 0.0}
    assert record["combine"] == combine


def test_dump_writes_infinities_as_words_and_refuses_what_is_not_a_number() -> None:
    assert json.loads(dump({"a": [math.inf, {"b": -math.inf}], "c": 1})) == {
        "a": ["inf", {"b": "-inf"}],
        "c": 1,
    }
    with pytest.raises(ValueError, match="JSON"):
        dump({"a": math.nan})


@settings(max_examples=60, deadline=None)
@given(plan=plans(), data=st.data())
def test_digest_changes_with_any_single_number(plan: Plan, data: st.DataObject) -> None:
    number = data.draw(st.integers(0, len(plan.phases) - 1))
    phase = plan.phases[number]
    columns = [name for name in (f.name for f in fields(Phase)) if getattr(phase, name) is not None]
    name = data.draw(st.sampled_from(columns))
    if name in ("rounds", "steps"):
        value = getattr(phase, name) + 1
    else:
        value = getattr(phase, name).copy()
        i = data.draw(st.integers(0, len(value) - 1))
        before = value[i]
        if name == "pool":
            value[i] = (before + 1) % len(phase.noise)
        elif name == "turns":
            value[i] = 1 - min(before, 1)
        else:
            value[i] = np.nextafter(before, 0.5 if before != 0.5 else 0.25)
        assume(value[i] != before)
    try:
        other = replace(phase, **{name: value})
        changed = replace(plan, phases=(*plan.phases[:number], other, *plan.phases[number + 1 :]))
    except PlanError:  # a rate next to 1 with public turns, another pool with batches, one rate in a pool
        assume(False)
    assert changed.digest() != plan.digest()


def test_digest_changes_with_any_field() -> None:
    plan = plan_of(two_pools())
    quantile = replace(plan, clipping=Clipping((), Quantile()))
    papers = replace(plan_of(Phase.one_pool(3, np.full(3, 2 / 3), np.ones(3), 1.0)), accounting="paper")
    assert replace(papers, sampling="fixed_size").digest() != papers.digest()
    reads = Plan(
        "made",
        ("c0", "c1"),
        (own_pools(batch=np.ones(2), read=np.ones(2)),),
        noise_at="steps",
        reading=Reading("norm", 1, 1.0),
    )
    changed: dict[str, list[Plan]] = {
        "method": [replace(plan, method="other")],
        "clients": [replace(plan, clients=("c0", "c2", "c1"))],
        "phases": [replace(plan, phases=(two_pools(), two_pools()))],
        "adjacency": [replace(plan, adjacency="replace")],
        "noise_at": [replace(plan, noise_at="clients"), replace(plan, noise_at="secure_sum")],
        "promise": [replace(plan, promise="public"), replace(plan, promise="server")],
        "colluding": [replace(plan, colluding=2)],
        "dropout": [replace(plan, noise_at="secure_sum", dropout=share) for share in (0.1, 0.2)],
        "sampling": [replace(papers, sampling="fixed_size")],
        "randomness": [replace(plan, randomness="cryptographic")],
        "accounting": [papers],
        "clipping": [
            replace(plan, clipping=Clipping((3, 4))),
            replace(plan, clipping=Clipping((4, 3))),
            quantile,
            *(
                replace(plan, clipping=Clipping((), replace(Quantile(), **{f.name: 0.25})))
                for f in fields(Quantile)
            ),
        ],
        "grid": [replace(plan, grid=Grid(step, size)) for step, size in ((0.5, 3), (0.25, 3), (0.5, 4))],
        "reading": [
            reads,
            replace(reads, reading=Reading("diversity", 1, 1.0)),
            replace(reads, reading=Reading("norm", 2, 1.0)),
            replace(reads, reading=Reading("norm", 1, 2.0)),
        ],
        "combine": [
            replace(plan, combine=Combine("top_k", (0.5, 1.0))),
            replace(plan, combine=Combine("top_k", (1.0, 0.5))),
            replace(plan, combine=Combine("top_k", (0.5, 1.0), "last_step")),
            replace(plan, combine=Combine("project", memory=1)),
            replace(plan, combine=Combine("project", memory=2)),
        ],
        "parameters": [replace(plan, parameters={"clip": 1.0}), replace(plan, parameters={"clip": 2.0})],
    }
    assert set(changed) == {f.name for f in fields(Plan)}
    others = [other for several in changed.values() for other in several]
    assert len({plan.digest(), *(other.digest() for other in others)}) == 1 + len(others)


def test_digest_changes_with_clients_method_parameters_and_order_of_phases() -> None:
    one, two = two_pools(), replace(two_pools(), rounds=7)
    plan = replace(plan_of(one, two), parameters={"clip": 1.0})
    others = [
        replace(plan, method="other"),
        replace(plan, clients=("c0", "c2", "c1")),
        replace(plan, parameters={"clip": 2.0}),
        replace(plan, parameters={}),
        replace(plan, phases=(two, one)),
        replace(plan, phases=(one,)),
        replace(plan, phases=(replace(one, rounds=2), replace(one, rounds=2), two)),
    ]
    assert len({plan.digest(), *(other.digest() for other in others)}) == 1 + len(others)
    assert plan.digest() == replace(plan, phases=(two_pools(), two)).digest()


def test_whole_numbers_are_the_same_numbers() -> None:
    """Written and read again, a plan keeps its digest, whichever kinds of numbers it was made from."""
    phase = Phase.one_pool(np.int64(2), np.array([1, 1]), np.array([1, 2]), 1)  # type: ignore[arg-type]
    plan = Plan(
        "made",
        ("a", "b"),
        (phase,),
        colluding=np.int64(2),  # type: ignore[arg-type]
        clipping=Clipping((np.int64(3), 4.0)),  # type: ignore[arg-type]
        parameters={"rounds": np.int64(2)},  # type: ignore[dict-item]
    )
    assert Plan.from_json(plan.to_json()).digest() == plan.digest()


def test_rounds_among_the_parameters_are_a_whole_number() -> None:
    for odd in (True, "2", 2.5):
        with pytest.raises(PlanError, match="rounds must be a whole number"):
            replace(plan_of(two_pools()), parameters={"rounds": odd})
    text = replace(plan_of(two_pools()), parameters={"rounds": 2}).to_json()
    with pytest.raises(PlanError, match="rounds must be a whole number, found {'rounds': True}"):
        Plan.from_json(text.replace('"rounds": 2}', '"rounds": true}', 1))


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_parameters_come_back_as_numbers_or_are_refused(value: float) -> None:
    try:
        again = Plan.from_json(replace(plan_of(two_pools()), parameters={"clip": value}).to_json())
    except PlanError:
        return
    assert again.parameters == {"clip": value}


def record_of(plan: Plan) -> dict[str, Any]:
    return dict(json.loads(plan.to_json()))


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", "null", '{"format": "discretion-plan/1"}', f'{{"format": "{FORMAT}"}}']
)
def test_what_is_not_a_plan_is_refused(text: str) -> None:
    with pytest.raises(PlanError, match="not a Discretion plan"):
        Plan.from_json(text)


@pytest.mark.parametrize("value", ["discretion-plan/1", "discretion-certificate/2", None, 1])
def test_a_plan_of_another_format_is_refused(value: object) -> None:
    record = record_of(plan_of(two_pools())) | {"format": value}
    with pytest.raises(PlanError, match=f"format.*{FORMAT}"):
        Plan.from_json(json.dumps(record))


def test_a_plan_with_a_part_too_many_is_refused() -> None:
    """Whoever wrote it may have meant something by it."""
    record = record_of(plan_of(two_pools()))
    with pytest.raises(PlanError, match="not a Discretion plan.*sensitivity"):
        Plan.from_json(json.dumps(record | {"sensitivity": 0.1}))
    record["phases"][0]["sensitivity"] = 0.1
    with pytest.raises(PlanError, match="not a Discretion plan.*sensitivity"):
        Plan.from_json(json.dumps(record))


@pytest.mark.parametrize("key", ["class", "phases", "clients", "method", "parameters", "unit", "adjacency"])
def test_a_plan_with_a_part_missing_is_refused(key: str) -> None:
    record = record_of(plan_of(two_pools()))
    del record[key]
    with pytest.raises(PlanError, match=key):
        Plan.from_json(json.dumps(record))


@pytest.mark.parametrize(
    "key", ["unit", "adjacency", "noise_at", "promise", "sampling", "randomness", "colluding", "clipping"]
)
@pytest.mark.parametrize("value", ["another", None, [], -1])
def test_a_plan_of_another_kind_is_refused(key: str, value: object) -> None:
    record = record_of(plan_of(two_pools())) | {key: value}
    with pytest.raises(PlanError, match=key):
        Plan.from_json(json.dumps(record))


def test_the_unit_must_be_what_the_noise_protects() -> None:
    record = record_of(plan_of(two_pools())) | {"unit": "record"}
    with pytest.raises(PlanError, match="found unit .record., expected .client."):
        Plan.from_json(json.dumps(record))


@pytest.mark.parametrize(
    "turns",
    [
        [[-1], [5]],  # would count from the end
        [[0, 0], [1, 5]],
        [[1, 0], [1, 5]],
        [[0, 1], [5]],  # would hold for both
        [[0], [5, 5]],
        [[0, 1], [1, 2, 3]],
        [[2], [1]],
        [[0], [-1]],
        [[0], [2**70]],
        [[2**70], [1]],
        [[0]],
        [[0.5], [1]],
        [["a"], [1]],
        "all",
    ],
)
def test_turns_that_cannot_be_are_refused(turns: object) -> None:
    record = record_of(plan_of(own_pools(turns=np.array([0, 3]))))
    assert record["phases"][0]["turns"] == [[1], [3]]
    record["phases"][0]["turns"] = turns
    with pytest.raises(PlanError):
        Plan.from_json(json.dumps(record))


def test_every_class_has_clients_and_one_entry_in_each_column() -> None:
    """A decimal comma makes two numbers of one: 4,0 is not 4.0 with something to spare."""
    plan = plan_of(own_pools())
    record = record_of(plan)
    for odd in ([0, 2], [1, 1], [0, 10**400], [0, -1], [0]):
        with pytest.raises(PlanError, match="a client for each number from 0 to the largest"):
            Plan.from_json(json.dumps(record | {"class": odd}))
    for name in ("noise", "clip", "rate", "weight"):
        phase = dict(record["phases"][0])
        phase[name] = [*phase[name], 0]
        with pytest.raises(PlanError, match=f"found 2 entries in {name}, expected 1"):
            Plan.from_json(json.dumps(record | {"phases": [phase]}))


@pytest.mark.parametrize(
    "grid", [{"step": 0.1, "size": 9}, {"step": 0.25, "size": -1}, {"step": 0.25}, {"step": "nan", "size": 9}]
)
def test_grids_that_cannot_be_are_refused(grid: object) -> None:
    record = record_of(plan_of(two_pools()).on_grid(0.25, 9)) | {"grid": grid}
    with pytest.raises(PlanError, match="not a Discretion plan"):
        Plan.from_json(json.dumps(record))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rate", ["nan", 0.25, 1.0]),
        ("rate", [-0.1, 0.25, 1.0]),
        ("rate", [1.1, 0.25, 1.0]),
        ("rate", ["often", 0.25, 1.0]),
        ("rate", [None, 0.25, 1.0]),
        ("rate", [0.5]),
        ("rate", 0.5),
        ("clip", [-1.0, 2.0, 0.0]),
        ("clip", ["nan", 2.0, 0.0]),
        ("noise", ["inf", 1.0]),
        ("noise", ["nan", 1.0]),
        ("noise", []),
        ("noise", [-1.0, 1.0]),
        ("pool", [0, 1, 9]),
        ("pool", [0, 1, -1]),
        ("pool", [0, 1, 2**70]),
        ("pool", [0, 1, 0.5]),
        ("weight", ["inf", 1.0]),
        ("rounds", 0),
        ("rounds", 2.7),
        ("rounds", float("inf")),
        ("rounds", "many"),
        ("rounds", None),
    ],
)
def test_numbers_that_cannot_be_are_refused(key: str, value: object) -> None:
    record = record_of(plan_of(two_pools()))
    record["phases"][0][key] = value
    with pytest.raises(PlanError):
        Plan.from_json(json.dumps(record).replace("Infinity", "1e999"))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("class", [0, 1]),
        ("class", [0, 1, 3]),
        ("class", [0, 1, -1]),
        ("class", [0, 1, 0.5]),
        ("class", ["a", "b", "c"]),
        ("clients", ["a", "b"]),
        ("clients", "abc"),
        ("clients", ["a", "b", 3]),
        ("clients", ["a", "b", "a"]),
        ("clients", None),
        ("phases", []),
        ("phases", [1]),
        ("parameters", []),
        ("parameters", None),
    ],
)
def test_parts_that_cannot_be_are_refused(key: str, value: object) -> None:
    record = record_of(plan_of(two_pools())) | {key: value}
    with pytest.raises(PlanError):
        Plan.from_json(json.dumps(record))
