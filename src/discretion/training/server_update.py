"""What the server does with a round's step: post-processing of what is released, which costs no privacy."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from discretion.population import Floats

Vector = NDArray[np.float32]  # (d,) all trainable parameters, one after the other

NONE = np.zeros(0, np.float32)  # the mean of no models


@dataclass(frozen=True)
class Server:
    """How the model moves by the steps of the rounds.

    Plain: by velocity, the steps added up with momentum. Adaptive: by the mean of the last steps over their
    usual size, as Adam does (Kingma and Ba 2015), but no coordinate counts as smaller than all are on
    average: most of what is small is noise, and dividing by it would make it large. The learning rate then is
    how far an ordinary coordinate may move in a round, whatever the clip and the number of clients.
    """

    learning_rate: float = 1.0
    momentum: float = 0.0
    adaptive: float = 0.0  # memory of the squares of steps; 0: plain
    average: float = 0.0  # a model counts so much less than the one after it; 0: only the last counts

    def move(
        self, model: Vector, velocity: Vector, square: Vector, step: Floats, round_: int
    ) -> tuple[Vector, Vector, Vector]:
        """The model, the velocity and the mean square of steps after the step of a round."""
        faster = self.momentum * velocity + step
        move = faster
        if self.adaptive > 0:
            share = (1 - self.adaptive) / (1 - self.adaptive**round_)  # of this step: squares start at none
            usual = (square if len(square) else 0.0) * (1 - share) + share * np.square(step)
            level = np.sqrt(np.maximum(usual, usual.mean()))
            ordinary = faster * ((1 - self.momentum) / (1 - self.momentum**round_))
            move = np.divide(ordinary, level, out=np.zeros_like(ordinary), where=level > 0)
            square = usual.astype(np.float32)
        moved = (model + self.learning_rate * move).astype(np.float32)
        return moved, faster.astype(np.float32), square


def mean_model(average: float, mean: Vector, model: Vector, round_: int) -> Vector:
    """(d,) of the models after `round_` rounds, of which this is the last; none if none are averaged.

    Guarantees:
        The weights of the models sum to 1, and each is `average` times that of the next: the model that
        training started from has none.
    """
    if average == 0:
        return NONE
    if not len(mean):
        return model
    # (a + … + a^(t-1)) / (1 + a + … + a^(t-1))
    kept = average * (1 - average ** (round_ - 1)) / (1 - average**round_)
    return (kept * mean + (1 - kept) * model).astype(np.float32)


PLAIN = Server()
