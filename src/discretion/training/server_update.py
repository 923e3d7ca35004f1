"""Server optimizer: how a round's noisy step moves the model. Post-processing, which costs no privacy."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from discretion.arrays import Floats
from discretion.errors import InputError
from discretion.plan.phase import LARGEST, SMALLEST, in_range

Vector = NDArray[np.float32]  # (d,) all trainable parameters, one after the other

NONE = np.zeros(0, np.float32)  # no vector yet


@dataclass(frozen=True)
class Server:
    """The server's optimizer: SGD with momentum, or Adam-style.

    Plain: the model moves by the velocity, the sum of steps with momentum. Adaptive: the model moves by the
    mean of recent steps over their root mean square, as in Adam (Kingma and Ba 2015), except that the mean
    square of a coordinate is raised to the average over all coordinates: small ones are mostly noise, which
    division would amplify. The learning rate then is how far an ordinary coordinate may move in a round,
    whatever the clip and the number of clients.
    """

    learning_rate: float = 1.0
    momentum: float = 0.0
    adaptive: float = 0.0  # Adam-style second-moment decay, e.g. 0.99; 0: plain
    average: float = 0.0  # weight of a model relative to the next in the averaged result; 0: last model only

    def __post_init__(self) -> None:
        decays = (self.momentum, self.adaptive, self.average)
        if not (in_range(self.learning_rate) and all(0 <= decay < 1 for decay in decays)):
            raise InputError(
                f"invalid server optimizer: found {self}; expected a learning rate from {SMALLEST:g} to "
                f"{LARGEST:g}, and momentum, adaptive and average from 0 to below 1"
            )

    def move(
        self, model: Vector, velocity: Vector, square: Vector, step: Floats, round_: int
    ) -> tuple[Vector, Vector, Vector]:
        """Return the model, the velocity and the mean square of steps after the step of a round."""
        faster = self.momentum * velocity + step
        move = faster
        if self.adaptive > 0:
            share = (1 - self.adaptive) / (1 - self.adaptive**round_)  # bias correction: no squares at first
            usual = (square if len(square) else 0.0) * (1 - share) + share * np.square(step)
            level = np.sqrt(np.maximum(usual, usual.mean()))
            ordinary = faster * ((1 - self.momentum) / (1 - self.momentum**round_))
            move = np.divide(ordinary, level, out=np.zeros_like(ordinary), where=level > 0)
            square = usual.astype(np.float32)
        moved = (model + self.learning_rate * move).astype(np.float32)
        return moved, faster.astype(np.float32), square


def mean_model(average: float, mean: Vector, model: Vector, round_: int) -> Vector:
    """Return (d,) the average of the models after `round_` rounds; empty without averaging.

    Guarantees:
        The weights of the models sum to 1, and each is `average` times that of the next. The model that
        training started from does not count.
    """
    if average == 0:
        return NONE
    if not len(mean):
        return model
    # (a + … + a^(t-1)) / (1 + a + … + a^(t-1))
    kept = average * (1 - average ** (round_ - 1)) / (1 - average**round_)
    return (kept * mean + (1 - kept) * model).astype(np.float32)


PLAIN = Server()
