"""Every partition keeps its sizes, uses no record twice and is as skewed as it says."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discretion.arrays import Ints
from discretion.errors import DataError
from discretion.tasks import partitions as pt
from discretion.tasks.partitions import Partition

BY_LABEL = [kind for kind in pt.KINDS if kind != "natural"]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def balanced(records: int = 6000, classes: int = 10) -> Ints:
    return rng(99).permutation(np.arange(records) % classes)


def label_counts(part: Partition, labels: Ints) -> Ints:
    """(N, C) how often each client has each label."""
    counts = np.zeros((part.clients, labels.max() + 1), dtype=np.int64)
    np.add.at(counts, (np.repeat(np.arange(part.clients), part.sizes), labels[part.index]), 1)
    return counts


def labels_each(part: Partition, labels: Ints) -> Ints:
    result: Ints = (label_counts(part, labels) > 0).sum(axis=1)
    return result


def deviation(part: Partition, labels: Ints) -> float:
    """Mean total variation distance between a client's labels and all labels: 0 is iid."""
    shares = label_counts(part, labels) / part.sizes[:, None]
    return float(np.abs(shares - np.bincount(labels) / len(labels)).sum(axis=1).mean() / 2)


def is_valid(part: Partition, records: int) -> bool:
    unique = np.unique(part.index)
    inside = len(unique) == 0 or (unique[0] >= 0 and unique[-1] < records)
    return len(unique) == len(part.index) == part.start[-1] and part.start[0] == 0 and bool(inside)


# sizes


@given(st.integers(1, 500), st.integers(0, 5000))
def test_even_sizes_use_every_record_and_differ_by_at_most_one(clients: int, more: int) -> None:
    sizes = pt.even_sizes(clients + more, clients)
    assert sizes.shape == (clients,) and sizes.dtype == np.int64
    assert sizes.sum() == clients + more
    assert sizes.max() - sizes.min() <= 1


def test_even_sizes_of_a_given_number_leave_the_rest_out() -> None:
    np.testing.assert_array_equal(pt.even_sizes(100, 3, records_per_client=20), [20, 20, 20])
    with pytest.raises(DataError, match="3 clients ask for 120 records, but there are only 100"):
        pt.even_sizes(100, 3, records_per_client=40)
    with pytest.raises(DataError, match="1 record or more"):
        pt.even_sizes(100, 3, records_per_client=0)


@given(st.integers(1, 500), st.integers(0, 5000), st.integers(0, 2**32))
def test_varied_sizes_use_every_record_and_leave_nobody_empty(clients: int, more: int, seed: int) -> None:
    sizes = pt.varied_sizes(clients + more, clients, rng(seed))
    assert sizes.shape == (clients,) and sizes.dtype == np.int64
    assert sizes.sum() == clients + more
    assert sizes.min() >= 1


def test_varied_sizes_leave_nobody_empty_where_remainders_alone_would() -> None:
    # weights such as 0.5, 1.49, 1.49 make the shares 0.57, 1.71, 1.71
    assert min(pt.varied_sizes(4, 3, rng(seed)).min() for seed in range(300)) == 1


def test_varied_sizes_are_the_rounded_shares() -> None:
    weights = rng(5).uniform(0.5, 1.5, 60)
    sizes = pt.varied_sizes(60_000, 60, rng(5))
    assert np.abs(sizes - 60_000 * weights / weights.sum()).max() < 1
    assert sizes.max() > 2 * sizes.min()


@pytest.mark.parametrize("make", [pt.even_sizes, lambda n, k: pt.varied_sizes(n, k, rng())])
def test_sizes_refuse_more_clients_than_records(make: Callable[[int, int], object]) -> None:
    with pytest.raises(DataError, match="5 records cannot be divided among 6 clients"):
        make(5, 6)
    with pytest.raises(DataError, match="1 client or more, found 0"):
        make(5, 0)


# what every partition promises


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_sizes_are_exact_and_no_record_is_used_twice(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(BY_LABEL))
    sizes = np.array(data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=30)))
    records = int(sizes.sum()) + data.draw(st.integers(0, 50))
    classes = data.draw(st.integers(1, 12))
    seed = data.draw(st.integers(0, 2**32))
    # squared, so that some labels are rare and some are missing
    labels = (classes * rng(seed).random(records) ** 2).astype(np.int64)
    part = pt.partition(
        kind,
        labels,
        sizes,
        rng(seed),
        alpha=data.draw(st.sampled_from([1e-3, 0.1, 0.5, 10.0, 1e6])),
        shards_per_client=data.draw(st.integers(1, 5)),
        iid_percent=data.draw(st.floats(0, 100)),
    )
    np.testing.assert_array_equal(part.sizes, sizes)
    assert is_valid(part, records)


@pytest.mark.parametrize("kind", BY_LABEL)
def test_the_seed_decides(kind: str) -> None:
    labels, sizes = balanced(), pt.even_sizes(6000, 30)
    first, again, other = (pt.partition(kind, labels, sizes, rng(s)) for s in (1, 1, 2))
    np.testing.assert_array_equal(first.index, again.index)
    assert not np.array_equal(first.index, other.index)


@pytest.mark.parametrize("kind", BY_LABEL)
def test_the_records_left_out_are_drawn_from_all_alike(kind: str) -> None:
    labels = balanced(20_000)
    part = pt.partition(kind, labels, pt.even_sizes(20_000, 200, 50), rng(), alpha=1.0)
    assert len(part.index) == 10_000
    used = label_counts(part, labels).sum(axis=0)
    assert used.min() > 800 and used.max() < 1200  # 1000 of each label on average
    assert part.index.mean() == pytest.approx(10_000, abs=300)


@pytest.mark.parametrize("kind", BY_LABEL)
def test_client_numbers_say_nothing_about_labels(kind: str) -> None:
    labels = balanced(20_000)
    part = pt.partition(kind, labels, pt.even_sizes(20_000, 1000), rng())
    mean = label_counts(part, labels) @ np.arange(10) / part.sizes
    assert abs(np.corrcoef(mean, np.arange(1000))[0, 1]) < 0.1


@pytest.mark.parametrize("kind", BY_LABEL)
def test_a_client_holds_its_records_in_random_order(kind: str) -> None:
    labels = balanced(20_000)
    part = pt.partition(kind, labels, pt.even_sizes(20_000, 20), rng(), shards_per_client=4)
    halves = [np.abs(np.diff(labels[part.of(k)].reshape(2, -1).mean(axis=1))) for k in range(20)]
    assert np.max(halves) < 0.8  # sorted by label it would be up to 4.5


def test_of_is_the_slice_of_one_client() -> None:
    part = Partition(np.array([5, 3, 9]), np.array([0, 2, 3]))
    assert part.clients == 2
    np.testing.assert_array_equal(part.of(0), [5, 3])
    np.testing.assert_array_equal(part.of(-1), [9])
    with pytest.raises(IndexError):
        part.of(2)


# how skewed each is


def test_iid_gives_all_labels_to_all() -> None:
    labels = balanced()
    part = pt.iid(labels, pt.even_sizes(6000, 30), rng())
    assert labels_each(part, labels).min() == 10
    assert deviation(part, labels) < 0.12


@pytest.mark.parametrize("per_client", [1, 2, 3])
def test_shards_give_few_labels(per_client: int) -> None:
    labels = balanced()
    sizes = pt.varied_sizes(6000, 50, rng(1))
    part = pt.shards(labels, sizes, rng(), per_client)
    assert labels_each(part, labels).max() <= 2 * per_client
    assert labels_each(part, labels).mean() < 1.25 * per_client + 0.1


def test_shards_as_in_the_paper_are_pure_when_labels_are_multiples_of_a_shard() -> None:
    labels = balanced()  # 600 of each, 100 clients, 200 shards of 30
    part = pt.shards(labels, pt.even_sizes(6000, 100), rng(), 2)
    counts = label_counts(part, labels)
    assert set(np.unique(counts)) <= {0, 30, 60}
    assert labels_each(part, labels).max() == 2


def test_mostly_sorted_goes_from_few_labels_to_iid() -> None:
    labels = balanced()
    sizes = pt.even_sizes(6000, 60)
    by_percent = {s: pt.mostly_sorted(labels, sizes, rng(), s) for s in (0, 30, 70, 100)}
    assert labels_each(by_percent[0], labels).max() == 1  # 6 clients of 100 for each label
    assert labels_each(by_percent[100], labels).min() >= 8
    skew = [deviation(part, labels) for part in by_percent.values()]
    assert skew == sorted(skew, reverse=True)
    iid = deviation(pt.iid(labels, sizes, rng(3)), labels)
    assert skew[-1] == pytest.approx(iid, abs=0.02)
    # of 100 records, 70 are one run, of one label or two, and the 30 iid ones add some to these
    top = np.sort(label_counts(by_percent[30], labels), axis=1)[:, -2:].sum(axis=1)
    assert top.min() >= 70 and top.mean() < 82


def test_mostly_sorted_with_varied_sizes_has_at_most_one_border_more() -> None:
    labels = balanced()
    part = pt.mostly_sorted(labels, pt.varied_sizes(6000, 60, rng(1)), rng(), 0)
    assert labels_each(part, labels).max() == 2


def test_dirichlet_goes_from_few_labels_to_iid() -> None:
    labels = balanced(20_000)
    sizes = pt.varied_sizes(20_000, 100, rng(1))
    skew = [deviation(pt.dirichlet(labels, sizes, rng(), a), labels) for a in (0.01, 0.5, 5, 1e4)]
    assert skew == sorted(skew, reverse=True)
    assert skew[-1] == pytest.approx(deviation(pt.iid(labels, sizes, rng(2)), labels), abs=0.02)
    few = label_counts(pt.dirichlet(labels, sizes, rng(), 0.01), labels)
    assert np.median(few.max(axis=1) / sizes) > 0.85  # less than 1, because labels run out


def test_dirichlet_has_the_variance_of_its_alpha_when_records_abound() -> None:
    labels = balanced(100_000)
    part = pt.dirichlet(labels, pt.even_sizes(100_000, 1000, 50), rng(), alpha=0.5)
    shares = label_counts(part, labels) / 50
    of_shares = 0.1 * 0.9 / (10 * 0.5 + 1)
    of_counts = (0.1 * 0.9 - of_shares) / 50
    assert shares.var() == pytest.approx(of_shares + of_counts, rel=0.1)


def test_dirichlet_with_large_alpha_is_iid_on_unbalanced_labels() -> None:
    labels = rng(4).permutation(np.repeat([0, 1, 2], [9000, 900, 100]))
    part = pt.dirichlet(labels, pt.even_sizes(10_000, 10, 200), rng(), alpha=1e5)
    shares = label_counts(part, labels) / 200
    np.testing.assert_allclose(shares, [[0.9, 0.09, 0.01]] * 10, atol=0.08)


def test_dirichlet_shares_exhausted_labels_without_favour() -> None:
    labels = balanced(10_000, 2)
    early, late = np.zeros(2), np.zeros(2)
    for seed in range(20):
        part = pt.dirichlet(labels, pt.even_sizes(10_000, 100), rng(seed), alpha=0.1)
        purity = label_counts(part, labels).max(axis=1) / 100
        early += purity[:50].mean(), 1
        late += purity[50:].mean(), 1
    assert early[0] / early[1] == pytest.approx(late[0] / late[1], abs=0.02)
    assert late[0] / late[1] > 0.85


def test_natural_gives_each_owner_its_own() -> None:
    owner = np.array([7, 2, 7, 4, 2, 7])
    part = pt.natural(owner)
    assert [part.of(k).tolist() for k in range(part.clients)] == [[1, 4], [3], [0, 2, 5]]
    part = pt.natural(owner, minimum=2)
    assert [part.of(k).tolist() for k in range(part.clients)] == [[1, 4], [0, 2, 5]]
    with pytest.raises(DataError, match="none of the 3 owners has 4 records, the largest has 3"):
        pt.natural(owner, minimum=4)
    with pytest.raises(DataError, match="minimum is 0"):
        pt.natural(owner, minimum=0)
    with pytest.raises(DataError, match="no records"):
        pt.natural(owner[:0])


def test_a_hundred_thousand_clients() -> None:
    labels = balanced(300_000)
    sizes = pt.varied_sizes(300_000, 100_000, rng())
    for kind in BY_LABEL:
        part = pt.partition(kind, labels, sizes, rng(), alpha=0.1, iid_percent=30)
        np.testing.assert_array_equal(part.sizes, sizes)
        assert is_valid(part, 300_000)


# by name, and what is refused


def test_by_name_is_the_function_with_its_option() -> None:
    labels, sizes = balanced(), pt.even_sizes(6000, 30)
    by_name = {
        "iid": pt.iid(labels, sizes, rng()),
        "dirichlet": pt.dirichlet(labels, sizes, rng(), 0.3),
        "shards": pt.shards(labels, sizes, rng(), 3),
        "mostly_sorted": pt.mostly_sorted(labels, sizes, rng(), 20),
    }
    assert list(by_name) == BY_LABEL
    for kind, expected in by_name.items():
        part = pt.partition(kind, labels, sizes, rng(), alpha=0.3, shards_per_client=3, iid_percent=20)
        np.testing.assert_array_equal(part.index, expected.index)
    owner = np.arange(6000) % 7
    part = pt.partition("natural", labels, None, rng(), owner=owner)
    np.testing.assert_array_equal(part.index, pt.natural(owner).index)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("dirichet", {}, "Did you mean 'dirichlet'"),
        ("shard", {}, "Did you mean 'shards'"),
        ("zzz", {}, "no partition 'zzz'. Known: iid, dirichlet"),
        ("dirichlet", {"alpha": 0.0}, "alpha is 0.0"),
        ("dirichlet", {"alpha": float("nan")}, "alpha is nan"),
        ("shards", {"shards_per_client": 0}, "shards_per_client is 0"),
        ("mostly_sorted", {"iid_percent": 101.0}, "iid_percent is 101.0"),
        ("mostly_sorted", {"iid_percent": float("nan")}, "iid_percent is nan"),
        ("natural", {}, "does not say who owns"),
        ("natural", {"owner": np.zeros(60, dtype=np.int64)}, "Leave the sizes out"),
        ("iid", {"sizes": None}, "size of each client is missing"),
        ("iid", {"sizes": np.array([40, 30])}, "2 clients ask for 70 records, but .* only 60"),
        ("dirichlet", {"sizes": np.array([61])}, "1 clients ask for 61 records"),
        ("iid", {"sizes": np.array([40, 0])}, "client 1 has 0"),
        ("iid", {"sizes": np.array([1.5])}, "whole numbers"),
        ("iid", {"labels": np.zeros((60, 1), dtype=np.int64)}, r"found shape \(60, 1\)"),
    ],
)
def test_refusals_say_what_is_wrong(kind: str, options: dict[str, Any], message: str) -> None:
    given_: dict[str, Any] = {"labels": balanced(60), "sizes": pt.even_sizes(60, 6), "rng": rng()} | options
    with pytest.raises(DataError, match=message):
        pt.partition(kind, **given_)
