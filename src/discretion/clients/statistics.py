"""What rules that read clients' data are told: a bounded sum over each client's records."""

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from discretion.clients.tensors import Tensors
from discretion.clip import finite_and_factor
from discretion.engine.records import Records
from discretion.pick import Reading
from discretion.population import Ints
from discretion.server import Vector
from discretion.tasks import models

BATCH = 1000


class Reader:
    def __init__(self, model: nn.Module, data: Tensors, classes: int) -> None:
        self._model = model
        self._data = data
        self._classes = classes
        self._slopes = Records(model)

    def of(self, model: Vector, records: Ints, reading: Reading) -> list[float]:
        """(m,) of a client with these records.

        Guarantees:
            One record more or less moves it by at most `reading.sensitivity`, whatever the record or the
            model: a loss counts as 0 to `bound`, a gradient is clipped to it and counts as zero if it is not
            finite, and so do the sum of squared norms, over `bound`, and `bound` for a label.
        """
        bound = reading.bound
        if reading.rule == "class_balance":
            _, labels = self._data.batch(records)
            count: list[int] = torch.bincount(labels.cpu(), minlength=self._classes).tolist()
            return [bound * number for number in count]
        if reading.rule == "largest_loss":
            return [float(self._losses(model, records).nan_to_num(nan=bound).clamp(0, bound).sum())]
        total, squares = np.zeros(len(model)), 0.0
        for part in self._slopes.gradients(model, *self._data.batch(records)):
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
            for start in range(0, len(records), BATCH):
                inputs, labels = self._data.batch(records[start : start + BATCH])
                logits = functional_call(self._model, parameters, (inputs,))
                found.append(functional.cross_entropy(logits.double(), labels, reduction="none"))
        return torch.cat(found).cpu()
