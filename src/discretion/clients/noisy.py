"""Noisy steps of clients in this process: as many clients at a time as torch has threads."""

import queue
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor, nn

from discretion.clients.training import LocalTraining
from discretion.engine.memory import keep_freed_memory
from discretion.engine.records import Records
from discretion.orders import NoisySteps, Order, Updates, Vector
from discretion.population import Ints
from discretion.release import noisy_sum
from discretion.tasks.partitions import Partition

Batch = Callable[[Ints], tuple[Tensor, Tensor]]  # the inputs and labels of these records


class NoisyTraining:
    """How clients train where plans protect records."""

    def __init__(self, model: nn.Module, partition: Partition, batch: Batch, local: LocalTraining) -> None:
        self._model = model
        self._partition = partition
        self._batch = batch
        self._local = local
        self._idle: queue.SimpleQueue[Records] = queue.SimpleQueue()

    def updates(self, order: Order, noisy: NoisySteps) -> Iterator[Updates]:
        """Each client's on one thread.

        Guarantees:
            A client's update is the same whatever the number of threads, and whoever else is asked.
        """
        keep_freed_memory()
        threads = torch.get_num_threads()
        while self._idle.qsize() < threads:  # made here: tracing a model is not for several threads at once
            self._idle.put(Records(self._model))
        waiting: deque[Future[Vector]] = deque()
        pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
        try:
            for i in range(len(order.clients) + threads):
                if i < len(order.clients):
                    waiting.append(pool.submit(self._train, order, noisy, i))
                if i >= threads:  # no more updates wait than there are threads
                    yield Updates(
                        order.clients[i - threads : i - threads + 1], waiting.popleft().result()[None]
                    )
        finally:
            pool.shutdown(cancel_futures=True)
            torch.set_num_threads(threads)  # those of the pool have set it for all

    def _train(self, order: Order, noisy: NoisySteps, i: int) -> Vector:
        """(d,) how far noisy steps move the model of the i-th client asked.

        Guarantees:
            Each step takes a batch by the client's own coins, and divides the noisy sum of its clipped
            gradients by the size expected of a batch: it follows from the client's number of records, which
            is declared and public, and not from what was drawn. Where none are expected, nothing moves.
        """
        records = self._idle.get()
        mine = self._partition.of(int(order.clients[i]))
        source, batch = noisy.source(i), float(noisy.batch[i])
        expected, clip, std = batch * len(mine), float(noisy.clip[i]), float(noisy.noise[i])
        model, velocity = order.model.astype(np.float64), np.zeros(len(order.model))
        try:
            for _ in range(noisy.steps if expected > 0 else 0):
                drawn = mine[source.uniform(len(mine)) < batch]
                total = records.clipped_sum(model.astype(np.float32), *self._batch(drawn), clip, noisy.layers)
                slope = noisy_sum(total, std, source) / expected + self._local.weight_decay * model
                velocity = self._local.momentum * velocity + slope
                model -= self._local.rate(order.round) * velocity
        finally:
            self._idle.put(records)
        return (model - order.model).astype(np.float32)
