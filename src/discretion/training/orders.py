"""What is asked of clients in a round, and what they answer: the two sides of the training loop."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

from discretion.clip import Matrix
from discretion.noise import Source
from discretion.pick import Reading
from discretion.population import Floats, Ints
from discretion.server import Vector

# who adds the shares of the noise of a secure sum: all are drawn where the sum is made, or they come with the
# answers, and where too few come the server tops up what is missing, or the round is discarded
Shares = Literal["here", "top_up", "discard"]


@dataclass(frozen=True)
class NoisySteps:
    """For plans that protect records: how each of the clients asked trains, with noise in every step."""

    steps: int
    batch: Floats  # (k,) chance of each of its records to be in the batch of a step
    clip: Floats  # (k,) bound on the norm of one record's gradient
    noise: Floats  # (k,) standard deviation, added to the sum of a batch's gradients
    layers: tuple[int, ...]  # of parameters that are clipped together; none: all of them
    source: Callable[[int], Source]  # of the coins and the noise of the i-th client asked
    declared: Ints | None = None  # (k,) how many records it is counted with; None: as many as it has


@dataclass(frozen=True)
class Order:
    """What is asked of the clients of one round."""

    round: int
    key: int  # of the order of batches: neither coins nor noise follow from it
    model: Vector
    clients: Ints  # (k,) their numbers in the population; one may be asked several times
    turn: Ints  # (k,) which time of this round it is, from 0
    noisy: NoisySteps | None = None
    rounds: int | None = None  # of the whole plan, for who plans its learning rate by it


@dataclass(frozen=True)
class Updates:
    """How far some of these clients would move the model.

    What clients hand out for a secure sum is a share of the noise, with an update if their own coins say so.
    """

    clients: Ints  # (k,)
    change: Matrix  # (k, d)
    handed_out: bool = False  # clipped by the clients, with the noise that is theirs; else neither


@dataclass(frozen=True)
class Statistics:
    """What a rule reads of some of the clients asked: a sum over its records, each bounded."""

    place: Ints  # (j,) which of those asked
    value: Floats  # (j, m)
    handed_out: bool = False  # with the noise that is theirs; else without


class Clients(Protocol):
    """Where updates come from: in this process or from elsewhere. Each client answers once a turn, or not."""

    def updates(self, order: Order) -> Iterator[Updates]: ...

    def statistics(self, order: Order, reading: Reading) -> Statistics: ...
