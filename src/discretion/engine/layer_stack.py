"""Torch models as stacks of layers that compiled code can train, and the tracing of other models."""

import copy
import math
from collections.abc import Iterator
from dataclasses import astuple, dataclass, replace
from typing import cast

import numpy as np
import numpy.typing as npt
from torch import fx, nn

LayerTypes = tuple[type[nn.Module], ...]
Shape = tuple[int, ...]
Pair = tuple[int, int]

NONE: Pair = (0, 0)
ONE: Pair = (1, 1)
ANYWHERE: LayerTypes = (nn.Identity, nn.Flatten, nn.ReLU)
FLAT: LayerTypes = (*ANYWHERE, nn.Linear)
SPATIAL: LayerTypes = (*ANYWHERE, nn.Conv2d, nn.MaxPool2d, nn.GroupNorm, nn.AvgPool2d, nn.AdaptiveAvgPool2d)
LARGEST_RECORD = 2**30  # floats in a layer's input, as int32 indexes them


def unmodified(module: nn.Module) -> bool:
    """Return whether a layer does only what its class says.

    Guarantees: no hook acts on the layer, and no method of its class is replaced in this one object.
    """
    forward = (module._forward_hooks, module._forward_pre_hooks)
    backward = (module._backward_hooks, module._backward_pre_hooks)
    replaced = (name for name in vars(module) if callable(getattr(type(module), name, None)))
    return not any(forward) and not any(backward) and not any(replaced)


def plain_embedding(layer: nn.Embedding) -> bool:
    """Return whether an embedding has none of torch's special options."""
    special = (layer.padding_idx, layer.max_norm, layer.scale_grad_by_freq, layer.sparse)
    return special == (None, None, False, False)


class _LayerTracer(fx.Tracer):
    def __init__(self, leaves: LayerTypes) -> None:
        super().__init__()
        self._leaves = leaves

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return type(m) in self._leaves


def trace(model: nn.Module, leaves: LayerTypes) -> tuple[nn.Module, fx.Graph] | None:
    """Trace a copy of the model down to layers of these classes; return the copy and its graph.

    None where a layer was modified, or where torch.fx cannot trace the code of `forward`.
    """
    model = copy.deepcopy(model)  # a forward may change its model
    if not all(map(unmodified, model.modules())):
        return None
    try:
        return model, _LayerTracer(leaves).trace(model)
    except Exception:  # whatever code of the user's tracing does not understand
        return None


@dataclass(frozen=True)
class Layer:
    """One layer, its fields in the order that compiled code reads.

    A spatial layer may convolve, normalise, pool and apply ReLU, in this order.
    """

    linear: bool
    outs: int = 0  # output channels or units; 0 for a spatial layer without convolution
    kernel: Pair = ONE
    stride: Pair = ONE
    pad: Pair = NONE
    pool: Pair = ONE
    pool_stride: Pair = ONE
    pool_pad: Pair = NONE
    relu: bool = False
    bias: bool = False
    average: bool = False  # pools by the mean, not the maximum
    groups: int = 0  # of group normalisation; 0 for none
    gain: bool = False
    shift: bool = False
    eps: float = 0.0


@dataclass(frozen=True)
class Stack:
    """A model for records of one shape, as a tuple of layers."""

    layers: tuple[Layer, ...]
    shape: tuple[int, int, int]  # of a record: channels, height, width; flat records have height and width 1
    classes: int
    lengths: tuple[int, ...]  # numbers in each parameter tensor, all of which are trained

    @property
    def size(self) -> int:
        """Return the number of parameters."""
        return sum(self.lengths)

    def rows(self) -> npt.NDArray[np.void]:
        """Return (layers,) rows as compiled code reads them."""
        numbers = [astuple(layer) for layer in self.layers]
        rows = [(np.hstack(row[:-1]), row[-1]) for row in numbers]
        return np.array(rows, dtype=[("whole", np.int64, len(rows[0][0])), ("eps", np.float64)])


def stack_of(model: nn.Module, shape: Shape) -> Stack | None:
    """Return the model as a Stack for records of this shape; None if a layer is not supported.

    Supported are Conv2d, GroupNorm, MaxPool2d, AvgPool2d, AdaptiveAvgPool2d, ReLU, Flatten and Linear within
    nn.Sequential, with every parameter trained.

    Guarantees: in a flat model the parameters are in the order of the layers, weight before bias.
    """
    if len(shape) not in (1, 3) or not all(map(unmodified, model.modules())):
        return None
    layers: list[Layer] = []
    parameters: list[nn.Parameter] = []
    now = shape
    for module in _leaves(model):
        if (found := _add(layers, module, now)) is None:
            return None
        now = found
        parameters += module.parameters()
    in_order = [id(p) for p in parameters] == [id(p) for p in model.parameters()]
    if len(now) != 1 or not layers or not in_order or not all(p.requires_grad for p in parameters):
        return None
    record = cast(tuple[int, int, int], shape if len(shape) == 3 else (*shape, 1, 1))
    return Stack(tuple(layers), record, now[0], tuple(p.numel() for p in parameters))


def _leaves(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the layers within nn.Sequential in the order of use."""
    if type(module) is not nn.Sequential:
        yield module
        return
    for child in module:
        yield from _leaves(child)


def _add(layers: list[Layer], module: nn.Module, shape: Shape) -> Shape | None:
    """Add a layer to `layers` and return the shape of its output; None if the layer is not supported."""
    spatial = len(shape) == 3
    if type(module) not in (SPATIAL if spatial else FLAT):
        return None  # a subclass may do anything
    match module:
        case nn.Flatten():
            return (math.prod(shape),) if (module.start_dim, module.end_dim) == (1, -1) else None
        case nn.ReLU():
            if not layers and not spatial:
                return None
            if not layers:
                layers.append(Layer(linear=False))
            layers[-1] = replace(layers[-1], relu=True)
        case nn.Linear():
            layers.append(Layer(linear=True, outs=module.out_features, bias=module.bias is not None))
            return (module.out_features,) if shape == (module.in_features,) else None
        case nn.Conv2d():
            return _add_convolution(layers, module, shape)
        case nn.GroupNorm():
            return _add_norm(layers, module, shape)
        case nn.MaxPool2d() | nn.AvgPool2d() | nn.AdaptiveAvgPool2d():
            return _add_pool(layers, module, shape)
    return shape


def _add_convolution(layers: list[Layer], module: nn.Conv2d, shape: Shape) -> Shape | None:
    kernel, pad = cast(Pair, module.kernel_size), module.padding
    if pad == "same" and kernel[0] % 2 and kernel[1] % 2:
        pad = (kernel[0] // 2, kernel[1] // 2)
    elif pad == "valid":
        pad = NONE
    usual = module.groups == 1 and module.dilation == ONE and module.padding_mode == "zeros"
    if isinstance(pad, str) or not usual or shape[0] != module.in_channels:
        return None
    stride, pad = cast(Pair, module.stride), cast(Pair, pad)
    bias = module.bias is not None
    layers.append(Layer(False, module.out_channels, kernel, stride, pad, bias=bias))
    return _after(module.out_channels, shape, kernel, stride, pad)


def _add_pool(
    layers: list[Layer], module: nn.MaxPool2d | nn.AvgPool2d | nn.AdaptiveAvgPool2d, shape: Shape
) -> Shape | None:
    if isinstance(module, nn.AdaptiveAvgPool2d):
        usual, pool, stride, pad = module.output_size in (1, ONE), (shape[1], shape[2]), ONE, NONE
    else:
        pool, stride, pad = _pair(module.kernel_size), _pair(module.stride), _pair(module.padding)
        if isinstance(module, nn.AvgPool2d):
            usual = not module.ceil_mode and module.divisor_override is None and pad == NONE
        else:
            usual = not module.ceil_mode and not module.return_indices and _pair(module.dilation) == ONE
            usual = usual and 2 * pad[0] <= pool[0] and 2 * pad[1] <= pool[1]
    if not usual:
        return None
    average = not isinstance(module, nn.MaxPool2d)
    if average or _pools(layers):  # unlike the maximum, the mean differs before and after ReLU
        layers.append(Layer(linear=False))
    layers[-1] = replace(layers[-1], pool=pool, pool_stride=stride, pool_pad=pad, average=average)
    return _after(shape[0], shape, pool, stride, pad)


def _add_norm(layers: list[Layer], module: nn.GroupNorm, shape: Shape) -> Shape | None:
    alone = math.prod(shape) == module.num_groups  # torch refuses groups of one number in batches of one
    if shape[0] != module.num_channels or alone:
        return None
    if _pools(layers) or layers[-1].relu or layers[-1].groups:
        layers.append(Layer(linear=False))
    gain, shift = module.weight is not None, module.bias is not None
    layers[-1] = replace(layers[-1], groups=module.num_groups, gain=gain, shift=shift, eps=module.eps)
    return shape


def _pools(layers: list[Layer]) -> bool:
    """Return whether the last layer already pools, so that nothing can be put before its pooling."""
    return not layers or layers[-1].average or layers[-1].pool != ONE or layers[-1].pool_stride != ONE


def _after(channels: int, shape: Shape, kernel: Pair, stride: Pair, pad: Pair) -> Shape | None:
    """Return the output shape of a sliding window over padded images; None if the window does not fit."""
    padded = [side + 2 * p for side, p in zip(shape[1:], pad, strict=True)]
    fits = all(side >= k for side, k in zip(padded, kernel, strict=True))
    if not fits or shape[0] * math.prod(padded) > LARGEST_RECORD:
        return None
    sides = [(side - k) // s + 1 for side, k, s in zip(padded, kernel, stride, strict=True)]
    return (channels, *sides)


def _pair(value: int | Shape) -> Pair:
    return (value, value) if isinstance(value, int) else (value[0], value[1])
