"""Streams can be made again, and no stream repeats another."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from discretion.errors import InputError
from discretion.randomness.streams import Purpose, run_stream, shuffle_keys, stream


def words(rng: np.random.Generator, count: int = 4) -> tuple[int, ...]:
    return tuple(rng.integers(2**64, size=count, dtype=np.uint64).tolist())


@given(st.integers(0, 2**128 - 1), st.sampled_from(Purpose), st.lists(st.integers(0, 2**32 - 1), max_size=3))
def test_the_same_stream_again(seed: int, purpose: Purpose, counter: list[int]) -> None:
    assert words(stream(seed, purpose, *counter)) == words(stream(seed, purpose, *counter))


def test_no_stream_repeats_another() -> None:
    counters = [(), (0,), (1,), (0, 0), (0, 1), (1, 0), (1, 1), (2**32 - 1,)]
    seeds = [0, 1, 2**32, 2**64, 2**64 + 1]
    drawn = [
        word
        for seed, purpose, counter in itertools.product(seeds, Purpose, counters)
        for word in words(stream(seed, purpose, *counter))
    ]
    assert len(set(drawn)) == len(drawn) == 4 * len(seeds) * len(Purpose) * len(counters)


@pytest.mark.parametrize(("seed", "counter"), [(2**128 + 5, (1,)), (-1, ()), (5, (2**32 + 7,)), (5, (-1,))])
def test_numbers_that_would_read_like_those_of_another_stream_are_refused(
    seed: int, counter: tuple[int, ...]
) -> None:
    with pytest.raises(InputError, match="below 2\\^128"):
        stream(seed, Purpose.NOISE, *counter)


def test_neither_two_runs_nor_two_plans_share_a_stream_under_one_seed() -> None:
    names = [
        ("r", "0" * 64),
        ("r", "0" * 63 + "1"),
        ("s", "0" * 64),
        ("", "r\n" + "0" * 64),
        ("r\n", "0" * 64),
    ]
    drawn = [words(stream(1, purpose, 1)) for purpose in Purpose] + [
        words(run_stream(seed, purpose, run, plan, round_, pool))
        for seed in (1, 2)
        for purpose in (Purpose.COINS, Purpose.NOISE)
        for run, plan in names
        for round_ in (1, 2)
        for pool in (0, 1)
    ]
    assert len(set(drawn)) == len(drawn)
    again = (1, Purpose.NOISE, "r", "0" * 64, 1)
    assert words(run_stream(*again)) == words(run_stream(*again))


def test_purposes_have_keys_of_their_own() -> None:
    assert len({int(purpose) for purpose in Purpose}) == len(Purpose)


def test_neighbouring_streams_are_not_correlated() -> None:
    rounds = np.stack([stream(7, Purpose.NOISE, t, 0).standard_normal(4000) for t in range(1, 13)])
    other = np.stack([stream(8, Purpose.NOISE, t, 0).standard_normal(4000) for t in range(1, 13)])
    coins = np.stack([stream(7, Purpose.COINS, t).standard_normal(4000) for t in range(1, 13)])
    together = np.corrcoef(np.concatenate([rounds, other, coins]))
    # 630 pairs: the largest of as many independent correlations of 4000 draws is about 0.05
    assert np.abs(together - np.eye(36)).max() < 0.075


# shuffling


def keys(round_: int = 1, epoch: int = 0, seed: int = 3, clients: int = 5, length: int = 40) -> np.ndarray:
    return shuffle_keys(1000 * seed + round_, epoch, np.arange(clients), length)


def test_keys_of_a_client_do_not_depend_on_who_else_is_there() -> None:
    alone = [shuffle_keys(3, 0, np.array([i]), 40)[0] for i in (4, 0, 3)]
    np.testing.assert_array_equal(shuffle_keys(3, 0, np.array([4, 0, 3]), 40), alone)
    np.testing.assert_array_equal(shuffle_keys(3, 0, np.arange(5), 40)[[4, 0, 3]], alone)


def test_keys_of_a_record_do_not_depend_on_how_many_there_are() -> None:
    np.testing.assert_array_equal(keys(length=40)[:, :7], keys(length=7))


def test_keys_have_no_ties_and_are_words() -> None:
    many = keys(clients=50, length=2000)
    assert many.shape == (50, 2000) and many.dtype == np.uint64
    assert len(np.unique(many)) == many.size


def test_every_round_epoch_seed_and_client_is_shuffled_anew() -> None:
    orders = [
        np.argsort(one, axis=1).tolist()
        for one in (keys(), keys(round_=2), keys(epoch=1), keys(seed=4), keys(round_=0, epoch=1))
    ]
    assert len({tuple(order) for table in orders for order in table}) == 5 * 5
    np.testing.assert_array_equal(keys(), keys())


def test_every_order_is_as_likely() -> None:
    """Of three records all six orders come equally often, over clients, rounds and epochs."""
    tables = [
        np.argsort(shuffle_keys(t, epoch, np.arange(2000), 3), axis=1) for t in (1, 2) for epoch in (0, 1)
    ]
    often = np.unique(np.concatenate(tables) @ [9, 3, 1], return_counts=True)[1]
    assert len(often) == 6
    assert stats.chisquare(often).pvalue > 1e-3


def test_records_are_in_no_order_that_clients_share() -> None:
    place = np.argsort(np.argsort(keys(clients=400, length=60), axis=1), axis=1).astype(float)
    correlation = np.corrcoef(place)[np.triu_indices(400, 1)]
    # of 60 places the correlation has the standard deviation 0.13
    assert abs(correlation.mean()) < 0.005 and np.abs(correlation).max() < 0.75
    assert np.abs(place.mean(axis=0) - 29.5).max() < 5 * np.sqrt(60**2 / 12 / 400)


def test_the_mixing_is_splitmix64() -> None:
    """Three words of the generator as published, by the state that it starts from."""
    from discretion.randomness.streams import _mix

    state = np.array([0, 0x9E3779B97F4A7C15, 0x3C6EF372FE94F82A], dtype=np.uint64)
    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert _mix(state).tolist() == published
