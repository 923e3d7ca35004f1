"""DP-SGD of clients in this process, for plans that protect records: one client on each thread."""

import queue
from collections import defaultdict, deque
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn

from discretion import engine
from discretion.clients.devices import keep_freed_memory, thread_pool
from discretion.clients.torch_training import RecordTensors
from discretion.clients.training import LocalTraining
from discretion.engine.record_sums import RecordSums
from discretion.randomness.sources import heads
from discretion.tasks.partitions import Partition
from discretion.training.clip import layers_of, owners
from discretion.training.orders import NoisySteps, Order, Updates
from discretion.training.release import noisy_sum
from discretion.training.server_update import Vector

Idle = queue.SimpleQueue[engine.CompiledSums | RecordSums]  # each for one thread at a time


@dataclass
class DPSGDTraining:
    """DP-SGD training of clients; in compiled code if the model is a supported `stack`."""

    model: nn.Module
    partition: Partition
    data: RecordTensors
    local: LocalTraining
    stack: engine.Stack | None
    _idle: dict[bool, Idle] = field(default_factory=lambda: defaultdict(queue.SimpleQueue))

    def _sums(self, layers: tuple[int, ...], threads: int) -> Idle:
        """Return a queue of sums of gradients, one per thread, made here as tracing is not thread-safe."""
        lengths = [p.numel() for p in self.model.parameters() if p.requires_grad]
        whole = owners(lengths, layers_of(layers, sum(lengths))) is not None
        stack = self.stack if whole and self.stack and engine.can_sum(self.stack) else None
        idle = self._idle[stack is not None]
        most = int(self.partition.sizes.max(initial=1))
        while idle.qsize() < threads:
            idle.put(engine.CompiledSums(stack, self.data.arrays, most) if stack else RecordSums(self.model))
        return idle

    def updates(self, order: Order, noisy: NoisySteps) -> Iterator[Updates]:
        """Yield each client's update, trained on one thread.

        Guarantees:
            A client's update is the same whatever the number of threads, and whichever other clients are
            asked.
        """
        keep_freed_memory()
        threads = torch.get_num_threads()
        idle = self._sums(noisy.layers, threads)
        waiting: deque[Future[Vector]] = deque()
        with thread_pool() as pool:
            for i in range(len(order.clients) + threads):
                if i < len(order.clients):
                    waiting.append(pool.submit(self._train, order, noisy, i, idle))
                if (done := i - threads) >= 0:  # no more updates wait than there are threads
                    yield Updates(order.clients[done : done + 1], waiting.popleft().result()[None])

    def _train(self, order: Order, noisy: NoisySteps, i: int, idle: Idle) -> Vector:
        """Train the i-th client asked by noisy steps; return (d,) the change of the model.

        Guarantees:
            Each step samples a batch by the client's own coins (Poisson sampling) and divides the noisy sum
            of its clipped gradients by the expected batch size, which follows from the declared number of
            records, which is public, and not from the sampled batch. If none are expected, the model stays.
        """
        sums, local = idle.get(), self.local
        mine = self.partition.of(int(order.clients[i]))
        source, batch = noisy.source(i), float(noisy.batch[i])
        records = len(mine) if noisy.declared is None else int(noisy.declared[i])
        expected, clip, std = batch * records, float(noisy.clip[i]), float(noisy.noise[i])
        model, velocity = order.model.astype(np.float64), np.zeros(len(order.model))
        try:
            for _ in range(noisy.steps if expected > 0 else 0):
                drawn, now = mine[heads(source.uniform(len(mine)), batch)], model.astype(np.float32)
                if isinstance(sums, RecordSums):  # by torch, for models that compiled code does not support
                    total = sums.clipped_sum(now, *self.data.batch(drawn), clip, noisy.layers)
                else:
                    total = sums.clipped_sum(now, drawn, clip, noisy.layers)
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
