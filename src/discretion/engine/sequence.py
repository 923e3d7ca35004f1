"""Torch models of text as an embedding, LSTM layers and a linear layer, for compiled code."""

import operator
from dataclasses import astuple, dataclass
from itertools import chain as joined
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import fx, nn

from discretion.engine.layer_stack import plain_embedding, trace
from discretion.tasks.models import LSTMLayer

LEAVES: tuple[type[nn.Module], ...] = (nn.Embedding, nn.LSTM, LSTMLayer, nn.Linear)
NOWHERE = -1  # place of a missing bias


@dataclass(frozen=True)
class Recurrence:
    """An LSTM layer, fields in the order that compiled code reads; places are indices in the flat model."""

    inputs: int
    hidden: int
    input: int
    recurrent: int
    bias: int = NOWHERE
    second_bias: int = NOWHERE  # nn.LSTM has two biases, which act as their sum and are trained separately


@dataclass(frozen=True)
class Sequence:
    """A model of token windows whose logits depend on the last step's output alone."""

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
        """Return (layers, 6) numbers as compiled code reads them."""
        return np.array([astuple(layer) for layer in self.layers], dtype=np.int64)


def sequence_of(model: nn.Module, window: int) -> Sequence | None:
    """Return the model as a Sequence for records of `window` tokens; None if a part is not supported.

    Supported are one nn.Embedding, then nn.LSTM or layers of the built-in model, the last step, nn.Linear, in
    a model of any class: its forward is traced.

    Guarantees: every parameter is trained and acts in one layer only; no hook and no other code acts.
    """
    traced = trace(model, LEAVES) if window >= 1 else None
    if traced is None:
        return None
    model, graph = traced
    chain = _chain(graph, model)
    if len(chain) < 3:
        return None
    parameters = list(model.parameters())
    ends = np.cumsum([0, *(p.numel() for p in parameters)]).tolist()
    place = {id(p): end for p, end in zip(parameters, ends, strict=False)}
    used = [id(p) for layer in chain for p in layer.parameters()]
    if sorted(used) != sorted(place) or not all(p.requires_grad for p in parameters):
        return None
    embedding, *between, output = chain
    if not isinstance(embedding, nn.Embedding) or not isinstance(output, nn.Linear):
        return None
    found = [_recurrences(layer, place) for layer in between]
    layers = tuple(joined.from_iterable(found))
    widths = [embedding.embedding_dim, *(one.hidden for one in layers)]
    fitting = widths == [*(one.inputs for one in layers), output.in_features] and plain_embedding(embedding)
    if not all(found) or not fitting or min(*widths, embedding.num_embeddings, output.out_features) < 1:
        return None
    return Sequence(
        tokens=embedding.num_embeddings,
        width=embedding.embedding_dim,
        window=window,
        classes=output.out_features,
        layers=layers,
        size=ends[-1],
        embedding=place[id(embedding.weight)],
        output=place[id(output.weight)],
        output_bias=place.get(id(output.bias), NOWHERE),
    )


def _chain(graph: fx.Graph, model: nn.Module) -> list[nn.Module]:
    """Return the layers in the order of use; none unless each takes just the output of the one before."""
    chain: list[nn.Module] = []
    what: dict[Any, str] = {}  # kind of value of each node
    for node in graph.nodes:
        if node.op == "placeholder":
            if what or node.args:  # a second input, or one with a default
                return []
            what[node] = "tokens"
        elif node.op == "output":
            return chain if what.get(node.args[0]) == "logits" else []
        elif node.op == "call_module" and len(node.args) == 1 and not node.kwargs:
            layer = model.get_submodule(str(node.target))
            what[node] = _GIVES.get((what.get(node.args[0], ""), type(layer)), "")
            chain.append(layer)
        elif node.op == "call_function" and node.target is operator.getitem:
            what[node] = _PARTS.get((what.get(node.args[0], ""), repr(node.args[1])), "")
        if not what.get(node):
            return []
    return []


_GIVES: dict[tuple[str, type[nn.Module]], str] = {
    ("tokens", nn.Embedding): "steps",
    ("steps", nn.LSTM): "steps and ends",
    ("steps", LSTMLayer): "steps",
    ("last", nn.Linear): "logits",
}
_PARTS = {
    ("steps and ends", "0"): "steps",
    ("steps and ends", "1"): "ends",
    ("ends", "0"): "outputs at the end",
    ("ends", "1"): "cells at the end",
    ("outputs at the end", "-1"): "last",
    **{("steps", repr((slice(None), -1, *rest))): "last" for rest in ((), (slice(None),), (Ellipsis,))},
}


def _recurrences(module: nn.Module, place: dict[int, int]) -> list[Recurrence]:
    """Return the LSTM layers of a module; none if it has unsupported options."""
    if isinstance(module, LSTMLayer):
        entering, again = module.input, module.recurrent
        if (type(entering), type(again)) != (nn.Linear, nn.Linear) or again.bias is not None:
            return []
        hidden = again.in_features
        if {entering.out_features, again.out_features} != {4 * hidden}:
            return []
        places = (place[id(p)] for p in (entering.weight, again.weight))
        return [Recurrence(entering.in_features, hidden, *places, place.get(id(entering.bias), NOWHERE))]
    if not isinstance(module, nn.LSTM) or not module.batch_first:
        return []
    if module.bidirectional or module.proj_size or module.dropout:
        return []
    names = ("weight_ih_l", "weight_hh_l", *(("bias_ih_l", "bias_hh_l") if module.bias else ()))
    return [
        Recurrence(
            module.hidden_size if number else module.input_size,
            module.hidden_size,
            *(place[id(getattr(module, f"{name}{number}"))] for name in names),
        )
        for number in range(module.num_layers)
    ]
