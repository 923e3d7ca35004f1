"""All clients in this process: the clients of a round are trained together, vectorised by torch."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from discretion.clients.noisy import NoisyTraining
from discretion.engine.records import Records
from discretion.pick import Reading
from discretion.population import Ints
from discretion.streams import shuffle_keys
from discretion.tasks import models
from discretion.tasks.datasets import Dataset, Split
from discretion.tasks.partitions import Partition
from discretion.train import Order, Updates, Vector

Parameters = dict[str, Tensor]

CHUNK_NUMBERS = 2**22  # parameters of all clients that are trained together
MOST_TOGETHER = 64
EVALUATION_BATCH = 1000


@dataclass(frozen=True)
class LocalTraining:
    """What a client does with the model: plain SGD over its records, shuffled in each epoch."""

    epochs: int = 1
    batch_size: int = 10
    learning_rate: float = 0.1


ONE_EPOCH = LocalTraining()


@dataclass(frozen=True)
class Quality:
    accuracy: float
    loss: float


class LocalClients:
    """Clients that share one copy of the data, each with its own records of it."""

    def __init__(
        self, dataset: Dataset, partition: Partition, model: nn.Module, local: LocalTraining = ONE_EPOCH
    ) -> None:
        models.check(model)
        self._model = model.train()
        self._partition = partition
        self._local = local
        self._dataset = dataset
        self._inputs, self._labels = _tensors(dataset.train)
        size = len(self.initial())
        self._together = max(1, min(MOST_TOGETHER, CHUNK_NUMBERS // size))
        self._step: Callable[..., Parameters] | None = None
        self._noisy = NoisyTraining(model, partition, self._batch, local.learning_rate)

    @cached_property
    def _records(self) -> Records:
        return Records(self._model)

    @property
    def layers(self) -> tuple[int, ...]:
        """How many parameters each of the model's tensors has, of those that are trained."""
        return tuple(p.numel() for p in self._model.parameters() if p.requires_grad)

    def initial(self) -> Vector:
        """The model that training starts from."""
        return models.flatten(self._model)

    def named(self, model: Vector) -> dict[str, np.ndarray]:
        """The model as its parameters by name, as a state dict has them."""
        return {name: p.numpy() for name, p in models.unflatten(model, self._model).items()}

    def updates(self, order: Order) -> Iterator[Updates]:
        if order.noisy is not None:
            yield from self._noisy.updates(order, order.noisy)
            return
        # clients of like size together, so that little is padded
        by_size = np.argsort(self._partition.sizes[order.clients], kind="stable")
        for start in range(0, len(by_size), self._together):
            part = by_size[start : start + self._together]
            yield Updates(order.clients[part], self._train(order, order.clients[part], order.turn[part]))

    def statistics(self, order: Order, reading: Reading) -> np.ndarray:
        """(k, m) what a rule reads of each client asked, a sum over its records; not finite counts as 0."""
        rows = [self._statistic(order.model, self._partition.of(client), reading) for client in order.clients]
        return np.nan_to_num(np.array(rows, dtype=np.float64), nan=0.0, posinf=0.0, neginf=0.0)

    def _statistic(self, model: Vector, records: Ints, reading: Reading) -> list[float]:
        bound = reading.bound
        if reading.rule == "class_balance":
            labels = self._labels[torch.from_numpy(records)]
            return torch.bincount(labels, minlength=self._dataset.classes).tolist()
        if reading.rule == "largest_loss":
            inputs, labels = self._batch(records)
            with torch.no_grad():
                logits = functional_call(self._model, models.unflatten(model, self._model), (inputs,))
                each = functional.cross_entropy(logits, labels, reduction="none")
            return [float(torch.nan_to_num(each, nan=bound).clamp(max=bound).sum())]
        total, squares = np.zeros(len(model)), 0.0
        for part in self._records.gradients(model, *self._batch(records)):
            norm = np.linalg.norm(part.astype(np.float64), axis=1)
            factor = np.where(np.isfinite(norm), np.minimum(1.0, bound / np.maximum(norm, 1e-30)), 0.0)
            total += np.where(factor > 0, factor, 0.0) @ np.nan_to_num(part)
            squares += float(np.square(np.where(factor > 0, factor * norm, 0.0)).sum())
        length = float(np.linalg.norm(total))
        return [length] if reading.rule == "norm" else [length, squares / bound]

    def evaluate(self, model: Vector) -> Quality:
        """On the test records."""
        inputs, labels = _tensors(self._dataset.test)
        parameters = models.unflatten(model, self._model)
        right, loss = 0, 0.0
        with torch.no_grad():
            for start in range(0, len(labels), EVALUATION_BATCH):
                batch = slice(start, start + EVALUATION_BATCH)
                logits = functional_call(self._model, parameters, (self._ready(inputs[batch]),))
                right += int((logits.argmax(1) == labels[batch]).sum())
                loss += float(functional.cross_entropy(logits, labels[batch], reduction="sum"))
        return Quality(right / len(labels), loss / len(labels))

    def _train(self, order: Order, clients: Ints, turn: Ints) -> np.ndarray:
        """(k, d) how far local training moves the model, for each client."""
        start = models.unflatten(order.model, self._model)
        many = {name: p.expand(len(clients), *p.shape) for name, p in start.items()}
        for epoch in range(self._local.epochs):
            records, real = self._batches(order, clients, turn, epoch)
            for step in range(records.shape[1]):
                many = self._together_step(many, records[:, step], real[:, step])
        moved = [(many[name] - start[name]).reshape(len(clients), -1) for name in start]
        return torch.cat(moved, dim=1).numpy()

    def _batches(self, order: Order, clients: Ints, turn: Ints, epoch: int) -> tuple[Tensor, Tensor]:
        """(k, steps, batch) record numbers, and which of them are real: short clients are padded."""
        sizes = self._partition.sizes[clients]
        batch = min(self._local.batch_size, int(sizes.max()))
        steps = -(-int(sizes.max()) // batch)
        keys = shuffle_keys(order.key, epoch, clients + (turn << 32), steps * batch)
        keys >>= np.uint64(1)
        keys[np.arange(steps * batch) >= sizes[:, None]] = np.iinfo(np.uint64).max  # padding last
        place = np.argsort(keys, axis=1, kind="stable")
        real = place < sizes[:, None]
        place = np.where(real, place, 0) + self._partition.start[clients][:, None]
        records = self._partition.index[place].reshape(len(clients), steps, batch)
        return torch.from_numpy(records), torch.from_numpy(real.reshape(records.shape))

    def _together_step(self, many: Parameters, records: Tensor, real: Tensor) -> Parameters:
        arguments = (many, self._ready(self._inputs[records]), self._labels[records], real)
        if self._step is None:
            self._step, result = self._choose_step(arguments)
            return result
        return self._step(*arguments)

    def _choose_step(
        self, arguments: tuple[Parameters, Tensor, Tensor, Tensor]
    ) -> tuple[Callable[..., Parameters], Parameters]:
        """All clients at once if torch can, else one after the other with the same arithmetic."""
        together = vmap(self._one_step)
        try:
            return together, together(*arguments)
        except RuntimeError:
            return self._one_after_other, self._one_after_other(*arguments)

    def _one_step(self, parameters: Parameters, inputs: Tensor, labels: Tensor, real: Tensor) -> Parameters:
        """One step of SGD for one client, on the mean loss of the real records of its batch."""

        def loss(parameters: Parameters) -> Tensor:
            logits = functional_call(self._model, parameters, (inputs,))
            each = functional.cross_entropy(logits, labels, reduction="none")
            return (each * real).sum() / real.sum().clamp(min=1)

        slope = grad(loss)(parameters)
        rate = self._local.learning_rate
        return {name: p - rate * slope[name] for name, p in parameters.items()}

    def _one_after_other(self, many: Parameters, inputs: Tensor, labels: Tensor, real: Tensor) -> Parameters:
        each = [
            self._one_step({name: p[k] for name, p in many.items()}, inputs[k], labels[k], real[k])
            for k in range(len(labels))
        ]
        return _stacked(each)

    def _batch(self, records: Ints) -> tuple[Tensor, Tensor]:
        """The inputs and labels of these records."""
        part = torch.from_numpy(records)
        return self._ready(self._inputs[part]), self._labels[part]

    def _ready(self, inputs: Tensor) -> Tensor:
        """Images stay bytes until they are used."""
        if self._dataset.kind == "image":
            return (inputs.float() / 255 - self._dataset.mean) / self._dataset.std
        return inputs.long() if self._dataset.kind == "text" else inputs


def _tensors(split: Split) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(split.inputs), torch.from_numpy(split.labels)


def _stacked(each: list[Parameters]) -> Parameters:
    return {name: torch.stack([one[name] for one in each]) for name in each[0]}
