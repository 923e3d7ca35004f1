"""How good a model is on the test records."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from discretion import engine
from discretion.clients.single import Laid
from discretion.clients.tensors import Tensors
from discretion.server import Vector

BATCH = 500


@dataclass(frozen=True)
class Quality:
    accuracy: float
    loss: float


def compiled_quality(stack: engine.Stack, records: engine.Records, model: Vector) -> Quality:
    """By compiled code."""
    logits = torch.from_numpy(engine.scores(stack, records, model, torch.get_num_threads()))
    right, loss = _right_and_loss(logits, torch.from_numpy(records.labels))
    return Quality(right / len(logits), loss / len(logits))


def _right_and_loss(logits: Tensor, labels: Tensor) -> tuple[int, float]:
    """How many are right, and the sum of their losses."""
    right = (logits.argmax(1) == labels).sum().cpu()
    return int(right), float(functional.cross_entropy(logits, labels, reduction="sum").cpu())


class Evaluation:
    """Some records at a time, each batch on one thread: two threads on one batch are slower than one."""

    def __init__(self, model: nn.Module, data: Tensors) -> None:
        self._data = data
        self._laid = Laid(model, data)

    def quality(self, model: Vector) -> Quality:
        """Guarantees: it does not depend on the number of threads."""
        self._laid.load(model)
        threads = torch.get_num_threads()
        starts = range(0, len(self._data), BATCH)
        try:
            with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
                found = list(pool.map(self._batch, starts))
        finally:
            torch.set_num_threads(threads)  # those of the pool have set it for all
        right, loss = (sum(each) for each in zip(*found, strict=True))
        return Quality(right / len(self._data), loss / len(self._data))

    def _batch(self, start: int) -> tuple[int, float]:
        inputs, labels = self._data.batch(slice(start, start + BATCH))
        with torch.no_grad():
            return _right_and_loss(self._laid(inputs), labels)
