"""Sums of clipped per-record gradients by torch, without materialising the gradients where possible.

One forward pass, and one backward pass for the gradients of each layer's output. Together with the layer's
inputs they give the norms, and then the clipped sum (book-keeping: Bu, Wang, Zha and Karypis 2023).
Models with unsupported parts take the slow way: the gradient of each record, by torch's vmap.
"""

import copy
import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from discretion.arrays import Floats
from discretion.engine.layer_gradients import MAKERS, Call, Gradients, Rows, least_dimensions
from discretion.engine.per_record_graph import TRAINED, Mixed, trace_per_record
from discretion.tasks import models
from discretion.training.clip import ROUNDING, add_layers, factors, finite_and_factor, layers_of, owners
from discretion.training.server_update import Vector

Parameters = dict[str, Tensor]

SMALLEST = float(np.finfo(np.float32).tiny)  # smaller factors lose digits and might exceed the clip
MOST_RECORDS = 256  # in one pass
MOST_NUMBERS = 2**22  # floats of materialised gradients in one pass


class RecordSums:
    """Clipped sums and per-record gradients of one model, on a copy of its own; each thread needs its own."""

    def __init__(self, model: nn.Module) -> None:
        self._model = copy.deepcopy(model)
        self._lengths = [p.numel() for p in model.parameters() if p.requires_grad]
        self._size = sum(self._lengths)
        graph = trace_per_record(model)
        self._fast = None if graph is None else _Fast(graph)

    def clipped_sum(
        self, parameters: Vector, inputs: Tensor, labels: Tensor, clip: float, layers: tuple[int, ...]
    ) -> Floats:
        """Return (d,) the sum of the clipped gradients of the records' losses.

        Guarantees:
            One record more or less moves the sum by at most the clip (clipping norm), and the part of each of
            L layers by at most clip / sqrt(L): norms are computed in float64, of exactly the numbers that are
            summed, or of the two vectors whose outer product is summed, and sums are in float64
            (`clip.ROUNDING` has the proof). Not covered: a record's gradient may differ in last bits of
            float32 with the records beside it, as torch computes matrix products.
            A record whose gradient has a number that is not finite, or is so long that float32 cannot scale
            it down, counts as zero.
        """
        slices = layers_of(layers, self._size)
        owner = owners(self._lengths, slices)
        precise = torch.get_float32_matmul_precision() == "highest"  # else torch may round to bfloat16
        if self._fast is not None and owner is not None and precise:
            try:
                return self._fast.clipped_sum(parameters, inputs, labels, clip, owner)
            except Mixed:
                self._fast = None
        total = np.zeros(self._size)
        for part in self.gradients(parameters, inputs, labels):
            change, factor = finite_and_factor(part, np.full(len(part), clip), slices)
            add_layers(total, np.ones(len(part)), change, factor, slices)
        return total

    def gradients(
        self, parameters: Vector, inputs: Tensor, labels: Tensor
    ) -> Iterator[npt.NDArray[np.float32]]:
        """Yield (n, d) the gradients of the records' losses, some at a time if vmap can, else one by one."""

        def loss(parameters: Parameters, record: Tensor, label: Tensor) -> Tensor:
            logits = functional_call(self._model, parameters, (record[None],))
            return functional.cross_entropy(logits, label[None])

        named = models.unflatten(parameters, self._model)
        together = max(1, min(MOST_RECORDS // 4, MOST_NUMBERS // self._size))
        for start in range(0, len(labels), together):
            some = inputs[start : start + together], labels[start : start + together]
            try:
                slopes = vmap(grad(loss), in_dims=(None, 0, 0))(named, *some)
            except RuntimeError:
                each = [grad(loss)(named, *one) for one in zip(*some, strict=True)]
                slopes = {name: torch.stack([one[name] for one in each]) for name in named}
            yield torch.cat([slopes[name].flatten(1) for name in named], dim=1).cpu().numpy()


class _Fast:
    """Sums without materialised gradients, for models of supported parts."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        for p in model.parameters():
            if p.dim() == 4:  # convolutions are faster in this layout
                p.data = p.data.to(memory_format=torch.channels_last)
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._lengths = [p.numel() for p in self._parameters]
        device = self._parameters[0].device
        self._total = torch.zeros(sum(self._lengths), dtype=torch.float64, device=device)
        number = {id(p): k for k, p in enumerate(self._parameters)}
        self._trained: dict[nn.Module, dict[str, int]] = {}  # names and numbers of a layer's parameters
        for layer in model.modules():
            if type(layer) in TRAINED:
                layer.register_forward_hook(self._see)
                mine = {name: number[id(p)] for name, p in layer.named_parameters() if id(p) in number}
                self._trained.update({layer: mine} if mine else {})
        model.requires_grad_(False)  # torch need not compute gradients of parameters
        self._seen: list[tuple[nn.Module, Tensor, Tensor]] = []
        self._records = 0
        self._together: int | None = None  # records in one pass

    def clipped_sum(
        self, parameters: Vector, inputs: Tensor, labels: Tensor, clip: float, owner: list[int]
    ) -> Floats:
        with torch.no_grad():
            numbers = torch.from_numpy(parameters).split_with_sizes(self._lengths)
            for p, part in zip(self._parameters, numbers, strict=True):
                p.copy_(part.view(p.shape))
        self._total.zero_()
        if len(labels):
            if self._together is None:  # as many records as have materialised gradients that fit into memory
                tried = self._gradients(inputs[:1], labels[:1])
                made = sum(each.rows.numel() for each in tried.values() if isinstance(each, Rows))
                self._together = max(1, min(MOST_RECORDS, MOST_NUMBERS // max(made, 1)))
            times = -(-len(labels) // self._together)
            for some in zip(inputs.tensor_split(times), labels.tensor_split(times), strict=True):
                self._add(self._gradients(*some), clip, owner)
        return self._total.cpu().numpy().copy()

    def _see(self, layer: nn.Module, arguments: tuple[Tensor], output: Tensor) -> None:
        (inputs,) = arguments
        if inputs.dim() < least_dimensions(layer) or not len(inputs) == len(output) == self._records:
            raise Mixed
        if layer in self._trained:
            output.requires_grad_()
            self._seen.append((layer, inputs.detach(), output))

    def _gradients(self, inputs: Tensor, labels: Tensor) -> dict[int, Gradients]:
        """Return the per-record gradients of each parameter tensor, by its number."""
        self._records, self._seen = len(labels), []
        if inputs.dim() == 4:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        logits = self._model(inputs)
        if len(logits) != len(labels):
            raise Mixed
        loss = functional.cross_entropy(logits, labels, reduction="sum")
        seen, self._seen = self._seen, []
        slopes = torch.autograd.grad(
            loss, [output for *_, output in seen], allow_unused=True, materialize_grads=True
        )
        calls: dict[nn.Module, list[Call]] = {}
        for (layer, taken, _), slope in zip(seen, slopes, strict=True):
            calls.setdefault(layer, []).append((taken, slope))
        found: dict[int, Gradients] = {}
        for layer, mine in calls.items():
            made = MAKERS[type(layer)](layer, mine)
            found |= {number: made[name]() for name, number in self._trained[layer].items()}
        return found

    def _add(self, found: dict[int, Gradients], clip: float, owner: list[int]) -> None:
        """Add the clipped gradients to the total; `owner` says which layer each tensor is clipped with."""
        layers = max(owner) + 1
        squares, blurs = np.zeros((2, self._records, layers))
        for number, each in found.items():
            squares[:, owner[number]] += np.square(each.norm.cpu().numpy())
            blurs[:, owner[number]] += each.blur
        factor = factors(np.sqrt(squares), np.full(self._records, clip))
        bound = ROUNDING / 4 * clip / math.sqrt(layers)
        factor[(factor < 1) & ((blurs > bound) | (factor < SMALLEST))] = 0
        bad = ~np.isfinite(squares).all(axis=1)
        if bad.any():  # zero times infinity is not zero
            there = torch.from_numpy(bad).to(self._total.device)
            found = {number: each.without(there) for number, each in found.items()}
        parts = self._total.split_with_sizes(self._lengths)
        share = torch.from_numpy(factor.T.copy()).to(self._total.device)
        for number, each in found.items():
            each.add(parts[number], share[owner[number]])
