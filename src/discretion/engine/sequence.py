"""See a torch model of text as an embedding, layers of LSTM and a linear layer, or say that it is none."""

import copy
import operator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import fx, nn

from discretion.tasks.models import _LSTMLayer

LEAVES: tuple[type[nn.Module], ...] = (nn.Embedding, nn.LSTM, _LSTMLayer, nn.Linear)
NOWHERE = -1  # the place of a bias that is not there


@dataclass(frozen=True)
class Recurrence:
    """A layer of LSTM, in the order that the compiled code reads; places are those in the flat model."""

    inputs: int
    hidden: int
    input: int
    recurrent: int
    bias: int = NOWHERE
    second_bias: int = NOWHERE  # nn.LSTM has two, which act as their sum and are moved apart


@dataclass(frozen=True)
class Sequence:
    """A model for windows of tokens: its logits are made of the last step alone."""

    tokens: int
    width: int  # of the embedding
    window: int
    classes: int
    layers: tuple[Recurrence, ...]
    size: int  # trainable parameters
    embedding: int  # places in the flat model
    output: int
    output_bias: int

    def rows(self) -> npt.NDArray[np.int64]:
        """(layers, 6) as the compiled code reads them."""
        rows = [
            (one.inputs, one.hidden, one.input, one.recurrent, one.bias, one.second_bias)
            for one in self.layers
        ]
        return np.array(rows, dtype=np.int64)


def sequence_of(model: nn.Module, window: int) -> Sequence | None:
    """The model as a sequence, for so many tokens in a record; None if anything in it is not known here.

    Known are one nn.Embedding, then nn.LSTM or the layers of the built-in model, the last step, nn.Linear, in
    a model of any class: what its forward does is traced.

    Guarantees: every parameter is trained and acts in one layer only, and no hook or code besides acts.
    """
    model = copy.deepcopy(model)  # a forward may change its model
    if window < 1 or not all(map(_plain, model.modules())):
        return None
    try:
        graph = _Tracer().trace(model)
    except Exception:  # whatever code of the user's tracing does not understand
        return None
    chain = _chain(graph, model)
    return None if chain is None else _sequence(model, chain, window)


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return type(m) in LEAVES


def _plain(module: nn.Module) -> bool:
    hooks = (module._forward_hooks, module._forward_pre_hooks)
    backward = (module._backward_hooks, module._backward_pre_hooks)
    return not any(hooks) and not any(backward) and "forward" not in vars(module)


def _chain(graph: fx.Graph, model: nn.Module) -> list[nn.Module] | None:
    """The layers in the order of their use, if each takes what the one before gives and nothing else."""
    chain: list[nn.Module] = []
    what: dict[Any, str] = {}  # what a node of the graph is
    for node in graph.nodes:
        if node.op == "placeholder":
            if what or node.args:  # a second input, or one with a default
                return None
            what[node] = "tokens"
        elif node.op == "output":
            return chain if what.get(node.args[0]) == "logits" else None
        elif node.op == "call_module" and len(node.args) == 1 and not node.kwargs:
            layer = model.get_submodule(str(node.target))
            found = _GIVES.get((what.get(node.args[0], ""), type(layer)))
            if found is None:
                return None
            what[node] = found
            chain.append(layer)
        elif node.op == "call_function" and node.target is operator.getitem:
            found = _PARTS.get((what.get(node.args[0], ""), repr(node.args[1])))
            if found is None:
                return None
            what[node] = found
        else:
            return None
    return None


_GIVES: dict[tuple[str, type[nn.Module]], str] = {
    ("tokens", nn.Embedding): "steps",
    ("steps", nn.LSTM): "steps and ends",
    ("steps", _LSTMLayer): "steps",
    ("last", nn.Linear): "logits",
}
_PARTS = {
    ("steps and ends", "0"): "steps",
    ("steps and ends", "1"): "ends",
    ("ends", "0"): "outputs at the end",
    ("ends", "1"): "cells at the end",
    ("outputs at the end", "-1"): "last",
    **{
        ("steps", f"(slice(None, None, None), -1{rest})"): "last"
        for rest in ("", ", slice(None, None, None)")
    },
    ("steps", "(slice(None, None, None), -1, Ellipsis)"): "last",
}


def _sequence(model: nn.Module, chain: list[nn.Module], window: int) -> Sequence | None:
    parameters = list(model.parameters())
    ends = np.cumsum([0, *(p.numel() for p in parameters)]).tolist()
    place = {id(p): end for p, end in zip(parameters, ends, strict=False)}
    used = [id(p) for layer in chain for p in layer.parameters()]
    if sorted(used) != sorted(place) or not all(p.requires_grad for p in parameters):
        return None
    embedding, *between, output = chain
    if not isinstance(embedding, nn.Embedding) or not isinstance(output, nn.Linear) or not between:
        return None
    special = (embedding.padding_idx, embedding.max_norm, embedding.scale_grad_by_freq, embedding.sparse)
    if special != (None, None, False, False):
        return None
    layers: list[Recurrence] = []
    for layer in between:
        found = _recurrences(layer, place)
        if found is None:
            return None
        layers += found
    widths = [embedding.embedding_dim, *(one.hidden for one in layers)]
    if widths != [*(one.inputs for one in layers), output.in_features]:
        return None
    if min(*widths, embedding.num_embeddings, output.out_features) < 1:
        return None
    return Sequence(
        tokens=embedding.num_embeddings,
        width=embedding.embedding_dim,
        window=window,
        classes=output.out_features,
        layers=tuple(layers),
        size=ends[-1],
        embedding=place[id(embedding.weight)],
        output=place[id(output.weight)],
        output_bias=place.get(id(output.bias), NOWHERE),
    )


def _recurrences(module: nn.Module, place: dict[int, int]) -> list[Recurrence] | None:
    if isinstance(module, _LSTMLayer):
        entering, again = module.input, module.recurrent
        if (type(entering), type(again)) != (nn.Linear, nn.Linear) or again.bias is not None:
            return None
        hidden = again.in_features
        if {entering.out_features, again.out_features} != {4 * hidden}:
            return None
        places = (place[id(p)] for p in (entering.weight, again.weight))
        return [Recurrence(entering.in_features, hidden, *places, place.get(id(entering.bias), NOWHERE))]
    if not isinstance(module, nn.LSTM) or not module.batch_first:
        return None
    if module.bidirectional or module.proj_size or module.dropout:
        return None
    names = ("weight_ih_l", "weight_hh_l", *(("bias_ih_l", "bias_hh_l") if module.bias else ()))
    return [
        Recurrence(
            module.hidden_size if number else module.input_size,
            module.hidden_size,
            *(place[id(getattr(module, f"{name}{number}"))] for name in names),
        )
        for number in range(module.num_layers)
    ]
