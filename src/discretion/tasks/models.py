"""Models that clients train: built-in ones, checks that refuse leaking ones, conversion to a flat vector."""

import hashlib
import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.parameter import is_lazy

from discretion import outside
from discretion.errors import ModelError, nearest
from discretion.tasks.datasets import Dataset


def _dense(*units: int) -> list[nn.Module]:
    """Return a layer that flattens its input, then linear layers of these units with ReLU between them."""
    layers: list[nn.Module] = [nn.Flatten()]
    for pair in pairwise(units):
        layers += [nn.Linear(*pair), nn.ReLU()]
    return layers[:-1]


def _mlp(name: str, dataset: Dataset, *hidden: int) -> nn.Module:
    if dataset.kind == "text":
        raise ModelError(f"{name}: expected images or a table, but {dataset.name} is text. Use lstm.")
    return nn.Sequential(*_dense(math.prod(dataset.train.inputs.shape[1:]), *hidden, dataset.classes))


def convolutional(
    dataset: Dataset, block: Callable[[int, int], Sequence[nn.Module]], widths: Sequence[int], *hidden: int
) -> nn.Module:
    """Return a block of layers for each width in channels, then linear layers with these hidden units."""
    shape = dataset.train.inputs.shape[1:]
    blocks = [layer for pair in pairwise((shape[0], *widths)) for layer in block(*pair)]
    features = nn.Sequential(*blocks)(torch.zeros(1, *shape)).numel()
    return nn.Sequential(*blocks, *_dense(features, *hidden, dataset.classes))


def padded_block(ins: int, outs: int) -> Sequence[nn.Module]:
    """Return the layers that McMahan et al. use for each width in channels."""
    return nn.Conv2d(ins, outs, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)


def _unpadded_block(ins: int, outs: int) -> Sequence[nn.Module]:
    return nn.Conv2d(ins, outs, 5), nn.MaxPool2d(2), nn.ReLU()


def _normalised_block(ins: int, outs: int) -> Sequence[nn.Module]:
    return nn.Conv2d(ins, outs, 3, padding=1), nn.GroupNorm(8, outs), nn.ReLU(), nn.MaxPool2d(2)


def _cnn(name: str, dataset: Dataset, smallest: int, *layers: Any) -> nn.Module:
    if dataset.kind != "image":
        instead = "lstm" if dataset.kind == "text" else "mlp"
        raise ModelError(
            f"{name}: expected images, but {dataset.name} is {dataset.kind} data. Use {instead}."
        )
    height, width = dataset.train.inputs.shape[2:]
    if min(height, width) < smallest:
        raise ModelError(
            f"{name}: images must be at least {smallest}x{smallest}, but those of {dataset.name} "
            f"are {height}x{width}. Use mlp."
        )
    return convolutional(dataset, *layers)


class LSTMLayer(nn.Module):
    """One LSTM layer in plain tensor operations, (N, L, inputs) to (N, L, hidden).

    nn.LSTM has no batching rule in torch.func (vmap fails without grad and falls back to a loop
    with it); this runs about as fast on a CPU. It has one bias where nn.LSTM has two that only
    act as their sum and would weigh twice in an update; the forget gate's bias starts at 1.
    """

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(hidden)
        self.input = nn.Linear(inputs, 4 * hidden)
        self.recurrent = nn.Linear(hidden, 4 * hidden, bias=False)
        for weight in (self.input.weight, self.recurrent.weight):
            nn.init.uniform_(weight, -bound, bound)
        nn.init.zeros_(self.input.bias)
        nn.init.ones_(self.input.bias[hidden : 2 * hidden])

    def forward(self, inputs: Tensor) -> Tensor:
        from_input = self.input(inputs)  # (N, L, 4 hidden), all steps at once
        output = cell = from_input.new_zeros(len(inputs), self.recurrent.in_features)
        outputs = []
        for gates in from_input.unbind(1):
            enter, forget, candidate, leave = (gates + self.recurrent(output)).chunk(4, dim=1)
            cell = forget.sigmoid() * cell + enter.sigmoid() * candidate.tanh()
            output = leave.sigmoid() * cell.tanh()
            outputs.append(output)
        return torch.stack(outputs, dim=1)


class _LSTM(nn.Module):
    """Model of the next token: windows of tokens (N, L) to logits (N, tokens)."""

    def __init__(self, tokens: int, embedding: int = 8, hidden: int = 256) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, embedding)
        self.layers = nn.Sequential(LSTMLayer(embedding, hidden), LSTMLayer(hidden, hidden))
        self.output = nn.Linear(hidden, tokens)

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.output(self.layers(self.embedding(ids))[:, -1])
        return logits


def _lstm(name: str, dataset: Dataset) -> nn.Module:
    if dataset.kind != "text":
        raise ModelError(
            f"{name}: expected text, but {dataset.name} is {dataset.kind} data. Use mlp or linear."
        )
    largest = max(int(s.inputs.max()) for s in (dataset.train, dataset.test) if s.inputs.size)
    if largest >= dataset.classes:
        raise ModelError(
            f"{name}: the model predicts the next token, so ids must be below {dataset.classes} (classes), "
            f"but {dataset.name} has {largest}. Use your own model as package.module:factory."
        )
    return _LSTM(dataset.classes)


BUILT_IN: dict[str, tuple[Any, ...]] = {  # a function, and its arguments after name and data set
    "linear": (_mlp,),  # softmax regression
    "mlp": (_mlp, 64),  # one hidden layer, for tables and small images
    "cnn_small": (_cnn, 16, _unpadded_block, (10, 20), 50),  # two 5x5 convolutions
    "cnn": (_cnn, 4, padded_block, (32, 64), 512),  # McMahan et al.'s two 5x5 convolutions
    "cnn_norm": (_cnn, 8, _normalised_block, (32, 64, 128)),  # three 3x3 convolutions, for colour images
    "lstm": (_lstm,),  # next character: embedding of 8, two LSTM layers of 256
}


def build(name: str, dataset: Dataset, seed: int) -> nn.Module:
    """The model of that name, or of the user's own `package.module:factory`, for this data set.

    The model takes float inputs (N, C, H, W) or (N, F), or int64 token ids (N, L), and returns
    logits (N, classes).

    Guarantees: the same seed gives the same weights; torch's global generator is left as it was;
    the model has passed `check` and one pass over two blank records.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        if outside.is_outside(name):
            model = _call_factory(name, dataset)
        elif name in BUILT_IN:
            builder, *arguments = BUILT_IN[name]
            model = builder(name, dataset, *arguments)
        else:
            raise ModelError(
                f"There is no model {name!r}.{nearest(name, BUILT_IN)} Known: {', '.join(BUILT_IN)}, and "
                "your own as package.module:factory."
            )
        check(model)
        _try(model, name, dataset)
    return model


def check(model: nn.Module) -> None:
    """Raise a ModelError if the model cannot be trained privately; the message says what to change.

    Guarantees: an accepted model has trainable parameters, all of its parameters are float32, its
    state dict has nothing else in it, and no layer of torch.nn in it draws random numbers or
    normalises over the batch.
    """
    for name, module in model.named_modules():
        place = f"{type(module).__name__} at {name!r}" if name else type(module).__name__
        if isinstance(module, _BatchNorm):
            raise ModelError(
                f"{place} mixes the records of a batch and its running statistics would leave the "
                "client without noise. Use nn.GroupNorm or nn.LayerNorm."
            )
        if _draws_random_numbers(module):
            raise ModelError(
                f"{place} draws random numbers while training, so updates are not reproducible. "
                "Remove the layer, or set its probability to 0."
            )
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for name, parameter in parameters.items():
        if is_lazy(parameter):
            raise ModelError(f"Parameter {name!r} has no shape yet. Do not use lazy layers.")
        if parameter.dtype != torch.float32:
            found = f"Parameter {name!r} is {parameter.dtype}"
            raise ModelError(f"{found}, but must be torch.float32. Call .float() on the model.")
    if others := [name for name in model.state_dict() if name not in parameters]:
        raise ModelError(
            f"The model's state has {', '.join(others)} besides its parameters, which would leave the "
            "client without noise. If constant, use register_buffer(..., persistent=False); "
            "otherwise remove it."
        )
    if not any(parameter.requires_grad for parameter in parameters.values()):
        raise ModelError("The model has no trainable parameters. Set requires_grad on some.")


def shapes_digest(module: nn.Module) -> str:
    """Return the SHA-256 of the names and shapes of the trainable parameters, in order."""
    lines = (f"{name} {tuple(p.shape)}" for name, p in module.named_parameters() if p.requires_grad)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def flatten(module: nn.Module) -> npt.NDArray[np.float32]:
    """Return a copy (d,) of the trainable parameters, in the order of named_parameters."""
    trainable = [p.detach().cpu().reshape(-1) for p in module.parameters() if p.requires_grad]
    vector: npt.NDArray[np.float32] = torch.cat(trainable).numpy()
    return vector


def unflatten(vector: npt.NDArray[np.float32] | Tensor, module: nn.Module) -> dict[str, Tensor]:
    """Return views of a vector (d,), or of a stack (..., d), as the module's trainable parameters by name.

    The result is what torch.func.functional_call takes; that of a stack (K, d), inside vmap. An array goes
    to the module's device; a read-only array is copied first, since torch has no read-only tensors.
    """
    if isinstance(vector, np.ndarray):
        vector = torch.from_numpy(vector if vector.flags.writeable else vector.copy())
        vector = vector.to(next(module.parameters()).device)
    trainable = {name: p for name, p in module.named_parameters() if p.requires_grad}
    lengths = [p.numel() for p in trainable.values()]
    if vector.shape[-1:] != (sum(lengths),) or vector.dtype != torch.float32:
        found = f"found {vector.dtype} of shape {tuple(vector.shape)}"
        raise ModelError(f"The model takes {sum(lengths)} torch.float32 numbers, but {found}.")
    parts = zip(trainable.items(), vector.split_with_sizes(lengths, dim=-1), strict=True)
    return {name: part.view(*part.shape[:-1], *p.shape) for (name, p), part in parts}


def _draws_random_numbers(module: nn.Module) -> bool:
    if isinstance(module, _DropoutNd):
        return module.p > 0
    if isinstance(module, (nn.RNNBase, nn.MultiheadAttention)):
        return module.dropout > 0
    if isinstance(module, nn.RReLU):
        return module.lower != module.upper
    return isinstance(module, (nn.FractionalMaxPool2d, nn.FractionalMaxPool3d))


def _call_factory(name: str, dataset: Dataset) -> nn.Module:
    factory = outside.load(name, ModelError)
    try:
        model = factory(dataset)
    except Exception as error:
        raise ModelError(
            f"Model {name!r} fails when called with the data set {dataset.name}: "
            f"{type(error).__name__}: {error}"
        ) from error
    if not isinstance(model, nn.Module):
        raise ModelError(f"Model {name!r} returned a {type(model).__name__}, but must return an nn.Module.")
    return model


def _try(model: nn.Module, name: str, dataset: Dataset) -> None:
    """Run the model on two blank records, to find wrong shapes and randomness that `check` cannot see."""
    dtype = torch.int64 if dataset.kind == "text" else torch.float32
    blank = torch.zeros(2, *dataset.train.inputs.shape[1:], dtype=dtype)
    before = torch.get_rng_state()
    try:
        with torch.no_grad():
            logits = model(blank)
    except Exception as error:
        raise ModelError(
            f"Model {name!r} fails on inputs of shape {tuple(blank.shape)} and {dtype}: "
            f"{type(error).__name__}: {error}"
        ) from error
    if not torch.equal(before, torch.get_rng_state()):
        raise ModelError(
            f"Model {name!r} draws random numbers in forward (functional dropout?), so updates are not "
            "reproducible. Remove that."
        )
    shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
    if shape != (2, dataset.classes):
        raise ModelError(
            f"Model {name!r} returned {shape} for 2 records, but must return logits of shape "
            f"(2, {dataset.classes}), one for each class of {dataset.name}."
        )
