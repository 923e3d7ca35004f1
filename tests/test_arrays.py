"""Kinds of clients are those of numpy, only found faster."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from discretion.arrays import distinct

FEW = st.sampled_from([0.0, -0.0, 1.0, 2.5, np.inf, -np.inf, 1e-300])


@given(arrays.arrays(np.float64, st.tuples(st.integers(1, 4), st.integers(1, 12)), elements=FEW))
def test_kinds_are_the_distinct_columns_in_order(table: np.ndarray) -> None:
    found, where = distinct(table)
    expected, place = np.unique(table + 0, axis=1, return_inverse=True)
    assert np.array_equal(found, expected) and np.array_equal(where, place.reshape(-1))
    assert np.array_equal(found[:, where], table)


@pytest.mark.parametrize("clients", [0, 1])
def test_nobody_and_a_single_client_are_no_exception(clients: int) -> None:
    found, where = distinct(np.ones((3, clients)))
    assert found.shape == (3, clients) and where.tolist() == [0] * clients


def test_rows_after_all_clients_differ_change_nothing() -> None:
    found, where = distinct(np.array([[2.0, 1.0, 3.0], [5.0, 6.0, 5.0]]))
    assert where.tolist() == [1, 0, 2] and found.tolist() == [[1.0, 2.0, 3.0], [6.0, 5.0, 5.0]]
