"""Noisy steps of clients in this process: as many clients at a time as torch has threads."""

import queue
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from discretion import engine
from discretion.clients.training import LocalTraining
from discretion.clip import layers_of, owners
from discretion.engine.memory import keep_freed_memory
from discretion.engine.records import Records
from discretion.orders import NoisySteps, Order, Updates
from discretion.population import Floats, Ints
from discretion.release import noisy_sum
from discretion.server import Vector
from discretion.tasks.partitions import Partition

Batch = Callable[[Ints], tuple[Tensor, Tensor]]  # the inputs and labels of these records


class Sums(Protocol):
    """One thread's way to add up the clipped gradients of the records of these numbers."""

    def clipped_sum(self, model: Vector, chosen: Ints, clip: float, layers: tuple[int, ...]) -> Floats: ...


class ByTorch:
    """For models that compiled code does not know."""

    def __init__(self, model: nn.Module, batch: Batch) -> None:
        self._records = Records(model)
        self._batch = batch

    def clipped_sum(self, model: Vector, chosen: Ints, clip: float, layers: tuple[int, ...]) -> Floats:
        return self._records.clipped_sum(model, *self._batch(chosen), clip, layers)


class NoisyTraining:
    """How clients train where plans protect records: in compiled code where the model is a known `stack`."""

    def __init__(
        self,
        model: nn.Module,
        partition: Partition,
        batch: Batch,
        local: LocalTraining,
        stack: engine.Stack | engine.Sequence | None,
        records: engine.Records,
    ) -> None:
        self._model = model
        self._partition = partition
        self._batch = batch
        self._local = local
        self._stack = stack if isinstance(stack, engine.Stack) and engine.can_sum(stack) else None
        self._records = records
        self._lengths = tuple(p.numel() for p in model.parameters() if p.requires_grad)
        self._idle: dict[bool, queue.SimpleQueue[Sums]] = {
            compiled: queue.SimpleQueue() for compiled in (True, False)
        }

    def _sums(self, layers: tuple[int, ...], threads: int) -> queue.SimpleQueue[Sums]:
        """One for each thread. They are made here: tracing a model is not for several threads at once."""
        whole = owners(self._lengths, layers_of(layers, sum(self._lengths))) is not None
        stack = self._stack if whole else None
        idle = self._idle[stack is not None]
        while idle.qsize() < threads:
            if stack is None:
                idle.put(ByTorch(self._model, self._batch))
            else:
                most = min(engine.MOST_RECORDS, int(self._partition.sizes.max(initial=1)))
                idle.put(engine.Sums(stack, self._records, most))
        return idle

    def updates(self, order: Order, noisy: NoisySteps) -> Iterator[Updates]:
        """Each client's on one thread.

        Guarantees:
            A client's update is the same whatever the number of threads, and whoever else is asked.
        """
        keep_freed_memory()
        threads = torch.get_num_threads()
        idle = self._sums(noisy.layers, threads)
        waiting: deque[Future[Vector]] = deque()
        pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
        try:
            for i in range(len(order.clients) + threads):
                if i < len(order.clients):
                    waiting.append(pool.submit(self._train, order, noisy, i, idle))
                if i >= threads:  # no more updates wait than there are threads
                    yield Updates(
                        order.clients[i - threads : i - threads + 1], waiting.popleft().result()[None]
                    )
        finally:
            pool.shutdown(cancel_futures=True)
            torch.set_num_threads(threads)  # those of the pool have set it for all

    def _train(self, order: Order, noisy: NoisySteps, i: int, idle: queue.SimpleQueue[Sums]) -> Vector:
        """(d,) how far noisy steps move the model of the i-th client asked.

        Guarantees:
            Each step takes a batch by the client's own coins, and divides the noisy sum of its clipped
            gradients by the size expected of a batch: it follows from the number of records that the client
            declared, which is public, and not from what was drawn. Where none are expected, nothing moves.
        """
        sums, local = idle.get(), self._local
        mine = self._partition.of(int(order.clients[i]))
        source, batch = noisy.source(i), float(noisy.batch[i])
        records = len(mine) if noisy.declared is None else int(noisy.declared[i])
        expected, clip, std = batch * records, float(noisy.clip[i]), float(noisy.noise[i])
        model, velocity = order.model.astype(np.float64), np.zeros(len(order.model))
        try:
            for _ in range(noisy.steps if expected > 0 else 0):
                drawn = mine[source.uniform(len(mine)) < batch]
                total = sums.clipped_sum(model.astype(np.float32), drawn, clip, noisy.layers)
                slope = noisy_sum(total, std, source)
                slope /= expected  # in place: for large models more arrays would cost as much as the noise
                if local.weight_decay:
                    slope += local.weight_decay * model
                if local.momentum:
                    velocity *= local.momentum
                    velocity += slope
                    slope[:] = velocity
                slope *= local.rate(order.round, order.rounds)
                model -= slope
        finally:
            idle.put(sums)
        return (model - order.model).astype(np.float32)
