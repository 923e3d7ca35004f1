"""What a client does with the model in a round."""

import math
from dataclasses import dataclass
from typing import Literal

from discretion.errors import InputError

RecordOrder = Literal["shuffled", "sequential"]


@dataclass(frozen=True)
class Schedule:
    """The share of the learning rate that a round has: 1 in the first.

    constant; decay: multiplied by `factor` after each round; cosine: down half a wave, to 0 after the last
    round, as torch's CosineAnnealingLR has it.
    """

    kind: Literal["constant", "decay", "cosine"] = "constant"
    factor: float = 1.0  # of decay

    @classmethod
    def parse(cls, text: str) -> "Schedule":
        """From "constant", "cosine" or "decay:0.99"."""
        kind, _, factor = text.partition(":")
        try:
            if kind == "decay" and 0 < float(factor) <= 1:
                return cls("decay", float(factor))
        except ValueError:
            pass
        if text == "constant":
            return cls("constant")
        if text == "cosine":
            return cls("cosine")
        raise InputError(
            f"unknown schedule {text!r}: expected constant, cosine, or decay with a factor above 0 and at "
            "most 1, such as decay:0.99"
        )

    def share(self, round_: int, rounds: int | None) -> float:
        """Of round `round_`, counted from 1, of `rounds`."""
        if self.kind == "decay":
            return self.factor ** (round_ - 1)
        if self.kind == "constant":
            return 1.0
        if rounds is None:
            raise InputError("a cosine schedule needs to know the number of rounds: give Order.rounds")
        return (1 + math.cos(math.pi * (round_ - 1) / rounds)) / 2


CONSTANT = Schedule()


@dataclass(frozen=True)
class LocalTraining:
    """SGD over a client's records, for so many epochs, or for so many steps whatever its records.

    Momentum and weight decay are as torch.optim.SGD has them; the velocity starts anew in every round. An
    epoch ends with a smaller batch where the records do not divide evenly. Plans for records have steps and
    batches of their own, by coins: there `epochs`, `steps`, `batch_size` and `order` say nothing.
    """

    epochs: int = 1  # 0: by steps
    batch_size: int = 10
    learning_rate: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0
    schedule: Schedule = CONSTANT  # of the learning rate over the rounds
    steps: int = 0  # 0: by epochs
    order: RecordOrder = "shuffled"  # anew in every epoch, or as the client holds them

    def __post_init__(self) -> None:
        if min(self.epochs, self.steps) != 0 or max(self.epochs, self.steps) < 1:
            raise InputError(
                f"local training is for epochs or for steps: expected one of them to be 1 or more and the "
                f"other 0, found epochs {self.epochs} and steps {self.steps}"
            )
        if self.batch_size < 1:
            raise InputError(f"a batch has at least 1 record, found batch_size {self.batch_size}")

    def rate(self, round_: int, rounds: int | None = None) -> float:
        """The learning rate in a round, counted from 1."""
        return self.learning_rate * self.schedule.share(round_, rounds)

    def taken(self, size: int) -> int:
        """At most so many records are taken in a round by a client that holds `size`."""
        return self.epochs * size + self.steps * min(self.batch_size, size)


ONE_EPOCH = LocalTraining()
