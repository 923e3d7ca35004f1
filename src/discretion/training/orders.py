"""Orders to clients and their answers: the interface between training loop and clients."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from numpy.typing import NDArray

from discretion.arrays import Floats, Ints
from discretion.plan.selection_rules import Reading
from discretion.randomness.sources import Source
from discretion.training.server_update import Vector

# who adds the noise of a secure sum. here: the process that sums; otherwise clients add shares to their
# answers, and where too few come, the server adds the rest (top_up) or discards the round (discard)
Shares = Literal["here", "top_up", "discard"]


@dataclass(frozen=True)
class NoisySteps:
    """Noisy steps (DP-SGD) of each client asked, for plans whose unit of privacy is a record."""

    steps: int
    batch: Floats  # (k,) sampling rate of records: chance of a record to be in the batch of a step
    clip: Floats  # (k,) clipping norm of one record's gradient
    noise: Floats  # (k,) standard deviation of the noise on the sum of a batch's gradients
    layers: tuple[int, ...]  # lengths of the layers that are clipped together; empty: flat clipping
    source: Callable[[int], Source]  # coins and noise of the i-th client asked
    declared: Ints | None = None  # (k,) declared number of records, for the divisor; None: the actual one


@dataclass(frozen=True)
class Order:
    """What the clients of one round are asked to do."""

    round: int
    key: int  # of the order of batches; reveals neither coins nor noise
    model: Vector
    clients: Ints  # (k,) client numbers in the population; a client may be asked several times
    turn: Ints  # (k,) number of the client's turn in this round, from 0
    noisy: NoisySteps | None = None
    rounds: int | None = None  # of the whole plan, for learning rate schedules


@dataclass(frozen=True)
class Updates:
    """Model updates of some of the clients asked.

    For a secure sum, each client hands out its share of the noise, plus its update if its own coin says so.
    """

    clients: Ints  # (k,) client numbers
    change: NDArray[Any]  # (k, d) float32 updates; int64, in whole steps, if handed out on a grid
    handed_out: bool = False  # whether clients have clipped them and added their own noise
    # whether `change` is (1, d): the sum of what these clients of one pool handed out on a grid, by a secure
    # sum, so that nobody saw them one by one
    summed: bool = False


@dataclass(frozen=True)
class Statistics:
    """Statistics of some of the clients asked: sums over a client's records, each record's part bounded."""

    place: Ints  # (j,) places in the order's list of clients
    value: Floats  # (j, m) statistics
    handed_out: bool = False  # whether clients have added their own noise


class Clients(Protocol):
    """Source of updates, in this process or elsewhere. A client answers each turn once, or not at all."""

    def updates(self, order: Order) -> Iterator[Updates]: ...

    def statistics(self, order: Order, reading: Reading) -> Statistics: ...
