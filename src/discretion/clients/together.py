"""Train many clients at once by torch's vmap, which is fast on a GPU and slow on a CPU."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from discretion.clients.single import SingleTraining
from discretion.clients.tensors import Tensors
from discretion.clients.training import LocalTraining
from discretion.population import Ints
from discretion.server import Vector
from discretion.tasks import models

Parameters = dict[str, Tensor]


class TogetherTraining:
    """SGD of some clients at once; one after the other where torch cannot do the model so."""

    def __init__(self, model: nn.Module, data: Tensors, local: LocalTraining) -> None:
        self._model = model
        self._data = data
        self._local = local
        self._single = SingleTraining(model, data, local)
        self._possible = True

    def train(self, start: Vector, records: Ints, real: NDArray[np.bool_], rate: float) -> Vector:
        """(k, d) how far clients with these (k, steps, batch) records move the model."""
        if self._possible:
            try:
                return self._train(start, records, real, rate)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError:
                self._possible = False
        each = [self._single.train(start, *one, rate) for one in zip(records, real, strict=True)]
        return np.stack(each)

    def _train(self, start: Vector, records: Ints, real: NDArray[np.bool_], rate: float) -> Vector:
        named, clients = models.unflatten(start, self._model), len(records)
        many = {name: p.expand(clients, *p.shape) for name, p in named.items()}
        velocity = {name: torch.zeros_like(p).expand(clients, *p.shape) for name, p in named.items()}
        counts = torch.from_numpy(real).to(self._data.device)
        step = vmap(self._step, in_dims=(0, 0, 0, 0, 0, None))
        for number in range(records.shape[1]):
            many, velocity = step(
                many, velocity, *self._data.batch(records[:, number]), counts[:, number], rate
            )
        moved = [(many[name] - p).reshape(clients, -1) for name, p in named.items()]
        return torch.cat(moved, dim=1).cpu().numpy()

    def _step(
        self,
        parameters: Parameters,
        velocity: Parameters,
        inputs: Tensor,
        labels: Tensor,
        real: Tensor,
        rate: float,
    ) -> tuple[Parameters, Parameters]:
        """Of one client, on the mean loss of the real records of its batch, if any."""

        def loss(parameters: Parameters) -> Tensor:
            logits = functional_call(self._model, parameters, (inputs,))
            each = functional.cross_entropy(logits, labels, reduction="none")
            return (each * real).sum() / real.sum().clamp(min=1)

        slope, local, some = grad(loss)(parameters), self._local, real.any()
        faster = {
            n: local.momentum * v + slope[n] + local.weight_decay * parameters[n] for n, v in velocity.items()
        }
        moved = {n: torch.where(some, p - rate * faster[n], p) for n, p in parameters.items()}
        return moved, {n: torch.where(some, v, velocity[n]) for n, v in faster.items()}
