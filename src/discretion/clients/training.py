"""What a client does with the model in a round."""

from dataclasses import dataclass


@dataclass(frozen=True)
class LocalTraining:
    """What a client does with the model: SGD over its records, shuffled in each epoch.

    Momentum and weight decay are as torch.optim.SGD has them; the velocity starts anew in every round.
    """

    epochs: int = 1
    batch_size: int = 10
    learning_rate: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0
    decay: float = 1.0  # the learning rate is multiplied by it after each round

    def rate(self, round_: int) -> float:
        """The learning rate in a round, counted from 1."""
        return self.learning_rate * self.decay ** (round_ - 1)


ONE_EPOCH = LocalTraining()
