"""Statistics of clients' data that selection rules read: bounded sums over each client's records."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from discretion import engine
from discretion.arrays import Floats, Ints
from discretion.clients.torch_training import RecordTensors
from discretion.engine.record_sums import RecordSums
from discretion.plan.selection_rules import Reading
from discretion.tasks import models
from discretion.training.clip import finite_and_factor
from discretion.training.server_update import Vector

BATCH = 1000  # records at a time, by torch
GATHERED = 2**25  # input numbers gathered for one call of compiled code


@dataclass
class Reader:
    """Computes statistics in compiled code if the model is a supported `stack`, else by torch."""

    model: nn.Module
    data: RecordTensors
    stack: engine.Stack | None

    @cached_property
    def _sums(self) -> engine.CompiledSums | RecordSums:
        if self.stack is not None and engine.can_sum(self.stack):
            return engine.CompiledSums(self.stack, self.data.arrays)
        return RecordSums(self.model)

    def of(self, model: Vector, mine: list[Ints], reading: Reading) -> Floats:
        """Return (k, m) the statistics of k clients, whose record numbers are in `mine`.

        Guarantees:
            One record more or less moves a client's row by at most `reading.sensitivity`, whatever the record
            or the model: a loss is clamped to 0..`bound`; a gradient is clipped to `bound`, or counts as zero
            if not finite; the sum of squared norms is divided by `bound`; a label counts `bound`.
            Not covered is the rounding of the sum of gradients itself.
        """
        if reading.rule in ("norm", "diversity"):
            each = [self._lengths(model, records, reading.bound) for records in mine]
            both: Floats = np.array(each, dtype=np.float64).reshape(-1, 2)
            return both[:, :1] if reading.rule == "norm" else both
        records = np.concatenate([np.zeros(0, np.int64), *mine])
        owner = np.repeat(np.arange(len(mine)), np.array([len(one) for one in mine], np.int64))
        if reading.rule == "class_balance":
            classes = self.data.dataset.classes
            place = owner * classes + self.data.arrays.labels[records]
            count = np.bincount(place, minlength=len(mine) * classes)
            return count.reshape(len(mine), classes).astype(np.float64) * reading.bound
        total = np.zeros((len(mine), 1))
        for part, some in self._losses(model, records):
            bounded = some.nan_to_num(nan=reading.bound).clamp(0, reading.bound).cpu().numpy()
            np.add.at(total[:, 0], owner[part], bounded)
        return total

    def _losses(self, model: Vector, records: Ints) -> Iterator[tuple[slice, Tensor]]:
        """Yield (n,) losses of some records at a time, in float64 so that their sum is exact enough."""
        together = BATCH if self.stack is None else max(1, GATHERED // math.prod(self.stack.shape))
        for start in range(0, len(records), together):
            part = slice(start, start + together)
            logits, labels = self._logits(model, records[part])
            yield part, functional.cross_entropy(logits.double(), labels, reduction="none")

    def _logits(self, model: Vector, records: Ints) -> tuple[Tensor, Tensor]:
        if self.stack is None:
            inputs, labels = self.data.batch(records)
            with torch.no_grad():
                return functional_call(self.model, models.unflatten(model, self.model), (inputs,)), labels
        every = self.data.arrays
        mine = engine.RecordArrays(every.inputs[records], every.labels[records], every.lookup)
        logits = engine.scores(self.stack, mine, model, torch.get_num_threads())
        return torch.from_numpy(logits), torch.from_numpy(mine.labels)

    def _lengths(self, model: Vector, records: Ints, bound: float) -> tuple[float, float]:
        """Return the norm of the sum of clipped gradients, and their squared norms' sum / `bound`."""
        if isinstance(self._sums, engine.CompiledSums):
            total, squares = self._sums.sum_and_squares(model, records, bound, ())
            return float(np.linalg.norm(total)), squares / bound
        total, squares = np.zeros(len(model)), 0.0
        for part in self._sums.gradients(model, *self.data.batch(records)):
            slopes, factor = finite_and_factor(part, np.full(len(part), bound), [slice(None)])
            clipped = factor * slopes  # (n, d) float64
            total += clipped.sum(axis=0)
            squares += float(np.square(clipped / bound).sum())
        return float(np.linalg.norm(total)), squares * bound
