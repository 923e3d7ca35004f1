"""What rules that read clients' data are told: a bounded sum over each client's records."""

from collections.abc import Iterator
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from discretion import engine
from discretion.clients.tensors import Tensors
from discretion.clip import finite_and_factor
from discretion.engine.records import Records
from discretion.pick import Reading
from discretion.population import Floats, Ints
from discretion.server import Vector
from discretion.tasks import models

BATCH = 1000  # records at a time, by torch
GATHERED = 2**25  # numbers of inputs that are gathered for compiled code together


class Reader:
    """`stack` is the model as compiled code knows it; without one torch does the same."""

    def __init__(
        self,
        model: nn.Module,
        data: Tensors,
        classes: int,
        stack: engine.Stack | None,
        records: engine.Records,
    ) -> None:
        self._model = model
        self._data = data
        self._classes = classes
        self._stack = stack
        self._records = records

    @cached_property
    def _slopes(self) -> Records:
        return Records(self._model)

    @cached_property
    def _sums(self) -> engine.Sums | None:
        stack = self._stack
        return engine.Sums(stack, self._records) if stack and engine.can_sum(stack) else None

    def of(self, model: Vector, mine: list[Ints], reading: Reading) -> Floats:
        """(k, m) of clients that have these records.

        Guarantees:
            One record more or less moves a client's row by at most `reading.sensitivity`, whatever the record
            or the model: a loss counts as 0 to `bound`, a gradient is clipped to it and counts as zero if it
            is not finite, and so do the sum of squared norms, over `bound`, and `bound` for a label. What the
            sum of gradients itself rounds is not of the record.
        """
        if reading.rule in ("norm", "diversity"):
            each = [self._lengths(model, records, reading.bound) for records in mine]
            both: Floats = np.array(each, dtype=np.float64).reshape(-1, 2)
            return both[:, :1] if reading.rule == "norm" else both
        records = np.concatenate([np.zeros(0, np.int64), *mine])
        owner = np.repeat(np.arange(len(mine)), np.array([len(one) for one in mine], np.int64))
        if reading.rule == "class_balance":
            place = owner * self._classes + self._records.labels[records]
            count = np.bincount(place, minlength=len(mine) * self._classes)
            return count.reshape(len(mine), self._classes).astype(np.float64) * reading.bound
        total = np.zeros((len(mine), 1))
        for part, some in self._losses(model, records):
            bounded = some.nan_to_num(nan=reading.bound).clamp(0, reading.bound).cpu().numpy()
            np.add.at(total[:, 0], owner[part], bounded)
        return total

    def _losses(self, model: Vector, records: Ints) -> Iterator[tuple[slice, Tensor]]:
        """(n,) the loss of each record, in float64, so that their sum is exact enough; some at a time."""
        together = BATCH
        if self._stack is not None:
            together = max(1, GATHERED // int(np.prod(self._stack.shape)))
        for start in range(0, len(records), together):
            part = slice(start, start + together)
            logits, labels = self._logits(model, records[part])
            yield part, functional.cross_entropy(logits.double(), labels, reduction="none")

    def _logits(self, model: Vector, records: Ints) -> tuple[Tensor, Tensor]:
        if self._stack is None:
            inputs, labels = self._data.batch(records)
            with torch.no_grad():
                return functional_call(self._model, models.unflatten(model, self._model), (inputs,)), labels
        mine = engine.Records(
            self._records.inputs[records], self._records.labels[records], self._records.lookup
        )
        logits = engine.scores(self._stack, mine, model, torch.get_num_threads())
        return torch.from_numpy(logits), torch.from_numpy(mine.labels)

    def _lengths(self, model: Vector, records: Ints, bound: float) -> tuple[float, float]:
        """The norm of the sum of clipped gradients, and the sum of their squared norms over `bound`."""
        if self._sums is not None:
            total, squares = self._sums.sum_and_squares(model, records, bound, ())
            return float(np.linalg.norm(total)), squares / bound
        total, squares = np.zeros(len(model)), 0.0
        for part in self._slopes.gradients(model, *self._data.batch(records)):
            slopes, factor = finite_and_factor(part, np.full(len(part), bound), [slice(None)])
            clipped = factor * slopes  # (n, d) float64
            total += clipped.sum(axis=0)
            squares += float(np.square(clipped / bound).sum())
        return float(np.linalg.norm(total)), squares * bound
