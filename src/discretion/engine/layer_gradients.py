"""The gradients of single records in one layer, from what it took and the slopes of what it gave."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from discretion.population import Floats

PATCHES = 2**19  # numbers of a convolution's inputs that are laid out at a time: they stay in the cache
LEAST = 2.0**-149  # float32 has nothing between it and 0


@dataclass(frozen=True)
class Rows:
    """(n, p) each record's gradient of one tensor of parameters, whose numbers are in the order of `shape`.

    `norm` is (n,) their length; `blur` how far a record's may move where it is multiplied by a factor and
    float32 runs out of digits; `add` adds the sum, each times its (n,) factor.
    """

    rows: Tensor
    norm: Tensor
    shape: tuple[int, ...]
    order: tuple[int, ...] | None = None  # of these axes, to be that of the parameters

    @property
    def blur(self) -> float:
        return LEAST * math.sqrt(self.rows.shape[1])

    def without(self, bad: Tensor) -> "Rows":
        return replace(self, rows=self.rows.masked_fill(bad[:, None], 0))

    def add(self, total: Tensor, factor: Tensor) -> None:
        part = factor @ self.rows
        if self.order is not None:
            part = part.view(self.shape).permute(self.order).reshape(-1)
        total += part


@dataclass(frozen=True)
class Products:
    """Each record's gradient is the outer product of (n, out) slopes and (n, in) inputs; it is not made."""

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
        total.view(slopes.shape[1], -1).addmm_(slopes.T, self.inputs)


Gradients = Rows | Products
Call = tuple[Tensor, Tensor]  # what the layer took, and the slope of the loss in what it gave


def _norm(rows: Tensor) -> Tensor:
    return rows.double().square_().sum(1).sqrt_()


def gradients(layer: nn.Module, names: Iterable[str], calls: list[Call]) -> list[Gradients]:
    """Of the layer's parameters of these names; `calls` are all those of one pass over a batch."""
    made = MAKERS[type(layer)](layer, calls)
    return [made[name]() for name in names]


Made = dict[str, Callable[[], Gradients]]


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
        rows = sum(_patch_products(layer, *call) for call in calls)
        assert isinstance(rows, Tensor)
        return _rows(rows.view(-1, *layer.kernel_size, layer.in_channels, layer.out_channels), (3, 2, 0, 1))

    def bias() -> Rows:
        rows = sum(slopes.sum((2, 3)) for _, slopes in calls)
        assert isinstance(rows, Tensor)
        return _rows(rows)

    return {"weight": weight, "bias": bias}


def _patch_products(layer: nn.Conv2d, inputs: Tensor, slopes: Tensor) -> Tensor:
    """(n, kernel · in · out) each record's patches (places, kernel · in) times its slopes (places, out)."""
    down, right = (int(p) for p in layer.padding)
    (n, out, height, width), (taps, across) = slopes.shape, layer.kernel_size
    image = inputs.permute(0, 2, 3, 1)
    image = functional.pad(image, (0, 0, right, right, down, down)).contiguous()
    slopes = slopes.permute(0, 2, 3, 1).reshape(n, height * width, out)
    each, row, place, one = image.stride()
    kernel = ((taps, row * layer.dilation[0]), (across, place * layer.dilation[1]), (layer.in_channels, one))
    places = ((height, row * layer.stride[0]), (width, place * layer.stride[1]))
    # what lies together in the image is copied together
    kernel_first = layer.in_channels == 1 and layer.stride[1] == 1
    shape, strides = zip(*(kernel + places if kernel_first else places + kernel), strict=True)
    together = max(1, min(n, PATCHES // math.prod(shape)))
    patches = inputs.new_empty(together, *shape)
    rows = inputs.new_empty(n, taps * across * layer.in_channels, out)
    for start in range(0, n, together):
        some = image[start : start + together]
        here = patches[: len(some)]
        here.copy_(some.as_strided((len(some), *shape), (each, *strides), some.storage_offset()))
        flat = (
            here.view(len(some), -1, height * width)
            if kernel_first
            else (here.view(len(some), height * width, -1).transpose(1, 2))
        )
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


def _group_norm(layer: nn.Module, calls: list[Call]) -> Made:
    assert isinstance(layer, nn.GroupNorm)

    def weight() -> Rows:
        each = [functional.group_norm(x, layer.num_groups, eps=layer.eps) * slopes for x, slopes in calls]
        return _rows(_by_channel(each))

    return {"weight": weight, "bias": lambda: _rows(_by_channel([slopes for _, slopes in calls]))}


def _by_channel(parts: list[Tensor]) -> Tensor:
    """(n, channels) from parts (n, channels, ...)"""
    return torch.stack([part.reshape(*part.shape[:2], -1).sum(2) for part in parts]).sum(0)


def _layer_norm(layer: nn.Module, calls: list[Call]) -> Made:
    assert isinstance(layer, nn.LayerNorm)
    shape = tuple(layer.normalized_shape)

    def rows(parts: list[Tensor]) -> Rows:
        each = [part.reshape(len(part), -1, math.prod(shape)).sum(1) for part in parts]
        return _rows(torch.stack(each).sum(0))

    def weight() -> Rows:
        return rows([functional.layer_norm(x, shape, eps=layer.eps) * slopes for x, slopes in calls])

    return {"weight": weight, "bias": lambda: rows([slopes for _, slopes in calls])}


MAKERS: dict[type[nn.Module], Callable[[nn.Module, list[Call]], Made]] = {
    nn.Linear: _linear,
    nn.Conv2d: _convolution,
    nn.Embedding: _embedding,
    nn.GroupNorm: _group_norm,
    nn.LayerNorm: _layer_norm,
}


def least_dimensions(layer: nn.Module) -> int:
    """How many axes the layer's input has at least if its first one is that of the records."""
    if isinstance(layer, nn.LayerNorm):
        return 1 + len(layer.normalized_shape)
    return {nn.Conv2d: 4, nn.Embedding: 1}.get(type(layer), 2)
