"""Clients in this process, trained in compiled code or by torch."""

from collections.abc import Iterator
from functools import cached_property
from itertools import islice

import numpy as np
import torch
from torch import nn

from discretion import engine
from discretion.arrays import Ints
from discretion.clients import devices
from discretion.clients.dp_sgd import DPSGDTraining
from discretion.clients.statistics import Reader
from discretion.clients.torch_training import FastLayout, Quality, RecordTensors, TorchTraining
from discretion.clients.training import ONE_EPOCH, LocalTraining, batches
from discretion.clients.workers import Batches, Workers
from discretion.plan.selection_rules import Reading
from discretion.tasks import models
from discretion.tasks.datasets import Dataset
from discretion.tasks.partitions import Partition
from discretion.training.orders import Order, Statistics, Updates
from discretion.training.server_update import Vector

CHUNK_NUMBERS = 2**22  # floats of updates that torch training yields together
MOST_TOGETHER = 64
COMPILED_NUMBERS = 2**25  # floats of updates, and as much for batches, in one call of compiled code
BATCH_NUMBERS = 6  # floats' worth of memory for a record in a batch: its number, key, place and mask


class LocalClients:
    """Clients that share one copy of the data set, each with its own records.

    `device` is auto, cpu, cuda or cuda:1, see `devices.find`. `workers` is the number of processes that train
    models on the CPU that only torch supports: 0 for one per core, 1 for this process alone.
    """

    def __init__(
        self,
        dataset: Dataset,
        partition: Partition,
        model: nn.Module,
        local: LocalTraining = ONE_EPOCH,
        *,
        device: str = "auto",
        workers: int = 0,
    ) -> None:
        models.check(model)
        stack = _stack(model, dataset) if engine.available() else None
        self.device = devices.find(device, compiled=stack is not None)
        self._stack = stack if self.device.type == "cpu" else None
        self._model = model.train().to(self.device)
        self._dataset, self._partition, self._local = dataset, partition, local
        self._data = RecordTensors(dataset, dataset.train, self.device)
        self._together = max(1, min(MOST_TOGETHER, CHUNK_NUMBERS // len(self.initial())))
        self._count = workers or devices.cores()
        self._workers: Workers | None = None
        self._layered = self._stack if isinstance(self._stack, engine.Stack) else None
        self._noisy = DPSGDTraining(self._model, partition, self._data, local, self._layered)
        self._reader = Reader(self._model, self._data, self._layered)

    @cached_property
    def _torch(self) -> TorchTraining:
        return TorchTraining(self._model, self._data, self._local)

    @cached_property
    def _evaluation(self) -> FastLayout:
        return FastLayout(self._model, RecordTensors(self._dataset, self._dataset.test, self.device))

    @property
    def layers(self) -> tuple[int, ...]:
        """Return the number of parameters in each of the model's trained tensors."""
        return tuple(p.numel() for p in self._model.parameters() if p.requires_grad)

    @property
    def shapes(self) -> str:
        """Return the digest of the model's parameter shapes, by which guards recognise the model."""
        return models.shapes_digest(self._model)

    def initial(self) -> Vector:
        """Return (d,) the model that training starts from."""
        return models.flatten(self._model)

    def named(self, model: Vector) -> dict[str, np.ndarray]:
        """Return the model's parameters by name, as in a state dict."""
        return {name: p.cpu().numpy() for name, p in models.unflatten(model, self._model).items()}

    def evaluate(self, model: Vector) -> Quality:
        """Evaluate a model on the test records."""
        stack = self._layered
        if stack is not None and self._dataset.test.labels.max(initial=0) < stack.classes:
            records = RecordTensors(self._dataset, self._dataset.test, self.device).arrays
            logits = torch.from_numpy(engine.scores(stack, records, model, torch.get_num_threads()))
            right, loss = Quality.sums(logits, torch.from_numpy(records.labels))
            return Quality(right / len(logits), loss / len(logits))
        return self._evaluation.quality(model)

    def statistics(self, order: Order, reading: Reading) -> Statistics:
        """Return the statistic of each client asked, without noise; see `Reader.of`."""
        mine = [self._partition.of(client) for client in order.clients]
        return Statistics(np.arange(len(mine)), self._reader.of(order.model, mine, reading))

    def updates(self, order: Order) -> Iterator[Updates]:
        """Yield the updates of the clients asked, several at a time.

        Guarantees:
            On the CPU a client's update is the same to the last bit, and is yielded together with the same
            others, whatever the number of workers; it does not depend on which other clients are asked.
        """
        if order.noisy is not None:
            yield from self._noisy.updates(order, order.noisy)
            return
        # clients of similar size together, for little padding
        sizes = self._partition.sizes[order.clients]
        by_size = np.argsort(sizes, kind="stable")
        together = self._at_once(int(sizes.max(initial=1)))
        parts = [by_size[start : start + together] for start in range(0, len(by_size), together)]
        if self._stack is None and self.device.type == "cpu":
            changes = self._by_torch(order, parts)
        else:
            changes = (self._train(order, part) for part in parts)
        for part, change in zip(parts, changes, strict=True):
            yield Updates(order.clients[part], change)

    def _at_once(self, size: int) -> int:
        """Return how many clients of at most `size` records are trained together."""
        if self._stack is None:
            return self._together
        numbers = max(self._stack.size, BATCH_NUMBERS * self._local.taken(size))
        return max(torch.get_num_threads(), COMPILED_NUMBERS // numbers)

    def _batches(self, order: Order, part: Ints) -> Batches:
        """Return the (k, steps, batch) batches of the clients at these places of the order."""
        return batches(self._partition, self._local, order.key, order.clients[part], order.turn[part])

    def _train(self, order: Order, part: Ints) -> np.ndarray:
        """Train clients in compiled code or on a GPU; return (k, d) the changes of the model."""
        records, real = self._batches(order, part)
        rate = self._local.rate(order.round, order.rounds)
        if self._stack is None:
            return self._torch.train_many(order.model, records, real, rate)
        rates = np.full(records.shape[1], rate, np.float32)
        chosen = engine.Batches(records, real, rates, self._local.momentum, self._local.weight_decay)
        return engine.train(self._stack, self._data.arrays, chosen, order.model, torch.get_num_threads())

    def _by_torch(self, order: Order, parts: list[Ints]) -> Iterator[np.ndarray]:
        """Yield each part's (k, d) changes, trained one client at a time, in this process or in several."""
        rate, train = self._local.rate(order.round, order.rounds), self._torch.train
        count = sum(map(len, parts))
        each = (one for part in parts for one in zip(*self._batches(order, part), strict=True))
        if min(self._count, count) > 1:
            if self._workers is None or not self._workers.alive:
                self._workers = Workers(train, len(order.model), self._count, slots=2 * self._together)
            yield from self._workers.updates(order.model, each, count, rate, self._together)
            return
        for part in parts:
            with devices.one_thread():
                rows = [train(order.model, *one, rate) for one in islice(each, len(part))]
            yield np.stack(rows)


def _stack(model: nn.Module, dataset: Dataset) -> engine.Stack | engine.Sequence | None:
    """Return the model as compiled code trains it on this data; None if only torch can."""
    inputs, labels = dataset.train.inputs, dataset.train.labels
    wanted = {"image": ("uint8",), "tabular": ("float32",), "text": ("uint8", "int64")}[dataset.kind]
    if inputs.dtype.name not in wanted:
        return None
    stack: engine.Stack | engine.Sequence | None
    if dataset.kind == "text":
        stack = engine.sequence_of(model, inputs.shape[1]) if inputs.ndim == 2 else None
        if stack is None or not engine.within(inputs, stack.tokens):
            return None  # torch's error says what is wrong with the token
    else:
        stack = engine.stack_of(model, inputs.shape[1:])
    return stack if stack is not None and engine.within(labels, stack.classes) else None
