"""Per-record gradients of one layer, from its inputs and the gradients of its outputs (slopes)."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial, reduce

import torch
from torch import Tensor, nn
from torch.nn import functional

from discretion.arrays import Floats

PATCHES = 2**19  # floats of a convolution's patches at a time, to stay in the processor's cache
LEAST = 2.0**-149  # smallest positive float32


@dataclass(frozen=True)
class Rows:
    """(n, p) each record's gradient of one parameter tensor, with its numbers in the order of `shape`.

    `norm` has the (n,) norms; `blur` bounds a record's rounding error when float32 underflows in scaling its
    gradient; `add` adds the sum of the gradients, each times its (n,) float64 factor, in float64.
    """

    rows: Tensor
    norm: Tensor
    shape: tuple[int, ...]
    order: tuple[int, ...] | None = None  # permutation of these axes that gives the parameter's

    @property
    def blur(self) -> float:
        return LEAST * math.sqrt(self.rows.shape[1])

    def without(self, bad: Tensor) -> "Rows":
        return replace(self, rows=self.rows.masked_fill(bad[:, None], 0))

    def add(self, total: Tensor, factor: Tensor) -> None:
        part = factor @ self.rows.double()
        if self.order is not None:
            part = part.view(self.shape).permute(self.order).reshape(-1)
        total += part


@dataclass(frozen=True)
class Products:
    """Each record's gradient as the factors of an outer product: (n, out) slopes and (n, in) inputs."""

    slopes: Tensor
    inputs: Tensor
    slope: Tensor  # (n,) the norms of both
    input: Tensor

    @property
    def norm(self) -> Tensor:
        return self.slope * self.input

    @property
    def blur(self) -> Floats:
        return self.input.cpu().numpy() * (LEAST * math.sqrt(self.slopes.shape[1]))

    def without(self, bad: Tensor) -> "Products":
        slopes, inputs = (x.masked_fill(bad[:, None], 0) for x in (self.slopes, self.inputs))
        return replace(self, slopes=slopes, inputs=inputs)

    def add(self, total: Tensor, factor: Tensor) -> None:
        slopes = self.slopes * factor[:, None]
        total.view(slopes.shape[1], -1).addmm_(slopes.T, self.inputs.double())


Gradients = Rows | Products
Call = tuple[Tensor, Tensor]  # input of a layer, and gradient of the loss by its output
Made = dict[str, Callable[[], Gradients]]  # by the name of a parameter, computed when asked for


def _norm(rows: Tensor) -> Tensor:
    return rows.double().square_().sum(1).sqrt_()


def _linear(layer: nn.Module, calls: list[Call]) -> Made:
    inputs, slopes = (_positions([call[k] for call in calls]) for k in (0, 1))  # (n, positions, in or out)
    if inputs.shape[1] == 1:
        inputs, slopes = inputs[:, 0], slopes[:, 0]
        norm = _norm(slopes)
        return {
            "weight": lambda: Products(slopes, inputs, norm, _norm(inputs)),
            "bias": lambda: Rows(slopes, norm, (slopes.shape[1],)),
        }
    return {
        "weight": lambda: _rows(torch.bmm(slopes.transpose(1, 2), inputs)),
        "bias": lambda: _rows(slopes.sum(1)),
    }


def _positions(parts: list[Tensor]) -> Tensor:
    parts = [part.reshape(len(part), -1, part.shape[-1]) for part in parts]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def _rows(each: Tensor, order: tuple[int, ...] | None = None) -> Rows:
    flat = each.flatten(1)
    return Rows(flat, _norm(flat), tuple(each.shape[1:]), order)


def _convolution(layer: nn.Module, calls: list[Call]) -> Made:
    assert isinstance(layer, nn.Conv2d)

    def weight() -> Rows:
        rows = reduce(torch.add, (_patch_products(layer, *call) for call in calls))
        return _rows(rows.view(-1, *layer.kernel_size, layer.in_channels, layer.out_channels), (3, 2, 0, 1))

    return {
        "weight": weight,
        "bias": lambda: _rows(reduce(torch.add, (slopes.sum((2, 3)) for _, slopes in calls))),
    }


def _patch_products(layer: nn.Conv2d, inputs: Tensor, slopes: Tensor) -> Tensor:
    """Return (n, kernel · in, out) each record's patches, transposed, times its (places, out) slopes."""
    down, right = (int(p) for p in layer.padding)
    (n, out, height, width), (taps, across) = slopes.shape, layer.kernel_size
    area = height * width
    image = inputs.permute(0, 2, 3, 1)
    image = functional.pad(image, (0, 0, right, right, down, down)).contiguous()
    slopes = slopes.permute(0, 2, 3, 1).reshape(n, area, out)
    each, row, place, one = image.stride()
    kernel = ((taps, row * layer.dilation[0]), (across, place * layer.dilation[1]), (layer.in_channels, one))
    places = ((height, row * layer.stride[0]), (width, place * layer.stride[1]))
    # copy in the order in which the image lies in memory
    kernel_first = layer.in_channels == 1 and layer.stride[1] == 1
    shape, strides = zip(*(kernel + places if kernel_first else places + kernel), strict=True)
    together = max(1, min(n, PATCHES // math.prod(shape)))
    patches = inputs.new_empty(together, *shape)
    rows = inputs.new_empty(n, taps * across * layer.in_channels, out)
    for start in range(0, n, together):
        some = image[start : start + together]
        here = patches[: len(some)]
        here.copy_(some.as_strided((len(some), *shape), (each, *strides), some.storage_offset()))
        flat = here.view(len(some), -1, area) if kernel_first else here.view(len(some), area, -1).mT
        torch.bmm(flat, slopes[start : start + together], out=rows[start : start + together])
    return rows


def _embedding(layer: nn.Module, calls: list[Call]) -> Made:
    assert isinstance(layer, nn.Embedding)

    def weight() -> Rows:
        n, shape = len(calls[0][0]), (layer.num_embeddings, layer.embedding_dim)
        rows = calls[0][1].new_zeros(n * shape[0], shape[1])
        for ids, slopes in calls:
            ids = ids.reshape(n, -1) + shape[0] * torch.arange(n, device=ids.device)[:, None]
            rows.index_add_(0, ids.reshape(-1), slopes.reshape(-1, shape[1]))
        return _rows(rows.view(n, *shape))

    return {"weight": weight}


def _normalisation(layer: nn.Module, calls: list[Call]) -> Made:
    assert isinstance(layer, nn.GroupNorm | nn.LayerNorm)
    if isinstance(layer, nn.GroupNorm):
        normalise = partial(functional.group_norm, num_groups=layer.num_groups, eps=layer.eps)
        view, shared = (layer.num_channels, -1), 2  # axis of numbers with the same gain and shift
    else:
        shape = layer.normalized_shape
        normalise = partial(functional.layer_norm, normalized_shape=list(shape), eps=layer.eps)
        view, shared = (-1, math.prod(shape)), 1

    def summed(parts: Iterable[Tensor]) -> Rows:
        return _rows(torch.stack([part.reshape(len(part), *view).sum(shared) for part in parts]).sum(0))

    return {
        "weight": lambda: summed(normalise(x) * slopes for x, slopes in calls),
        "bias": lambda: summed(slopes for _, slopes in calls),
    }


# the gradients of a layer's parameters from all of its calls in one pass
MAKERS: dict[type[nn.Module], Callable[[nn.Module, list[Call]], Made]] = {
    nn.Linear: _linear,
    nn.Conv2d: _convolution,
    nn.Embedding: _embedding,
    nn.GroupNorm: _normalisation,
    nn.LayerNorm: _normalisation,
}


def least_dimensions(layer: nn.Module) -> int:
    """Return the least number of axes of the layer's input if its first axis is that of the records."""
    if isinstance(layer, nn.LayerNorm):
        return 1 + len(layer.normalized_shape)
    return {nn.Conv2d: 4, nn.Embedding: 1}.get(type(layer), 2)
