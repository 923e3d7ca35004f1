"""Train one client at a time by torch: any model, with torch's own backward."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from discretion.clients.tensors import Tensors
from discretion.clients.training import LocalTraining
from discretion.population import Ints
from discretion.server import Vector


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch's sums are cut by its threads: with one they are the same wherever they are made."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Laid:
    """A copy of the model in the layout that is fastest: channels last, where the model allows it.

    A model that looks at its numbers by `view` may not: such a one keeps torch's usual layout.
    """

    def __init__(self, model: nn.Module, data: Tensors) -> None:
        self.model = copy.deepcopy(model)
        self._channels_last = False
        inputs, _ = data.batch(slice(0, 2))
        if inputs.dim() == 4 and any(p.dim() == 4 for p in model.parameters()):
            changed = copy.deepcopy(model)
            for p in changed.parameters():
                if p.dim() == 4:
                    p.data = p.data.to(memory_format=torch.channels_last)
            try:
                with torch.no_grad():
                    changed(inputs.contiguous(memory_format=torch.channels_last))
            except RuntimeError:
                return
            self.model, self._channels_last = changed, True

    def __call__(self, inputs: Tensor) -> Tensor:
        if self._channels_last:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        logits: Tensor = self.model(inputs)
        return logits

    def load(self, vector: Vector) -> list[Tensor]:
        """The trained parameters, which now have these numbers."""
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        numbers = torch.from_numpy(vector if vector.flags.writeable else vector.copy())
        parts = numbers.split_with_sizes([p.numel() for p in parameters])
        with torch.no_grad():
            for p, part in zip(parameters, parts, strict=True):
                p.copy_(part.view(p.shape))
        return list(parameters)


class SingleTraining:
    """SGD of one client after the other, on one model that each begins anew."""

    def __init__(self, model: nn.Module, data: Tensors, local: LocalTraining) -> None:
        self._data = data
        self._local = local
        self._laid = Laid(model, data)

    def train(self, start: Vector, records: Ints, real: NDArray[np.bool_], rate: float) -> Vector:
        """(d,) how far a client with these (steps, batch) records moves the model.

        Guarantees:
            The row depends, to the last bit, on the model, the real records and the rate only.
            A step without a real record moves nothing.
        """
        parameters = self._laid.load(start)
        velocity = [torch.zeros_like(p) for p in parameters]
        for drawn, some in zip(records, real, strict=True):
            if some.any():
                self._step(parameters, velocity, drawn[some], rate)
        moved = torch.cat([p.detach().reshape(-1) for p in parameters]).cpu().numpy()
        return np.asarray(moved - start, dtype=np.float32)

    def _step(self, parameters: list[Tensor], velocity: list[Tensor], records: Ints, rate: float) -> None:
        inputs, labels = self._data.batch(records)
        loss = functional.cross_entropy(self._laid(inputs), labels)
        slopes = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
        with torch.no_grad():
            for p, v, slope in zip(parameters, velocity, slopes, strict=True):
                if self._local.weight_decay:
                    slope = slope.add(p, alpha=self._local.weight_decay)
                if self._local.momentum:
                    slope = v.mul_(self._local.momentum).add_(slope)
                p.sub_(slope, alpha=rate)
