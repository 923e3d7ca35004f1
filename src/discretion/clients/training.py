"""Local training: settings of SGD, learning-rate schedule, and the batches of each client's steps."""

import math
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from discretion.arrays import Ints
from discretion.errors import InputError
from discretion.randomness.streams import shuffle_keys
from discretion.tasks.partitions import Partition

PADDING = -1  # in place of a record
RecordOrder = Literal["shuffled", "sequential"]


@dataclass(frozen=True)
class Schedule:
    """Learning-rate schedule over rounds, as a share of the learning rate that is 1 in the first round.

    constant; decay: multiplied by `factor` after each round; cosine: half a wave down to 0 after the last
    round, like torch's CosineAnnealingLR.
    """

    kind: Literal["constant", "decay", "cosine"] = "constant"
    factor: float = 1.0  # for decay

    @classmethod
    def parse(cls, text: str) -> "Schedule":
        """Parse "constant", "cosine" or "decay:0.99"."""
        kind, _, factor = text.partition(":")
        with suppress(ValueError):
            if kind == "decay" and 0 < float(factor) <= 1:
                return cls("decay", float(factor))
        known: dict[str, Schedule] = {"constant": cls("constant"), "cosine": cls("cosine")}
        if text in known:
            return known[text]
        raise InputError(
            f"unknown schedule {text!r}: expected constant, cosine, or decay with a factor above 0 and at "
            "most 1, such as decay:0.99"
        )

    def share(self, round_: int, rounds: int | None) -> float:
        """Return the share in round `round_`, counted from 1, of `rounds`."""
        if self.kind == "decay":
            return self.factor ** (round_ - 1)
        if self.kind == "constant":
            return 1.0
        if rounds is None:
            raise InputError("a cosine schedule needs the number of rounds: set Order.rounds")
        return (1 + math.cos(math.pi * (round_ - 1) / rounds)) / 2


@dataclass(frozen=True)
class LocalTraining:
    """SGD over a client's records for a number of epochs, or for a number of steps.

    Momentum and weight decay are those of torch.optim.SGD; the velocity starts at 0 in every round. The last
    batch of an epoch is smaller if the records do not divide evenly. Plans that protect records (DP-SGD) have
    their own steps and random batches and ignore `epochs`, `steps`, `batch_size` and `order`.
    """

    epochs: int = 1  # 0: by steps
    batch_size: int = 10
    learning_rate: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0
    schedule: Schedule = Schedule()  # of the learning rate over rounds
    steps: int = 0  # 0: by epochs
    order: RecordOrder = "shuffled"  # in every epoch, or sequential: as the client holds them

    def __post_init__(self) -> None:
        if min(self.epochs, self.steps) != 0 or max(self.epochs, self.steps) < 1:
            raise InputError(
                f"local training has either epochs or steps: expected one of them to be 1 or more and the "
                f"other 0, found epochs {self.epochs} and steps {self.steps}"
            )
        if self.batch_size < 1:
            raise InputError(f"expected batch_size of at least 1, found {self.batch_size}")

    def rate(self, round_: int, rounds: int | None = None) -> float:
        """Return the learning rate in a round, counted from 1."""
        return self.learning_rate * self.schedule.share(round_, rounds)

    def taken(self, size: int) -> int:
        """Return the most records that a client of `size` records uses in a round, repeats included."""
        return self.epochs * size + self.steps * min(self.batch_size, size)


ONE_EPOCH = LocalTraining()


def batches(
    partition: Partition, local: LocalTraining, key: int, clients: Ints, turn: Ints
) -> tuple[Ints, NDArray[np.bool_]]:
    """Return (k, steps, batch) record numbers, and which of them are real: the others are padding.

    Guarantees:
        A client's real batches and their order depend only on the key, the client, its turn and its records.
        An epoch takes every record once; an epoch cut short by the number of steps takes none twice.
        A client without records has no real batch.
    """
    sizes = partition.sizes[clients]
    batch = max(1, min(local.batch_size, int(sizes.max(initial=0))))
    each = -(-sizes // batch)  # (k,) steps of an epoch
    steps = np.where(each > 0, local.steps, 0) if local.steps else local.epochs * each
    place = np.full((len(clients), int(steps.max(initial=0)), batch), PADDING)
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
    real = place != PADDING
    first = partition.start[clients][:, None, None]
    return partition.index[np.where(real, place + first, 0)], real


def _epoch(local: LocalTraining, sizes: Ints, length: int, key: int, epoch: int, words: Ints) -> Ints:
    """Return (k, length) places among each client's own records in the order of use, then PADDING."""
    if local.order == "sequential":
        place = np.broadcast_to(np.arange(length), (len(sizes), length))
    else:
        keys = shuffle_keys(key, epoch, words, length) >> np.uint64(1)
        keys[np.arange(length) >= sizes] = np.iinfo(np.uint64).max  # padding last
        place = np.argsort(keys, axis=1, kind="stable")
    return np.where(place < sizes, place, PADDING)
