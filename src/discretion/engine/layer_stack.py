"""See a torch model as a stack of layers that the compiled code can train, or say that it is none."""

from collections.abc import Iterator
from dataclasses import astuple, dataclass, replace
from typing import cast

import numpy as np
import numpy.typing as npt
from torch import nn

from discretion.engine.plain import plain

Pair = tuple[int, int]

NONE: Pair = (0, 0)
ONE: Pair = (1, 1)
LARGEST_RECORD = 2**30  # floats in a layer's input: places in it are kept as int32


@dataclass(frozen=True)
class Layer:
    """In the order that the compiled code reads.

    A spatial layer convolves, normalises, pools, applies ReLU; each of it perhaps.
    """

    linear: bool
    outs: int = 0  # of a spatial layer: 0 where there is no convolution
    kernel: Pair = ONE
    stride: Pair = ONE
    pad: Pair = NONE
    pool: Pair = ONE
    pool_stride: Pair = ONE
    pool_pad: Pair = NONE
    relu: bool = False
    bias: bool = False
    average: bool = False  # pooling is by the mean
    groups: int = 0  # of normalisation: 0 where there is none
    gain: bool = False
    shift: bool = False
    eps: float = 0.0


@dataclass(frozen=True)
class Stack:
    """A model for records of one shape, as layers."""

    layers: tuple[Layer, ...]
    shape: tuple[int, int, int]  # of a record: channels, height, width; flat ones have height and width 1
    classes: int
    lengths: tuple[int, ...]  # of its tensors of parameters, all of which are trained

    @property
    def size(self) -> int:
        """How many parameters it has."""
        return sum(self.lengths)

    def rows(self) -> npt.NDArray[np.void]:
        """(layers,) as the compiled code reads them."""
        numbers = [astuple(layer) for layer in self.layers]
        rows = [(np.hstack(row[:-1]), row[-1]) for row in numbers]
        return np.array(rows, dtype=[("whole", np.int64, len(rows[0][0])), ("eps", np.float64)])


def stack_of(model: nn.Module, shape: tuple[int, ...]) -> Stack | None:
    """The model as a stack, for records of this shape; None if anything in it is not known here.

    Known are Conv2d, GroupNorm, MaxPool2d, AvgPool2d, AdaptiveAvgPool2d, ReLU, Flatten and Linear within
    nn.Sequential, with every parameter trained.

    Guarantees: the parameters stand in a flat model in the order of the layers, weight before bias.
    """
    if len(shape) not in (1, 3):
        return None
    layers: list[Layer] = []
    parameters: list[nn.Parameter] = []
    now = shape
    for module in _leaves(model):
        if module is None:
            return None
        found = _add(layers, module, now)
        if found is None:
            return None
        now = found
        parameters += module.parameters()
    in_order = [id(p) for p in parameters] == [id(p) for p in model.parameters()]
    if len(now) != 1 or not layers or not in_order or not all(p.requires_grad for p in parameters):
        return None
    record = cast(tuple[int, int, int], shape if len(shape) == 3 else (*shape, 1, 1))
    return Stack(tuple(layers), record, now[0], tuple(p.numel() for p in parameters))


def _leaves(module: nn.Module) -> Iterator[nn.Module | None]:
    """The layers in the order of their use; None for one that does something else besides."""
    if not plain(module):
        yield None
    elif type(module) is nn.Sequential:
        for child in module:
            yield from _leaves(child)
    else:
        yield module


def _add(layers: list[Layer], module: nn.Module, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """The shape after this layer, which is put on top of the others; None if it is not known."""
    spatial = len(shape) == 3
    kind = type(module)  # a subclass may do anything
    if kind is nn.Identity:
        return shape
    if (
        isinstance(module, nn.Flatten)
        and kind is nn.Flatten
        and (module.start_dim, module.end_dim) == (1, -1)
    ):
        return (int(np.prod(shape)),)
    if kind is nn.ReLU:
        if not layers and not spatial:
            return None
        if not layers:
            layers.append(Layer(linear=False))
        layers[-1] = replace(layers[-1], relu=True)
        return shape
    if isinstance(module, nn.Linear) and kind is nn.Linear and not spatial:
        layers.append(Layer(linear=True, outs=module.out_features, bias=module.bias is not None))
        return (module.out_features,) if shape == (module.in_features,) else None
    if isinstance(module, nn.Conv2d) and kind is nn.Conv2d and spatial:
        return _add_convolution(layers, module, shape)
    if isinstance(module, nn.MaxPool2d) and kind is nn.MaxPool2d and spatial:
        return _add_pool(layers, module, shape)
    if isinstance(module, nn.GroupNorm) and kind is nn.GroupNorm and spatial:
        return _add_norm(layers, module, shape)
    if isinstance(module, nn.AvgPool2d) and kind is nn.AvgPool2d and spatial:
        usual = not module.ceil_mode and module.divisor_override is None and _pair(module.padding) == NONE
        pool, stride = _pair(module.kernel_size), _pair(module.stride)
        return _add_average(layers, pool, stride, shape) if usual else None
    if isinstance(module, nn.AdaptiveAvgPool2d) and kind is nn.AdaptiveAvgPool2d and spatial:
        if module.output_size not in (1, ONE):
            return None
        return _add_average(layers, (shape[1], shape[2]), ONE, shape)
    return None


def _add_convolution(
    layers: list[Layer], module: nn.Conv2d, shape: tuple[int, ...]
) -> tuple[int, ...] | None:
    kernel, pad = cast(Pair, module.kernel_size), module.padding
    if pad == "same":
        pad = (kernel[0] // 2, kernel[1] // 2) if kernel[0] % 2 and kernel[1] % 2 else "uneven"
    elif pad == "valid":
        pad = NONE
    usual = module.groups == 1 and module.dilation == ONE and module.padding_mode == "zeros"
    if isinstance(pad, str) or not usual or shape[0] != module.in_channels:
        return None
    stride, pad = cast(Pair, module.stride), cast(Pair, pad)
    bias = module.bias is not None
    layers.append(Layer(False, module.out_channels, kernel, stride, pad, bias=bias))
    return _after(module.out_channels, shape, kernel, stride, pad)


def _add_pool(layers: list[Layer], module: nn.MaxPool2d, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    pool, stride, pad = _pair(module.kernel_size), _pair(module.stride), _pair(module.padding)
    if module.ceil_mode or module.return_indices or _pair(module.dilation) != ONE:
        return None
    if any(2 * p > k for p, k in zip(pad, pool, strict=True)):
        return None
    if _pools(layers):
        layers.append(Layer(linear=False))
    layers[-1] = replace(layers[-1], pool=pool, pool_stride=stride, pool_pad=pad)
    return _after(shape[0], shape, pool, stride, pad)


def _add_norm(layers: list[Layer], module: nn.GroupNorm, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    alone = int(np.prod(shape)) == module.num_groups  # torch refuses that for batches of one
    if shape[0] != module.num_channels or alone:
        return None
    if _pools(layers) or layers[-1].relu or layers[-1].groups:
        layers.append(Layer(linear=False))
    gain, shift = module.weight is not None, module.bias is not None
    layers[-1] = replace(layers[-1], groups=module.num_groups, gain=gain, shift=shift, eps=module.eps)
    return shape


def _add_average(
    layers: list[Layer], pool: Pair, stride: Pair, shape: tuple[int, ...]
) -> tuple[int, ...] | None:
    """Always a layer of its own: unlike the maximum, the mean is not the same before and after ReLU."""
    layers.append(Layer(linear=False, pool=pool, pool_stride=stride, average=True))
    return _after(shape[0], shape, pool, stride, NONE)


def _pools(layers: list[Layer]) -> bool:
    """Whether nothing more can come before the last layer's pooling."""
    return not layers or layers[-1].average or layers[-1].pool != ONE or layers[-1].pool_stride != ONE


def _after(
    channels: int, shape: tuple[int, ...], kernel: Pair, stride: Pair, pad: Pair
) -> tuple[int, ...] | None:
    """The shape after a window has gone over images, padded at each side; None where it does not fit."""
    padded = [side + 2 * p for side, p in zip(shape[1:], pad, strict=True)]
    if any(side < k for side, k in zip(padded, kernel, strict=True)):
        return None
    if shape[0] * padded[0] * padded[1] > LARGEST_RECORD:
        return None
    sides = [(side - k) // s + 1 for side, k, s in zip(padded, kernel, stride, strict=True)]
    return (channels, *sides)


def _pair(value: int | tuple[int, ...]) -> Pair:
    return (value, value) if isinstance(value, int) else (value[0], value[1])
