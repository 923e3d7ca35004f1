"""Models that treat each record of a batch on its own, through supported layers only."""

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from discretion.engine.layer_stack import plain_embedding, trace
from discretion.tasks.models import LSTMLayer

# layers with per-record gradients in `layer_gradients`
TRAINED: tuple[type[nn.Module], ...] = (nn.Linear, nn.Conv2d, nn.Embedding, nn.GroupNorm, nn.LayerNorm)
APART: tuple[type[nn.Module], ...] = (
    *(nn.Identity, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish, nn.Softplus),
    *(nn.Tanh, nn.Sigmoid, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.LogSigmoid, nn.Softsign),
    *(nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d, nn.ZeroPad2d, nn.Flatten),
    *(nn.Dropout, nn.Dropout2d),  # of probability 0: `models.check` refuses others
    LSTMLayer,
)
APART_FUNCTIONS: tuple[Callable[..., Any], ...] = (
    *(torch.relu, torch.tanh, torch.sigmoid, torch.flatten, torch.add),
    *(operator.getitem, operator.add, getattr),
    *(functional.relu, functional.gelu, functional.silu, functional.elu, functional.leaky_relu),
    *(functional.tanh, functional.sigmoid, functional.max_pool2d, functional.avg_pool2d),
    functional.adaptive_avg_pool2d,
)
APART_METHODS = ("relu", "tanh", "sigmoid", "flatten", "view", "reshape", "size")


class Mixed(Exception):
    """Rows of the batch may mix records, so per-record gradients cannot be told apart."""


def _sum(one: Tensor, other: Tensor) -> Tensor:
    if one.shape != other.shape:  # a broadcast could carry one record over to another
        raise Mixed
    return one + other


def _reshape(values: Tensor, *sizes: Any) -> Tensor:
    result = values.reshape(*sizes)
    if result.shape[:1] != values.shape[:1]:
        raise Mixed
    return result


def trace_per_record(model: nn.Module) -> fx.GraphModule | None:
    """Return a copy of the model made of supported parts only; None if it has other parts.

    Guarantees:
        In the returned model each row of a layer's input and output belongs to one record and depends on no
        other record, or running the model raises `Mixed`. Each trained parameter acts through one layer of
        `TRAINED`.
        What was checked is what runs: nothing of the model's own code is left, and no hooks.
    """
    traced = trace(model, TRAINED + APART)
    if traced is None:
        return None
    model, graph = traced
    trained = [id(p) for p in model.parameters() if p.requires_grad]
    within = [id(p) for m in model.modules() if type(m) in TRAINED for p in m.parameters() if p.requires_grad]
    if sorted(trained) != sorted(within):  # others, or the same one in two layers
        return None
    if not all(_known(node, model) for node in graph.nodes):
        return None
    return fx.GraphModule(model, graph)


def _known(node: fx.Node, model: nn.Module) -> bool:
    if node.op in ("placeholder", "output"):
        return node.op == "output" or len(node.args) == 0
    if node.op == "call_module":
        return _known_module(node, model.get_submodule(str(node.target)))
    apart: dict[str, tuple[Any, ...]] = {"call_function": APART_FUNCTIONS, "call_method": APART_METHODS}
    if node.target not in apart.get(node.op, ()) or node.kwargs.get("inplace"):
        return False
    first, *rest = node.args or (None,)
    if not isinstance(first, fx.Node):
        return False
    if node.target in (operator.add, torch.add):
        node.op, node.target = "call_function", _sum
        return len(rest) == 1 and isinstance(rest[0], fx.Node) and not node.kwargs
    if node.target in ("view", "reshape"):
        node.op, node.target = "call_function", _reshape
        return not node.kwargs and all(isinstance(size, int) or _is_size(size) for size in rest)
    if node.target is operator.getitem:  # the number of records, or the same part of each
        index = rest[0]
        part = isinstance(index, tuple) and index[:1] == (slice(None),) and _constant(index)
        return _is_size(node) or (part and first.target is not getattr)
    if node.target is getattr:
        return rest == ["shape"]
    if node.target == "size":
        return _is_size(node)
    if node.target in (torch.flatten, "flatten"):
        return bool(rest) and isinstance(rest[0], int) and rest[0] >= 1 and not node.kwargs
    return _constant(tuple(rest)) and _constant(tuple(node.kwargs.values()))


def _is_size(node: Any) -> bool:
    if not isinstance(node, fx.Node) or len(node.args) != 2 or node.args[1] != 0:
        return False
    of_shape = isinstance(node.args[0], fx.Node) and node.args[0].target is getattr
    return node.target == "size" or (node.target is operator.getitem and of_shape)


def _constant(values: tuple[Any, ...]) -> bool:
    return not any(isinstance(value, fx.Node | fx.Proxy | Tensor) for value in values)


def _known_module(node: fx.Node, module: nn.Module) -> bool:
    (first,) = node.args if len(node.args) == 1 else (None,)
    if type(module) not in TRAINED + APART or not isinstance(first, fx.Node) or node.kwargs:
        return False
    if getattr(module, "inplace", False):
        module.__dict__["inplace"] = False
        return len(first.users) == 1  # no other layer reads the values that stay unchanged
    if isinstance(module, nn.Flatten):
        return module.start_dim >= 1
    if isinstance(module, nn.Conv2d):
        numbers = isinstance(module.padding, tuple) and module.padding_mode == "zeros"
        return numbers and module.groups == 1
    if isinstance(module, nn.Embedding):
        return plain_embedding(module)
    return True
