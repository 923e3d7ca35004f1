"""Turns that are spread evenly over the rounds."""

import numpy as np
import pytest

from discretion.errors import PlanError
from discretion.methods.solvers.cohorts import even_turns


@pytest.mark.parametrize(
    ("clients", "cohort", "rounds"),
    [(100, 10, 50), (5, 3, 40), (3, 7, 10), (1, 2, 5), (300, 4, 9), (9, 60, 9)],
)
def test_everybody_is_within_two_turns_of_its_due_at_any_time(clients: int, cohort: int, rounds: int) -> None:
    rng = np.random.default_rng(clients)
    for seed in range(10):
        p = rng.random(clients) ** 3
        p[1:] *= rng.random(clients - 1) > 0.2
        turns = even_turns(p, cohort, rounds, seed)
        assert (turns.sum(axis=1) == cohort).all() and (turns >= 0).all()
        due = cohort * p / p.sum() * np.arange(1, rounds + 1)[:, None]
        assert np.abs(np.cumsum(turns, axis=0) - due).max() < 2
        assert (turns[:, p == 0] == 0).all()


def test_the_order_is_the_seeds() -> None:
    p = np.ones(20)
    assert (even_turns(p, 5, 8, 1) == even_turns(p, 5, 8, 1)).all()
    assert (even_turns(p, 5, 8, 1) != even_turns(p, 5, 8, 2)).any()
    first = np.stack([even_turns(p, 5, 1, seed)[0] for seed in range(200)]).mean(axis=0)
    np.testing.assert_allclose(first, 0.25, atol=0.12)  # nobody is always first


def test_what_cannot_be_is_refused() -> None:
    for p, cohort in ((np.zeros(3), 2), (np.array([1.0, -1.0]), 1), (np.ones(3), 0), (np.array([np.nan]), 1)):
        with pytest.raises(PlanError, match="turn"):
            even_turns(p, cohort, 5, 0)
