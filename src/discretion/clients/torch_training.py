"""Training and evaluation by torch, for any model: one client at a time, or many at once by vmap."""

import copy
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from discretion import engine
from discretion.arrays import Ints
from discretion.clients.devices import thread_pool
from discretion.clients.training import LocalTraining
from discretion.tasks import models
from discretion.tasks.datasets import Dataset, Split
from discretion.training.server_update import Vector

Parameters = dict[str, Tensor]

BATCH = 500  # records evaluated at a time


class RecordTensors:
    """The records of one split; images stay bytes until a batch is taken.

    On the CPU the tensors share the data set's memory.
    """

    def __init__(self, dataset: Dataset, split: Split, device: torch.device) -> None:
        self.dataset, self._split = dataset, split
        self._inputs = torch.from_numpy(split.inputs).to(device)
        self._labels = torch.from_numpy(split.labels).to(device)

    def __len__(self) -> int:
        return len(self._labels)

    @property
    def device(self) -> torch.device:
        return self._labels.device

    def batch(self, records: Ints | slice) -> tuple[Tensor, Tensor]:
        """Return the records' inputs, as the model takes them, and labels."""
        part = records if isinstance(records, slice) else torch.from_numpy(records).to(self.device)
        return self._ready(self._inputs[part]), self._labels[part]

    @cached_property
    def arrays(self) -> engine.RecordArrays:
        """Return the records as compiled code reads them."""
        image = self.dataset.kind == "image"
        lookup = self._ready(torch.arange(256, dtype=torch.uint8)).numpy() if image else None
        return engine.RecordArrays(self._split.inputs, self._split.labels, lookup).laid_out()

    def _ready(self, inputs: Tensor) -> Tensor:
        """Convert inputs to what the model takes: scaled floats of images, integers of text."""
        if self.dataset.kind == "image":
            return inputs.float().div_(255).sub_(self.dataset.mean).div_(self.dataset.std)
        return inputs.long() if self.dataset.kind == "text" else inputs


@dataclass(frozen=True)
class Quality:
    accuracy: float
    loss: float

    @staticmethod
    def sums(logits: Tensor, labels: Tensor) -> tuple[int, float]:
        """Return the number of right predictions and the sum of losses."""
        right = (logits.argmax(1) == labels).sum().cpu()
        return int(right), float(functional.cross_entropy(logits, labels, reduction="sum").cpu())


class FastLayout:
    """A copy of the model in torch's fastest memory layout: channels last, if the model allows it.

    Models that use `view` on activations may fail in that layout: they keep torch's default.
    """

    def __init__(self, model: nn.Module, data: RecordTensors) -> None:
        self.model, self._data, self._channels_last = copy.deepcopy(model), data, False
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
        """Copy a flat model into the trained parameters and return them."""
        parameters: list[Tensor] = [p for p in self.model.parameters() if p.requires_grad]
        numbers = torch.from_numpy(vector if vector.flags.writeable else vector.copy())
        parts = numbers.split_with_sizes([p.numel() for p in parameters])
        with torch.no_grad():
            for p, part in zip(parameters, parts, strict=True):
                p.copy_(part.view(p.shape))
        return parameters

    def quality(self, vector: Vector) -> Quality:
        """Evaluate a flat model, each batch on one thread: two threads on one batch are slower.

        Guarantees: the result does not depend on the number of threads.
        """
        self.load(vector)
        with thread_pool() as pool:
            found = list(pool.map(self._evaluate, range(0, len(self._data), BATCH)))
        right, loss = (sum(each) for each in zip(*found, strict=True))
        return Quality(right / len(self._data), loss / len(self._data))

    def _evaluate(self, start: int) -> tuple[int, float]:
        inputs, labels = self._data.batch(slice(start, start + BATCH))
        with torch.no_grad():
            return Quality.sums(self(inputs), labels)


@dataclass
class TorchTraining:
    """SGD of clients, each from the same start: one after the other, or many at once by vmap."""

    model: nn.Module
    data: RecordTensors
    local: LocalTraining

    def __post_init__(self) -> None:
        self._laid = FastLayout(self.model, self.data)
        self._vmap_works = True

    def train(self, start: Vector, records: Ints, real: NDArray[np.bool_], rate: float) -> Vector:
        """Train on (steps, batch) records from `start`; return (d,) the change of the model.

        Guarantees:
            The change depends, to the last bit, on the model, the real records and the rate only.
            A step without a real record changes nothing.
        """
        parameters = self._laid.load(start)
        velocity = [torch.zeros_like(p) for p in parameters]
        for drawn, some in zip(records, real, strict=True):
            if some.any():
                self._step(parameters, velocity, drawn[some], rate)
        moved = torch.cat([p.detach().reshape(-1) for p in parameters]).cpu().numpy()
        return np.asarray(moved - start, dtype=np.float32)

    def _step(self, parameters: list[Tensor], velocity: list[Tensor], records: Ints, rate: float) -> None:
        inputs, labels = self.data.batch(records)
        loss = functional.cross_entropy(self._laid(inputs), labels)
        slopes = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
        with torch.no_grad():
            for p, v, slope in zip(parameters, velocity, slopes, strict=True):
                if self.local.weight_decay:
                    slope = slope.add(p, alpha=self.local.weight_decay)
                if self.local.momentum:
                    slope = v.mul_(self.local.momentum).add_(slope)
                p.sub_(slope, alpha=rate)

    def train_many(self, start: Vector, records: Ints, real: NDArray[np.bool_], rate: float) -> Vector:
        """Train on (k, steps, batch) records from `start`; return (k, d) the changes of the model.

        All clients at once, which is fast on a GPU; one after the other where vmap cannot train the model.
        """
        if self._vmap_works:
            try:
                return self._train_by_vmap(start, records, real, rate)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError:
                self._vmap_works = False
        return np.stack([self.train(start, *one, rate) for one in zip(records, real, strict=True)])

    def _train_by_vmap(self, start: Vector, records: Ints, real: NDArray[np.bool_], rate: float) -> Vector:
        named, clients = models.unflatten(start, self.model), len(records)
        many = {name: p.expand(clients, *p.shape) for name, p in named.items()}
        velocity = {name: torch.zeros_like(p).expand(clients, *p.shape) for name, p in named.items()}
        counts = torch.from_numpy(real).to(self.data.device)
        step = vmap(self._vmap_step, in_dims=(0, 0, 0, 0, 0, None))
        for k in range(records.shape[1]):
            many, velocity = step(many, velocity, *self.data.batch(records[:, k]), counts[:, k], rate)
        moved = [(many[name] - p).reshape(clients, -1) for name, p in named.items()]
        return torch.cat(moved, dim=1).cpu().numpy()

    def _vmap_step(
        self, now: Parameters, velocity: Parameters, inputs: Tensor, labels: Tensor, real: Tensor, rate: float
    ) -> tuple[Parameters, Parameters]:
        """Step on the mean loss of a batch's real records, if any; return parameters and velocity."""

        def loss(parameters: Parameters) -> Tensor:
            logits = functional_call(self.model, parameters, (inputs,))
            each = functional.cross_entropy(logits, labels, reduction="none")
            return (each * real).sum() / real.sum().clamp(min=1)

        slope, some = grad(loss)(now), real.any()
        momentum, decay = self.local.momentum, self.local.weight_decay
        faster = {n: momentum * v + slope[n] + decay * now[n] for n, v in velocity.items()}
        moved = {n: torch.where(some, p - rate * faster[n], p) for n, p in now.items()}
        return moved, {n: torch.where(some, v, velocity[n]) for n, v in faster.items()}
