"""Which records each client takes in each local step of a round."""

from itertools import count

import numpy as np
from numpy.typing import NDArray

from discretion.clients.training import LocalTraining
from discretion.population import Ints
from discretion.streams import shuffle_keys
from discretion.tasks.partitions import Partition

NOBODY = -1  # in place of a record


def batches(
    partition: Partition, local: LocalTraining, key: int, clients: Ints, turn: Ints
) -> tuple[Ints, NDArray[np.bool_]]:
    """(k, steps, batch) record numbers, and which of them are real: the others are padding.

    Guarantees:
        A client's real batches, in their order, depend on the key, the client, its turn and its records only.
        An epoch takes every record once; an epoch that the steps cut short takes none twice.
        A client without records has no real batch.
    """
    sizes = partition.sizes[clients]
    batch = max(1, min(local.batch_size, int(sizes.max(initial=0))))
    each = -(-sizes // batch)  # (k,) steps of an epoch
    steps = np.where(each > 0, local.steps, 0) if local.steps else local.epochs * each
    place = np.full((len(clients), int(steps.max(initial=0)), batch), NOBODY)
    for epoch in count():
        at_work = np.flatnonzero(epoch * each < steps)
        if not len(at_work):
            break
        own, length = each[at_work, None], int(each[at_work].max())
        words = clients[at_work] + (turn[at_work] << 32)
        mine = _epoch(local, sizes[at_work, None], length * batch, key, epoch, words)
        step = np.arange(length)
        to = epoch * own + step  # (a, steps of the longest epoch)
        there = (step < own) & (to < steps[at_work, None])
        who = np.broadcast_to(at_work[:, None], there.shape)
        place[who[there], to[there]] = mine.reshape(len(at_work), length, batch)[there]
    real = place != NOBODY
    first = partition.start[clients][:, None, None]
    return partition.index[np.where(real, place + first, 0)], real


def _epoch(local: LocalTraining, sizes: Ints, length: int, key: int, epoch: int, words: Ints) -> Ints:
    """(k, length) which of its own records a client takes when; NOBODY after the last."""
    if local.order == "sequential":
        place = np.broadcast_to(np.arange(length), (len(sizes), length))
    else:
        keys = shuffle_keys(key, epoch, words, length) >> np.uint64(1)
        keys[np.arange(length) >= sizes] = np.iinfo(np.uint64).max  # padding last
        place = np.argsort(keys, axis=1, kind="stable")
    return np.where(place < sizes, place, NOBODY)
