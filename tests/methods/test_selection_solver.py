"""Problem 1 of privacy-aware selection: optimal, and with the properties that its paper proves."""

import itertools

import cvxpy
import numpy as np
import pytest

from discretion.errors import PlanError
from discretion.methods.papers import xu_zhang as paper
from discretion.methods.solvers.selection import default_weight, objective, select, select_affine
from support.formulas import sweep, threshold

ROUNDING = 1e-14
Clients = tuple[np.ndarray, np.ndarray, np.ndarray]


def shares(rng: np.random.Generator, clients: int) -> np.ndarray:
    size = rng.uniform(0.5, 1.5, clients)
    result: np.ndarray = size / size.sum()
    return result


def clients_of(kind: str, seed: int) -> Clients:
    """Share, intercept and slope of a few to a thousand clients."""
    rng = np.random.default_rng(seed)
    n = int(10 ** rng.uniform(0.31, 3))
    share, slope = shares(rng, n), 10 ** rng.uniform(-3, 3, n)
    intercept = np.zeros(n)
    if kind == "wide":
        slope = 10 ** rng.uniform(-10, 10, n)
    elif kind == "tied":
        share, slope = np.full(n, 1 / n), rng.choice([0.1, 1.0, 10.0], n)
    elif kind == "public":
        slope[rng.random(n) < 0.2] = 0.0
    elif kind == "affine":
        intercept = slope * share * 10 ** rng.uniform(-2, 2, n)
    elif kind == "nearly linear":
        intercept, slope = rng.uniform(0, 1, n), 10 ** rng.uniform(-12, -6, n)
    elif kind == "affine and public":
        slope[rng.random(n) < 0.2] = 0.0
        intercept = slope * share * rng.uniform(0, 5, n)
    return share, intercept, slope


KINDS = ["plain", "wide", "tied", "public", "affine", "nearly linear", "affine and public"]


def weights_around(clients: Clients) -> np.ndarray:
    share, intercept, slope = clients
    return (default_weight(share, slope, intercept) or 1.0) * np.geomspace(1e-3, 1e6, 10)


def distance_from_optimal(p: np.ndarray, clients: Clients, weight: float) -> float:
    """The largest violation of the conditions for a minimum, relative to the multipliers.

    They are sufficient, with intercepts too: the sets of p with an objective below some value are convex.
    """
    share, intercept, slope = clients
    cost = intercept + 2 * slope * p  # of a little more of each client
    gap = 4 * objective(p, share, slope, weight, intercept) / weight
    raised, kept, gone = p > share, p == share, p == 0
    lowered = ~(raised | kept | gone)
    if kept.all():
        return float(max(0.0, np.ptp(cost) - gap) / max(cost.max(), gap))
    low = cost[raised].mean()
    violations = [
        np.abs(cost[raised] - low),
        np.abs(cost[lowered] - low - gap),
        low - cost[kept],
        cost[kept] - low - gap,
        low + gap - cost[gone],
    ]
    return float(max(max(v.max(initial=0.0) for v in violations) / (low + gap), abs(p.sum() - 1)))


@pytest.mark.parametrize("kind", KINDS)
def test_conditions_for_a_minimum_hold(kind: str) -> None:
    moved = 0
    for seed in range(12):
        clients = clients_of(kind, seed)
        for weight in weights_around(clients):
            p = select_affine(*clients, weight)
            assert p.min() >= 0
            assert distance_from_optimal(p, clients, weight) < 1e-12
            moved += bool((p != clients[0]).any())
    assert moved > 30


def test_conditions_hold_where_many_are_used_up() -> None:
    """Seed 471 is one of few where steps from a level that forgets who is used up lead elsewhere."""
    for seed in range(440, 500):
        rng = np.random.default_rng(seed)
        n = rng.integers(3, 30)
        size = 10 ** rng.uniform(-3, 0, n)
        share, slope, intercept = size / size.sum(), 10 ** rng.uniform(-4, 4, n), 10 ** rng.uniform(-4, 2, n)
        weight = 10 ** rng.uniform(-2, 2) * default_weight(share, slope, intercept)
        p = select_affine(share, intercept, slope, weight)
        assert distance_from_optimal(p, (share, intercept, slope), weight) < 1e-11


def test_conditions_notice_what_is_not_optimal() -> None:
    clients = clients_of("affine", 1)
    weight = 10 * default_weight(clients[0], clients[2], clients[1])
    p = select_affine(*clients, weight)
    assert distance_from_optimal(0.999 * p + 0.001 * clients[0], clients, weight) > 1e-6
    assert distance_from_optimal(clients[0], clients, weight) > 1e-3


def on_simplex(found: cvxpy.Variable) -> np.ndarray:
    p = np.maximum(np.asarray(found.value), 0.0)
    result: np.ndarray = p / p.sum()
    return result


@pytest.mark.parametrize("seed", range(25))
def test_objective_is_never_above_that_of_a_general_solver(seed: int) -> None:
    share, _, noise = clients_of("plain", seed)
    weight = default_weight(share, noise) * 10 ** np.random.default_rng(seed).uniform(-3, 3)
    p, bias = cvxpy.Variable(len(share)), cvxpy.Variable(nonneg=True)
    scaled = cvxpy.multiply(np.sqrt(weight * noise), p)
    loss = bias + cvxpy.norm(cvxpy.hstack([bias, scaled]), 2)
    kept = [cvxpy.norm1(p - share) <= bias, cvxpy.sum(p) == 1, p >= 0]
    cvxpy.Problem(cvxpy.Minimize(loss), kept).solve(solver="CLARABEL")
    theirs = objective(on_simplex(p), share, noise, weight)
    ours = objective(select(share, noise, weight), share, noise, weight)
    assert ours <= theirs * (1 + ROUNDING)
    assert ours == pytest.approx(theirs, rel=1e-4)


@pytest.mark.parametrize("seed", range(12))
def test_with_intercepts_a_general_solver_finds_nothing_below(seed: int) -> None:
    """No p has an objective below t if the least weight * variance + 2 t bias is t²: a convex problem."""
    share, intercept, slope = clients_of("affine", seed)
    weight = 10.0 ** np.random.default_rng(seed).uniform(0, 2) * default_weight(share, slope, intercept)
    found = select_affine(share, intercept, slope, weight)
    t = objective(found, share, slope, weight, intercept)
    p = cvxpy.Variable(len(share))
    variance = intercept @ p + cvxpy.sum_squares(cvxpy.multiply(np.sqrt(slope), p))
    loss = (weight / t**2) * variance + (2 / t) * cvxpy.norm1(p - share)
    problem = cvxpy.Problem(cvxpy.Minimize(loss), [cvxpy.sum(p) == 1, p >= 0])
    problem.solve(solver="CLARABEL")
    assert problem.value == pytest.approx(1, rel=1e-6)
    assert t <= objective(on_simplex(p), share, slope, weight, intercept) * (1 + ROUNDING)


@pytest.mark.parametrize("seed", range(8))
def test_three_clients_on_a_fine_grid(seed: int) -> None:
    """Every p there is: the answer is global although the objective with intercepts is not convex."""
    rng = np.random.default_rng(seed)
    share, intercept, slope = shares(rng, 3), rng.uniform(0, 1, 3), 10 ** rng.uniform(-3, 0, 3)
    weight = 10 ** rng.uniform(0, 2)
    steps = np.linspace(0, 1, 151)
    grid = np.array([(x, y, 1 - x - y) for x, y in itertools.product(steps, steps) if x + y <= 1])
    bias = np.abs(grid - share).sum(axis=1)
    values = bias + np.sqrt(bias**2 + weight * (grid * intercept + slope * grid**2).sum(axis=1))
    ours = objective(select_affine(share, intercept, slope, weight), share, slope, weight, intercept)
    assert ours <= values.min() * (1 + ROUNDING)
    assert ours > 0.95 * values.min()


def test_with_intercepts_the_objective_is_not_convex() -> None:
    share, intercept, slope = np.array([0.5, 0.5]), np.array([0.0, 1.0]), np.array([1e-3, 1e-3])
    ends = np.array([[1.0, 0.0], [0.5, 0.5]])
    at_ends = [objective(p, share, slope, 100.0, intercept) for p in ends]
    assert objective(ends.mean(axis=0), share, slope, 100.0, intercept) > sum(at_ends) / 2 + 0.1


@pytest.mark.parametrize("kind", KINDS)
def test_no_move_from_one_client_to_another_improves(kind: str) -> None:
    rng = np.random.default_rng(0)
    for seed in range(5):
        share, intercept, slope = clients_of(kind, seed)
        weight = 10 * (default_weight(share, slope, intercept) or 1.0)
        p = select_affine(share, intercept, slope, weight)
        best = objective(p, share, slope, weight, intercept)
        for _ in range(100):
            giver, taker = rng.integers(len(p), size=2)
            moved = p.copy()
            mass = p[giver] * 10 ** rng.uniform(-6, 0)
            moved[giver] -= mass
            moved[taker] += mass
            assert objective(moved, share, slope, weight, intercept) >= best * (1 - ROUNDING)


def papers_clients() -> tuple[np.ndarray, np.ndarray]:
    """Share and V of the paper's hundred clients, with epsilon ~ U(0.001, 1)."""
    rng = np.random.default_rng(0)
    spread = rng.uniform(0.5, 1.5, 100)
    share, delta, rate = spread / spread.sum(), np.full(100, 1e-5), np.full(100, 0.1)
    return share, paper.variance(rng.uniform(0.001, 1, 100), delta, rate, 60_000 * share)


def test_up_to_the_threshold_nobody_moves() -> None:
    share, noise = papers_clients()
    known = threshold(share, noise)
    assert known == pytest.approx(1.20, abs=0.005)
    assert known == pytest.approx(4 * (noise * share**2).sum() / np.ptp(noise * share) ** 2)
    assert (select(share, noise, known * (1 - 1e-9)) == share).all()
    assert (select(share, noise, 0.0) == share).all()
    assert (select(share, noise, known * (1 + 1e-6)) != share).any()


def test_threshold_with_intercepts() -> None:
    share, intercept, slope = clients_of("affine", 3)
    known = threshold(share, slope, intercept)
    assert (select_affine(share, intercept, slope, known * (1 - 1e-9)) == share).all()
    assert (select_affine(share, intercept, slope, known * (1 + 1e-6)) != share).any()


def test_all_alike_keep_their_share() -> None:
    share = shares(np.random.default_rng(0), 50)
    assert threshold(share, 3 / share) > 1e20  # infinite but for rounding
    assert threshold(np.full(8, 0.125), np.ones(8)) == np.inf
    assert (select(np.full(8, 0.125), np.ones(8), 1e12) == 0.125).all()
    assert (select(np.ones(1), np.ones(1), 1e12) == 1).all()
    assert (select(share, np.zeros(50), 1e12) == share).all()


def test_everybody_takes_part() -> None:
    """Proposition 2, which holds for V alone."""
    share, noise = papers_clients()
    for weight in np.geomspace(1e-2, 1e12, 15):
        assert select(share, noise, weight).min() > 0


def test_with_intercepts_some_do_not_take_part() -> None:
    share, intercept = np.full(4, 0.25), np.array([0.01, 0.01, 0.01, 5.0])
    p = select_affine(share, intercept, np.full(4, 0.1), 1000.0)
    assert p[3] == 0
    assert p[:3] == pytest.approx(1 / 3)


@pytest.mark.parametrize("weight", [1e3, 1e4, 1e6])
def test_more_epsilon_or_more_records_is_never_selected_less(weight: float) -> None:
    size, epsilon = np.meshgrid([300.0, 600.0, 900.0], np.linspace(0.05, 1, 50), indexing="ij")
    share = (size / size.sum()).ravel()
    noise = paper.variance(epsilon.ravel(), np.full(150, 1e-5), np.full(150, 0.1), size.ravel())
    p = select(share, noise, weight).reshape(3, 50)
    assert (np.diff(p, axis=1) >= -1e-15).all()
    assert (np.diff(p, axis=0) >= -1e-15).all()
    assert np.diff(p, axis=1).max() > 1e-5


def test_when_only_noise_counts_selection_goes_as_one_over_it() -> None:
    share, noise = papers_clients()
    assert select(share, noise, 1e18) == pytest.approx(1 / noise / (1 / noise).sum(), rel=1e-6)


def test_order_of_clients_does_not_matter() -> None:
    for kind in KINDS:
        share, intercept, slope = clients_of(kind, 4)
        weight = 20 * default_weight(share, slope, intercept)
        order = np.random.default_rng(1).permutation(len(share))
        p = select_affine(share, intercept, slope, weight)
        assert select_affine(share[order], intercept[order], slope[order], weight) == pytest.approx(
            p[order], rel=1e-9, abs=1e-12
        )


def test_equal_clients_get_equal_probabilities() -> None:
    share, _, noise = clients_of("tied", 5)
    p = select(share, noise, 100 * default_weight(share, noise))
    assert len(np.unique(p)) == len(np.unique(noise)) == 3


def test_without_intercepts_both_are_the_same() -> None:
    share, noise = papers_clients()
    assert (select(share, noise, 1e4) == select_affine(share, np.zeros(100), noise, 1e4)).all()


def test_public_clients_are_the_limit_of_little_noise_and_keep_their_proportions() -> None:
    rng = np.random.default_rng(2)
    share, noise = shares(rng, 30), 10 ** rng.uniform(-2, 2, 30)
    noise[:3] = 0.0
    weight = 100 * default_weight(share, noise)
    p = select(share, noise, weight)
    assert p[:3] / share[:3] == pytest.approx(p[0] / share[0])
    assert p[0] > 1.1 * share[0]
    noise[:3] = 1e-12 / share[:3]
    assert select(share, noise, weight) == pytest.approx(p, abs=1e-8)


def test_public_clients_take_all_when_only_noise_counts() -> None:
    share, noise = np.array([0.2, 0.3, 0.5]), np.array([0.0, 1.0, 2.0])
    assert select(share, noise, 1e14) == pytest.approx([1, 0, 0], abs=1e-6)


@pytest.mark.parametrize("factor", [1e-30, 7.0, 1e30])
def test_default_weight_ignores_the_scale_of_the_noise(factor: float) -> None:
    share, noise = papers_clients()
    p = select(share, noise, default_weight(share, noise))
    scaled = select(share, factor * noise, default_weight(share, factor * noise))
    assert scaled == pytest.approx(p, rel=1e-12)
    assert (p != share).any()


def test_default_weight_ignores_how_often_the_population_is_repeated() -> None:
    share, noise = papers_clients()
    p = select(share, noise, default_weight(share, noise))
    three, noise = np.tile(share, 3) / 3, np.tile(noise, 3)
    assert select(three, noise, default_weight(three, noise)) == pytest.approx(np.tile(p, 3) / 3, rel=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_under_the_default_weight_at_most_a_quarter_moves(kind: str) -> None:
    for seed in range(10):
        share, intercept, slope = clients_of(kind, seed)
        weight = default_weight(share, slope, intercept)
        p = select_affine(share, intercept, slope, weight)
        assert objective(share, share, slope, weight, intercept) == pytest.approx(1.0) or weight == 0
        assert np.maximum(p - share, 0).sum() <= 0.25 + 1e-12


@pytest.mark.parametrize(("bias", "cut", "pays"), [(0.1, 0.19, False), (0.1, 0.21, True)])
def test_under_the_default_weight_a_bias_pays_if_it_cuts_twice_its_noise(
    bias: float, cut: float, pays: bool
) -> None:
    share = np.array([0.5, 0.5])
    p = share + np.array([bias, -bias]) / 2
    # V_1 p_1² + V_2 p_2² is 1 - cut, and 1 at the shares
    noise = np.linalg.solve(np.stack([share**2, p**2]), [1.0, 1.0 - cut])
    weight = default_weight(share, noise)
    assert (objective(p, share, noise, weight) < objective(share, share, noise, weight)) == pays


def test_a_sweep_is_one_row_for_each_weight() -> None:
    share, noise = papers_clients()
    weights = np.geomspace(1e-2, 1e6, 9)
    rows = sweep(share, noise, weights)
    assert rows.shape == (9, 100)
    for row, weight in zip(rows, weights, strict=True):
        assert (row == select(share, noise, weight)).all()
    bias = np.abs(rows - share).sum(axis=1)
    assert (np.diff(bias) >= 0).all() and bias[0] == 0 < bias[-1]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"share": np.array([0.5, 0.6])}, "sum to 1.1"),
        ({"share": np.array([0.0, 1.0])}, "positive numbers"),
        ({"slope": np.array([1.0, np.inf])}, "slope is inf"),
        ({"slope": np.array([1.0, -1.0])}, "slope is -1"),
        ({"slope": np.ones(3)}, "slope has shape"),
        ({"intercept": np.array([np.nan, 0.0])}, "intercept is nan"),
        ({"slope": np.array([1.0, 0.0]), "intercept": np.ones(2)}, "no slope"),
        ({"weight": -1.0}, "weight .* is -1"),
        ({"weight": np.inf}, "weight .* is inf"),
    ],
)
def test_what_makes_no_sense_is_refused(change: dict[str, object], said: str) -> None:
    sound = {"share": np.array([0.5, 0.5]), "intercept": np.zeros(2), "slope": np.ones(2), "weight": 1.0}
    with pytest.raises(PlanError, match=said):
        select_affine(**{**sound, **change})  # type: ignore[arg-type]
