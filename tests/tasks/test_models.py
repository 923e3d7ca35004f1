"""The built-in models are the published ones, fit vmap, and leaky models are refused."""

import sys
from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy, dropout

from discretion.errors import ModelError
from discretion.tasks import models
from discretion.tasks.catalogue import Kind
from discretion.tasks.datasets import Dataset, Split


def dataset(kind: Kind, shape: tuple[int, ...], classes: int) -> Dataset:
    dtype = {"image": np.uint8, "tabular": np.float32, "text": np.int64}[kind]
    split = Split(np.zeros((4, *shape), dtype=dtype), np.arange(4) % classes)
    return Dataset(
        name="made_up",
        train=split,
        test=split,
        classes=classes,
        kind=kind,
        source="the test",
        mean=0.0,
        std=1.0,
        owner=None,
        owners=(),
    )


MNIST = dataset("image", (1, 28, 28), 10)
CIFAR = dataset("image", (3, 32, 32), 10)
DIGITS = dataset("image", (1, 8, 8), 10)
ADULT = dataset("tabular", (14,), 2)
PLAY = dataset("text", (80,), 80)


def inputs(data: Dataset, *leading: int) -> Tensor:
    """Random records (*leading, ...) as the models of this data set take them."""
    shape = (*leading, *data.train.inputs.shape[1:])
    generator = torch.Generator().manual_seed(0)
    if data.kind == "text":
        return torch.randint(0, data.classes, shape, generator=generator)
    return torch.randn(shape, generator=generator)


# the built-in models


@pytest.mark.parametrize(
    ("name", "data", "count"),
    [
        ("linear", MNIST, 784 * 10 + 10),
        ("linear", ADULT, 14 * 2 + 2),
        ("mlp", MNIST, 784 * 64 + 64 + 64 * 10 + 10),
        ("mlp", DIGITS, 64 * 64 + 64 + 64 * 10 + 10),
        ("cnn_small", MNIST, 21_840),
        ("cnn_small", CIFAR, (75 * 10 + 10) + (250 * 20 + 20) + (500 * 50 + 50) + 510),
        ("cnn", MNIST, 1_663_370),
        ("cnn", CIFAR, (75 * 32 + 32) + 51_264 + (4096 * 512 + 512) + 5130),
        ("cnn", DIGITS, 832 + 51_264 + (256 * 512 + 512) + 5130),
        ("cnn_norm", CIFAR, (27 * 32 + 96) + (288 * 64 + 192) + (576 * 128 + 384) + 20_490),
        ("cnn_norm", DIGITS, (9 * 32 + 96) + (288 * 64 + 192) + (576 * 128 + 384) + 1290),
        ("lstm", PLAY, 80 * 8 + 1024 * (8 + 256 + 1) + 1024 * (256 + 256 + 1) + 257 * 80),
    ],
)
def test_number_of_parameters(name: str, data: Dataset, count: int) -> None:
    model = models.build(name, data, seed=0)
    assert models.flatten(model).shape == (count,)
    assert model(inputs(data, 3)).shape == (3, data.classes)


def test_the_seed_decides_the_weights_and_the_global_generator_is_untouched() -> None:
    before = torch.get_rng_state()
    first, again, other = (models.flatten(models.build("mlp", MNIST, s)) for s in (7, 7, 8))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    assert torch.equal(before, torch.get_rng_state())


SMALL = {
    "linear": ADULT,
    "mlp": DIGITS,
    "cnn_small": dataset("image", (2, 16, 18), 3),
    "cnn": DIGITS,
    "cnn_norm": dataset("image", (2, 9, 8), 3),
    "lstm": dataset("text", (4,), 5),
}


@pytest.mark.parametrize("name", models.BUILT_IN)
def test_vmap_over_parameter_vectors_is_a_loop(name: str) -> None:
    data = SMALL[name]
    model = models.build(name, data, seed=0)
    vectors = torch.from_numpy(
        np.stack([models.flatten(models.build(name, data, seed)) for seed in (1, 2, 3)])
    )
    x, y = inputs(data, 3, 2), torch.arange(6).reshape(3, 2) % data.classes

    def logits(vector: Tensor, x: Tensor) -> Tensor:
        result: Tensor = functional_call(model, models.unflatten(vector, model), (x,))
        return result

    def loss(vector: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(logits(vector, x), y)

    looped = torch.stack([logits(v, xi) for v, xi in zip(vectors, x, strict=True)])
    torch.testing.assert_close(vmap(logits)(vectors, x), looped)

    gradients = torch.stack([grad(loss)(*one) for one in zip(vectors, x, y, strict=True)])
    assert gradients.abs().sum() > 0
    torch.testing.assert_close(vmap(grad(loss))(vectors, x, y), gradients, rtol=1e-4, atol=1e-6)


def test_the_lstm_layer_computes_what_torch_does() -> None:
    ours = models.LSTMLayer(3, 5)
    theirs = nn.LSTM(3, 5, batch_first=True)
    own = dict(theirs.named_parameters())
    with torch.no_grad():
        own["weight_ih_l0"].copy_(ours.input.weight)
        own["weight_hh_l0"].copy_(ours.recurrent.weight)
        own["bias_ih_l0"].copy_(ours.input.bias)
        own["bias_hh_l0"].zero_()
    x = torch.randn(2, 7, 3, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(ours(x), theirs(x)[0])
    assert ours.input.bias.tolist() == [0] * 5 + [1] * 5 + [0] * 10  # the forget gate is second


@pytest.mark.parametrize("position", [0, -1])
def test_the_lstm_reads_its_whole_window(position: int) -> None:
    model = models.build("lstm", SMALL["lstm"], seed=0)
    window = torch.zeros(1, 4, dtype=torch.int64)
    changed = window.clone()
    changed[0, position] = 1
    assert not torch.equal(model(window), model(changed))


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("cnn_smal", MNIST, "Did you mean 'cnn_small'"),
        ("zzz", MNIST, "no model 'zzz'. Known: linear, mlp"),
        ("cnn_small", DIGITS, "at least 16x16, but those of made_up are 8x8. Use mlp"),
        ("cnn", dataset("image", (1, 8, 3), 2), "at least 4x4, but those of made_up are 8x3"),
        ("cnn", ADULT, "expected images, but made_up is tabular data. Use mlp"),
        ("cnn_small", PLAY, "expected images, but made_up is text data. Use lstm"),
        ("mlp", PLAY, "but made_up is text. Use lstm"),
        ("linear", PLAY, "but made_up is text"),
        ("lstm", MNIST, "expected text, but made_up is image data"),
    ],
)
def test_a_model_that_does_not_fit_says_so(name: str, data: Dataset, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        models.build(name, data, seed=0)


def test_lstm_refuses_ids_above_the_number_of_classes() -> None:
    data = dataset("text", (4,), 5)
    data.test.inputs[0, 0] = 5
    with pytest.raises(ModelError, match="ids must be below 5 .* has 5"):
        models.build("lstm", data, seed=0)


# the user's own model


def own_model(monkeypatch: pytest.MonkeyPatch, factory: object) -> str:
    module = ModuleType("my_model")
    module.factory = factory  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "my_model", module)
    return "my_model:factory"


def test_own_model_is_seeded_like_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    name = own_model(monkeypatch, lambda data: nn.Linear(14, data.classes))
    first, again, other = (models.flatten(models.build(name, ADULT, s)) for s in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


class Functional(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return dropout(super().forward(x), training=self.training)


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (3, "fails when called with the data set made_up: TypeError: 'int' object is not callable"),
        (lambda: None, "fails when called .* TypeError"),
        (lambda data: 1 / 0, "ZeroDivisionError"),
        (lambda data: None, "returned a NoneType, but must return an nn.Module"),
        (lambda data: nn.Linear(13, 2), r"fails on inputs of shape \(2, 14\)"),
        (lambda data: nn.Linear(14, 3), r"returned \(2, 3\) for 2 records, but must .*\(2, 2\)"),
        (lambda data: nn.LSTM(14, 2), "returned tuple for 2 records"),
        (lambda data: Functional(14, 2), "draws random numbers in forward"),
        (lambda data: nn.Sequential(nn.Linear(14, 2), nn.BatchNorm1d(2)), "BatchNorm1d at '1'"),
    ],
)
def test_own_model_that_cannot_be_used(
    monkeypatch: pytest.MonkeyPatch, factory: object, message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        models.build(own_model(monkeypatch, factory), ADULT, seed=0)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_package.net:build", "No module named 'no_such_package'.*PYTHONPATH"),
        ("math:no_such_function", "has no attribute 'no_such_function'"),
        (":build", "cannot be imported"),
    ],
)
def test_own_model_that_cannot_be_imported(name: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        models.build(name, ADULT, seed=0)


# what check refuses and what it accepts


def with_buffer(persistent: bool) -> nn.Module:
    model = nn.Linear(2, 2)
    model.register_buffer("scale", torch.ones(2), persistent=persistent)
    return model


def frozen(*which: str) -> nn.Module:
    model = nn.Linear(2, 2)
    for name in which:
        model.get_parameter(name).requires_grad = False
    return model


class Extra(nn.Linear):
    def get_extra_state(self) -> int:
        return 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.BatchNorm2d(3), "BatchNorm2d mixes .* nn.GroupNorm or nn.LayerNorm"),
        (lambda: nn.BatchNorm1d(3, track_running_stats=False), "BatchNorm1d mixes"),
        (lambda: nn.SyncBatchNorm(3), "SyncBatchNorm mixes"),
        (
            lambda: nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))),
            "at '0.1' mixes",
        ),
        (
            lambda: nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1)),
            "Dropout at '1' draws .* Remove the layer",
        ),
        (lambda: nn.Sequential(nn.Linear(2, 2), nn.Dropout2d(0.1)), "Dropout2d at '1' draws"),
        (lambda: nn.Sequential(nn.Linear(2, 2), nn.AlphaDropout(0.1)), "AlphaDropout at '1' draws"),
        (lambda: nn.Sequential(nn.Linear(2, 2), nn.RReLU()), "RReLU at '1' draws"),
        (lambda: nn.LSTM(2, 2, num_layers=2, dropout=0.1), "LSTM draws"),
        (lambda: nn.MultiheadAttention(4, 2, dropout=0.1), "MultiheadAttention draws"),
        (lambda: nn.Sequential(nn.Conv2d(1, 1, 1), nn.FractionalMaxPool2d(2, 1)), "Fractional"),
        (lambda: with_buffer(persistent=True), "state has scale .*persistent=False"),
        (lambda: nn.Sequential(with_buffer(persistent=True)), "state has 0.scale"),
        (lambda: nn.InstanceNorm1d(2, affine=True, track_running_stats=True), "state has running_mean"),
        (lambda: Extra(2, 2), "state has _extra_state"),
        (lambda: nn.Flatten(), "no trainable parameters"),
        (lambda: frozen("weight", "bias"), "no trainable parameters"),
        (lambda: nn.Linear(2, 2).double(), "'weight' is torch.float64, but must be torch.float32"),
        (lambda: nn.Linear(2, 2).to(torch.bfloat16), "'weight' is torch.bfloat16"),
        (lambda: nn.LazyLinear(2), "'weight' has no shape yet"),
    ],
)
def test_check_refuses(make: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        models.check(make())


def tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    return model


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.LayerNorm(4)),
        lambda: nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.0), nn.RReLU(0.2, 0.2)),
        lambda: nn.LSTM(2, 2, num_layers=2),
        lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0),
        lambda: nn.InstanceNorm1d(2, affine=True),
        lambda: with_buffer(persistent=False),
        lambda: frozen("weight"),
        tied,
    ],
)
def test_check_accepts(make: Callable[[], nn.Module]) -> None:
    models.check(make())


# the model as one vector


def test_unflatten_undoes_flatten_and_gives_views() -> None:
    model = models.build("mlp", ADULT, seed=0)
    vector = models.flatten(model)
    assert vector.dtype == np.float32
    parameters = models.unflatten(vector, model)
    assert list(parameters) == [name for name, _ in model.named_parameters()]
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameters[name], parameter.detach(), rtol=0, atol=0)
    vector[:] = 5
    assert all((p == 5).all() for p in parameters.values())
    assert not (model.get_parameter("1.weight") == 5).any()


def test_flatten_is_a_copy_even_of_a_single_parameter() -> None:
    model = nn.Linear(2, 2, bias=False)
    models.flatten(model)[:] = 5
    assert not (model.weight == 5).any()


def test_a_stack_of_vectors_becomes_a_stack_of_parameters() -> None:
    model = nn.Linear(3, 2)
    stack = np.arange(16, dtype=np.float32).reshape(2, 8)
    parameters = models.unflatten(stack, model)
    assert parameters["weight"].tolist()[1] == [[8, 9, 10], [11, 12, 13]]
    assert parameters["bias"].tolist() == [[6, 7], [14, 15]]


def test_read_only_vectors_are_copied() -> None:
    vector = np.ones(2, dtype=np.float32)
    vector.flags.writeable = False
    parameters = models.unflatten(vector, nn.Linear(1, 1))
    parameters["bias"] += 1
    assert vector.tolist() == [1, 1]


def test_frozen_and_tied_parameters_are_counted_once_or_not_at_all() -> None:
    assert models.flatten(frozen("weight")).shape == (2,)
    assert list(models.unflatten(np.zeros(2, dtype=np.float32), frozen("weight"))) == ["bias"]
    assert models.flatten(tied()).shape == (4 + 2 + 2,)


@pytest.mark.parametrize("vector", [np.zeros(5, dtype=np.float32), np.zeros(6)])
def test_a_vector_of_the_wrong_length_or_type_is_refused(vector: np.ndarray) -> None:
    with pytest.raises(ModelError, match=rf"6 torch.float32 numbers, but found .*{vector.dtype}"):
        models.unflatten(vector, nn.Linear(2, 2))
