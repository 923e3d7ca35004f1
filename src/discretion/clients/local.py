"""All clients in this process: those of a round are trained together, in compiled code or by torch."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from discretion import engine
from discretion.clients.noisy import NoisyTraining
from discretion.clients.training import ONE_EPOCH, LocalTraining
from discretion.clip import finite_and_factor
from discretion.engine.records import Records
from discretion.orders import Order, Statistics, Updates, Vector
from discretion.pick import Reading
from discretion.population import Ints
from discretion.streams import shuffle_keys
from discretion.tasks import models
from discretion.tasks.datasets import Dataset, Split
from discretion.tasks.partitions import Partition

Parameters = dict[str, Tensor]

CHUNK_NUMBERS = 2**22  # parameters of all clients or records that torch takes together
MOST_TOGETHER = 64
COMPILED_NUMBERS = 2**25  # floats of updates, and as much for batches, that compiled code takes together
BATCH_NUMBERS = 6  # floats' worth of memory for each record in a batch: its number, key, place and mask
EVALUATION_BATCH = 1000


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
        self._step: Callable[..., tuple[Parameters, Parameters]] | None = None
        self._stack = _stack(model, dataset) if engine.available() else None
        self._records = engine.Records(
            np.ascontiguousarray(dataset.train.inputs),
            np.ascontiguousarray(dataset.train.labels, np.int64),
            self._ready(torch.arange(256, dtype=torch.uint8)).numpy() if dataset.kind == "image" else None,
        )
        self._noisy = NoisyTraining(model, partition, self._batch, local)

    @cached_property
    def _slopes(self) -> Records:
        """Gradients of single records."""
        return Records(self._model)

    @property
    def layers(self) -> tuple[int, ...]:
        """How many parameters each of the model's tensors has, of those that are trained."""
        return tuple(p.numel() for p in self._model.parameters() if p.requires_grad)

    @property
    def shapes(self) -> str:
        """A digest of the shapes of the model's parameters, by which guards know it."""
        return models.shapes_digest(self._model)

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
        sizes = self._partition.sizes[order.clients]
        by_size = np.argsort(sizes, kind="stable")
        together = self._at_once(int(sizes.max(initial=1)))
        for start in range(0, len(by_size), together):
            part = by_size[start : start + together]
            yield Updates(order.clients[part], self._train(order, order.clients[part], order.turn[part]))

    def _at_once(self, records: int) -> int:
        """How many clients with at most so many records are trained together."""
        if self._stack is None:
            return self._together
        numbers = max(self._stack.size, BATCH_NUMBERS * self._local.epochs * records)
        return max(torch.get_num_threads(), COMPILED_NUMBERS // numbers)

    def statistics(self, order: Order, reading: Reading) -> Statistics:
        """What a rule reads of each client asked, without noise.

        Guarantees:
            One record more or less moves a client's row by at most `reading.sensitivity`, whatever the
            record or the model: a loss counts as 0 to `bound`, a gradient is clipped to it and counts as zero
            if it is not finite, and so do the sum of squared norms, over `bound`, and `bound` for a label.
        """
        rows = [self._statistic(order.model, self._partition.of(client), reading) for client in order.clients]
        return Statistics(np.arange(len(rows)), np.array(rows, dtype=np.float64))

    def _statistic(self, model: Vector, records: Ints, reading: Reading) -> list[float]:
        bound = reading.bound
        if reading.rule == "class_balance":
            labels = self._labels[torch.from_numpy(records)]
            count: list[int] = torch.bincount(labels, minlength=self._dataset.classes).tolist()
            return [bound * number for number in count]
        if reading.rule == "largest_loss":
            return [float(self._losses(model, records).nan_to_num(nan=bound).clamp(0, bound).sum())]
        total, squares = np.zeros(len(model)), 0.0
        for part in self._slopes.gradients(model, *self._batch(records)):
            slopes, factor = finite_and_factor(part, np.full(len(part), bound), [slice(None)])
            clipped = factor * slopes  # (n, d) float64
            total += clipped.sum(axis=0)
            squares += float(np.square(clipped / bound).sum())
        length = float(np.linalg.norm(total))
        return [length] if reading.rule == "norm" else [length, squares * bound]

    def _losses(self, model: Vector, records: Ints) -> Tensor:
        """(n,) the loss of each record, in float64, so that their sum is exact enough."""
        parameters, found = models.unflatten(model, self._model), []
        with torch.no_grad():
            for start in range(0, len(records), EVALUATION_BATCH):
                part = torch.from_numpy(records[start : start + EVALUATION_BATCH])
                logits = functional_call(self._model, parameters, (self._ready(self._inputs[part]),))
                found.append(functional.cross_entropy(logits.double(), self._labels[part], reduction="none"))
        return torch.cat(found)

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
        epochs = [self._batches(order, clients, turn, epoch) for epoch in range(self._local.epochs)]
        records, real = (np.concatenate(part, axis=1) for part in zip(*epochs, strict=True))
        if self._stack is None:
            return self._train_by_torch(order, records, real)
        rates = np.full(records.shape[1], self._local.rate(order.round), np.float32)
        batches = engine.Batches(records, real, rates, self._local.momentum, self._local.weight_decay)
        return engine.train(self._stack, self._records, batches, order.model, torch.get_num_threads())

    def _train_by_torch(self, order: Order, records: Ints, real: np.ndarray) -> np.ndarray:
        start = models.unflatten(order.model, self._model)
        many = {name: p.expand(len(records), *p.shape) for name, p in start.items()}
        velocity = {name: torch.zeros_like(p).expand(len(records), *p.shape) for name, p in start.items()}
        rate = self._local.rate(order.round)
        for step in range(records.shape[1]):
            drawn, counts = torch.from_numpy(records[:, step]), torch.from_numpy(real[:, step])
            many, velocity = self._together_step(many, velocity, drawn, counts, rate)
        moved = [(many[name] - start[name]).reshape(len(records), -1) for name in start]
        return torch.cat(moved, dim=1).numpy()

    def _batches(self, order: Order, clients: Ints, turn: Ints, epoch: int) -> tuple[Ints, np.ndarray]:
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
        return records, real.reshape(records.shape)

    def _together_step(
        self, many: Parameters, velocity: Parameters, records: Tensor, real: Tensor, rate: float
    ) -> tuple[Parameters, Parameters]:
        inputs, labels = self._ready(self._inputs[records]), self._labels[records]
        arguments = (many, velocity, inputs, labels, real, rate)
        if self._step is not None:
            return self._step(*arguments)
        together = vmap(self._one_step, in_dims=(0, 0, 0, 0, 0, None))
        try:  # all clients at once if torch can, else one after the other with the same arithmetic
            result = together(*arguments)
            self._step = together
        except RuntimeError:
            result = self._one_after_other(*arguments)
            self._step = self._one_after_other
        return result

    def _one_step(
        self,
        parameters: Parameters,
        velocity: Parameters,
        inputs: Tensor,
        labels: Tensor,
        real: Tensor,
        rate: float,
    ) -> tuple[Parameters, Parameters]:
        """One step of SGD for one client, on the mean loss of the real records of its batch, if any."""

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

    def _one_after_other(
        self,
        many: Parameters,
        velocity: Parameters,
        inputs: Tensor,
        labels: Tensor,
        real: Tensor,
        rate: float,
    ) -> tuple[Parameters, Parameters]:
        each = [
            self._one_step(
                {name: p[k] for name, p in many.items()},
                {name: v[k] for name, v in velocity.items()},
                inputs[k],
                labels[k],
                real[k],
                rate,
            )
            for k in range(len(labels))
        ]
        return _stacked([moved for moved, _ in each]), _stacked([faster for _, faster in each])

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


def _stack(model: nn.Module, dataset: Dataset) -> engine.Stack | None:
    """The model as compiled code trains it on this data; None: only torch can."""
    inputs, labels = dataset.train.inputs, dataset.train.labels
    wanted = {"image": "uint8", "tabular": "float32"}.get(dataset.kind)
    if inputs.dtype.name != wanted:
        return None
    stack = engine.stack_of(model, inputs.shape[1:])
    if stack is None or labels.min(initial=0) < 0 or labels.max(initial=0) >= stack.classes:
        return None
    return stack


def _stacked(each: list[Parameters]) -> Parameters:
    return {name: torch.stack([one[name] for one in each]) for name in each[0]}
