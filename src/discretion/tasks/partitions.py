"""Partitions of a data set's records among clients: iid, or skewed by label or owner."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from discretion.arrays import Floats, Ints
from discretion.errors import DataError, nearest


@dataclass(frozen=True)
class Partition:
    """The records of each client; a record belongs to one client or to none."""

    index: Ints  # (sum of sizes,) record numbers, client after client
    start: Ints  # (N+1,) client k holds index[start[k]:start[k+1]]

    @property
    def clients(self) -> int:
        return len(self.start) - 1

    @property
    def sizes(self) -> Ints:  # (N,)
        return np.diff(self.start)

    def of(self, client: int) -> Ints:
        """Return the record numbers of one client."""
        client = range(self.clients)[client]
        return self.index[self.start[client] : self.start[client + 1]]


def even_sizes(records: int, clients: int, records_per_client: int | None = None) -> Ints:
    """Return (N,) sizes that use every record and differ by at most 1, or `records_per_client` for each."""
    _require_enough(records, clients)
    if records_per_client is None:
        return records // clients + (np.arange(clients) < records % clients).astype(np.int64)
    sizes = np.full(clients, records_per_client, dtype=np.int64)
    _require_sizes(sizes, records)
    return sizes


def varied_sizes(records: int, clients: int, rng: np.random.Generator) -> Ints:
    """Return (N,) sizes proportional to v_k ~ U(0.5, 1.5) that use every record, at least 1 each.

    Exact shares are rounded down, and the remaining records go to the largest remainders. A client whose
    share is below 1 gets 1 record, taken from the clients that are furthest above their share.
    """
    _require_enough(records, clients)
    weights = rng.uniform(0.5, 1.5, clients)
    shares = records * weights / weights.sum()
    sizes: Ints = np.maximum(1, np.floor(shares)).astype(np.int64)
    while (missing := records - int(sizes.sum())) != 0:
        by_shortfall = np.argsort(sizes - shares, kind="stable")  # most short of its share first
        if missing > 0:
            sizes[by_shortfall[:missing]] += 1
        else:
            can_give = by_shortfall[sizes[by_shortfall] > 1]
            sizes[can_give[missing:]] -= 1
    return sizes


def iid(labels: Ints, sizes: Ints, rng: np.random.Generator) -> Partition:
    """Give each client records drawn from all records alike."""
    return Partition(_choose(labels, sizes, rng), _starts(sizes))


def dirichlet(labels: Ints, sizes: Ints, rng: np.random.Generator, alpha: float = 0.5) -> Partition:
    """Draw each client's label shares from a Dirichlet distribution; small alpha gives few labels each.

    With C labels of frequencies f the shares follow Dirichlet(alpha * C * f): the usual symmetric
    Dirichlet(alpha) on a balanced data set, and iid for large alpha on any data set.

    No record is used twice, so clients can ask for more records of a label than there are. Then the label's
    records are given to requests drawn at random, no client before another, and unmet requests are drawn
    again from the client's own shares of the labels that still have records. A client whose shares of those
    labels are all zero takes what is left, in proportion.
    """
    if not (np.isfinite(alpha) and alpha > 0):
        raise DataError(
            f"dirichlet: alpha is {alpha}, but must be above 0 and finite. Small values (0.1) give "
            "few labels to each client, large values (100) are nearly iid."
        )
    _require_sizes(sizes, _count(labels))
    _, label, supply = np.unique(labels, return_inverse=True, return_counts=True)
    shares = rng.dirichlet(alpha * len(supply) * supply / len(labels), size=len(sizes))
    counts = _dirichlet_counts(shares, sizes, supply, rng)  # (N, C)

    by_label = np.lexsort((rng.random(len(labels)), label))
    rank = np.arange(len(labels)) - np.repeat(_starts(supply)[:-1], supply)  # of a record in its label
    taken = by_label[rank < np.repeat(counts.sum(axis=0), supply)]
    holder = np.repeat(np.tile(np.arange(len(sizes)), len(supply)), counts.T.ravel())
    return _grouped(taken, holder, sizes, rng)


def _dirichlet_counts(shares: Floats, sizes: Ints, supply: Ints, rng: np.random.Generator) -> Ints:
    """Return (N, C) counts of records by client and label; rows sum to sizes, columns stay within supply."""
    counts = np.zeros(shares.shape, dtype=np.int64)
    missing, left = sizes.copy(), supply.copy()
    while (short := np.flatnonzero(missing)).size:
        weights = shares[short] * (left > 0)
        weights[weights.sum(axis=1) < 1e-100] = left  # smaller sums lose precision in the division
        asked = rng.multinomial(missing[short], weights / weights.sum(axis=1, keepdims=True))
        for label in np.flatnonzero(asked.sum(axis=0) > left):
            asked[:, label] = rng.multivariate_hypergeometric(
                asked[:, label], int(left[label]), method="marginals"
            )
        counts[short] += asked
        missing[short] -= asked.sum(axis=1)
        left -= asked.sum(axis=0)
    return counts


def shards(labels: Ints, sizes: Ints, rng: np.random.Generator, shards_per_client: int = 2) -> Partition:
    """Sort by label, cut into runs and deal `shards_per_client` runs to each client at random.

    McMahan et al. (2017) call it the pathological non-iid partition. Here a client's runs are
    equal (to 1 record) parts of its own size, so that clients may differ in size. A run has one
    label, or two where it crosses from one label to the next, as long as no label is rarer than
    the run is long.
    """
    if shards_per_client < 1:
        raise DataError(f"shards: shards_per_client is {shards_per_client}, but must be 1 or more.")
    chosen = _choose(labels, sizes, rng)
    part = np.arange(shards_per_client)
    runs = sizes[:, None] // shards_per_client + (part < sizes[:, None] % shards_per_client)
    holder = np.repeat(np.arange(len(sizes)), shards_per_client)
    return _grouped(_sorted(chosen, labels), _dealt(runs.ravel(), holder, rng), sizes, rng)


def mostly_sorted(labels: Ints, sizes: Ints, rng: np.random.Generator, iid_percent: float) -> Partition:
    """Make `iid_percent` of each client's records iid and the rest sorted by label.

    The "s % similarity" of Karimireddy et al. (2020). Each client gets one run of the sorted records, in a
    random order of clients, so that client numbers reveal nothing about labels.
    """
    if not 0 <= iid_percent <= 100:
        raise DataError(
            f"mostly_sorted: iid_percent is {iid_percent}, but must be between 0 (all sorted by "
            "label) and 100 (all iid)."
        )
    chosen = _choose(labels, sizes, rng)
    alike = np.rint(sizes * (iid_percent / 100)).astype(np.int64)
    clients = np.arange(len(sizes))
    records = np.concatenate([chosen[: alike.sum()], _sorted(chosen[alike.sum() :], labels)])
    holder = np.concatenate([np.repeat(clients, alike), _dealt(sizes - alike, clients, rng)])
    return _grouped(records, holder, sizes, rng)


def natural(owner: Ints, minimum: int = 1) -> Partition:
    """Make one client of each owner, in the order of owner numbers, with all of the owner's records.

    Owners with fewer than `minimum` records are left out.
    """
    if minimum < 1:
        raise DataError(f"natural: minimum is {minimum}, but must be 1 record or more.")
    if _count(owner) == 0:
        raise DataError("natural: there are no records to divide.")
    _, client, sizes = np.unique(owner, return_inverse=True, return_counts=True)
    kept = sizes >= minimum
    if not kept.any():
        raise DataError(
            f"natural: none of the {len(sizes)} owners has {minimum} records, the largest has "
            f"{sizes.max()}. Lower minimum."
        )
    by_owner = np.argsort(client, kind="stable")
    return Partition(by_owner[np.repeat(kept, sizes)], _starts(sizes[kept]))


KINDS: dict[str, Callable[..., Partition]] = {
    "iid": iid,
    "dirichlet": dirichlet,
    "shards": shards,
    "mostly_sorted": mostly_sorted,
    "natural": natural,
}


def partition(
    kind: str,
    labels: Ints,
    sizes: Ints | None,
    rng: np.random.Generator,
    *,
    owner: Ints | None = None,
    alpha: float = 0.5,
    shards_per_client: int = 2,
    iid_percent: float = 0.0,
    minimum: int = 1,
) -> Partition:
    """Return the partition of kind `kind`; each kind reads only its own options.

    `natural` needs `owner` and takes the sizes from it, so `sizes` must be None; the other kinds
    need `sizes`.
    """
    if kind not in KINDS:
        raise DataError(f"There is no partition {kind!r}.{nearest(kind, KINDS)} Known: {', '.join(KINDS)}.")
    if kind == "natural":
        if owner is None:
            others = ", ".join(name for name in KINDS if name != "natural")
            raise DataError(
                "natural: this data set does not say who owns which record. "
                f"Choose another partition: {others}."
            )
        if sizes is not None:
            raise DataError(
                "natural: the sizes of the clients are how many records each owner has. "
                "Leave the sizes out or choose another partition."
            )
        return natural(owner, minimum)
    if sizes is None:
        raise DataError(f"{kind}: the size of each client is missing. Use even or varied sizes.")
    if kind == "iid":
        return iid(labels, sizes, rng)
    option = {"dirichlet": alpha, "shards": shards_per_client, "mostly_sorted": iid_percent}[kind]
    return KINDS[kind](labels, sizes, rng, option)


def _count(labels: Ints) -> int:
    if labels.ndim != 1:
        raise DataError(f"Expected one label or owner for each record, found shape {labels.shape}.")
    return len(labels)


def _require_enough(records: int, clients: int) -> None:
    if clients < 1:
        raise DataError(f"Expected 1 client or more, found {clients}.")
    if records < clients:
        raise DataError(
            f"{records} records cannot be divided among {clients} clients with at least 1 each. "
            f"Use at most {records} clients."
        )


def _require_sizes(sizes: Ints, records: int) -> None:
    if sizes.ndim != 1 or len(sizes) == 0 or not np.issubdtype(sizes.dtype, np.integer):
        raise DataError(
            f"The sizes of the clients must be whole numbers, one for each client; found "
            f"{sizes.dtype} of shape {sizes.shape}."
        )
    if sizes.min() < 1:
        raise DataError(
            f"Every client needs 1 record or more, but client {sizes.argmin()} has {sizes.min()}."
        )
    if (total := int(sizes.sum())) > records:
        raise DataError(
            f"The {len(sizes)} clients ask for {total} records, but there are only {records}. "
            "Use fewer clients or fewer records for each."
        )


def _choose(labels: Ints, sizes: Ints, rng: np.random.Generator) -> Ints:
    """Draw (sum of sizes,) records without replacement."""
    _require_sizes(sizes, _count(labels))
    return rng.permutation(len(labels))[: sizes.sum()]


def _sorted(records: Ints, labels: Ints) -> Ints:
    return records[np.argsort(labels[records], kind="stable")]


def _dealt(runs: Ints, holder: Ints, rng: np.random.Generator) -> Ints:
    """Lay the runs in random order; return the holder of each place in the sorted records."""
    order = rng.permutation(len(runs))
    return np.repeat(holder[order], runs[order])


def _grouped(records: Ints, holder: Ints, sizes: Ints, rng: np.random.Generator) -> Partition:
    """Collect the records of each holder in random order, so that no client's own are sorted."""
    return Partition(records[np.lexsort((rng.random(len(records)), holder))], _starts(sizes))


def _starts(sizes: Ints) -> Ints:
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes, dtype=np.int64)])
