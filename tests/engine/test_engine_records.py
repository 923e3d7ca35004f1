"""Sums of clipped gradients: as from each record's own gradient, and never moved by more than the clip."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from discretion.engine.per_record_graph import trace_per_record
from discretion.engine.record_sums import RecordSums
from discretion.errors import PlanError
from discretion.tasks import models
from discretion.tasks.catalogue import Kind
from discretion.tasks.datasets import Dataset, Split


def conv_relu_pool(
    channels: int, out: int, kernel: int, *, pool: tuple[int, int], padding: int, stride: int = 1
) -> list[nn.Module]:
    convolution = nn.Conv2d(channels, out, kernel, stride=stride, padding=padding)
    return [convolution, nn.ReLU(), nn.MaxPool2d(*pool)]


def workload_b() -> nn.Module:
    first, second = (conv_relu_pool(*s, 5, pool=(2, 2), padding=2) for s in ((1, 16), (16, 32)))
    dense = (nn.Linear(1568, 512), nn.ReLU(), nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, 10))
    return nn.Sequential(*first, *second, nn.Flatten(), *dense)


def tutorial() -> nn.Module:
    """The CNN of TF-privacy's MNIST tutorial."""
    first = conv_relu_pool(1, 16, 8, pool=(2, 1), padding=3, stride=2)
    second = conv_relu_pool(16, 32, 4, pool=(2, 1), padding=0, stride=2)
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, 10))


class Residual(nn.Module):
    """As users write them: functions, a layer that is used twice, a frozen one, and one in place."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.GroupNorm(2, 4)
        self.twice = nn.Conv2d(4, 4, 3, padding=2, dilation=2, bias=False)
        self.act = nn.ReLU(inplace=True)
        self.frozen = nn.Linear(196, 12)
        self.frozen.requires_grad_(False)
        self.layer_norm = nn.LayerNorm(12)
        self.again = nn.Linear(12, 12)
        self.out = nn.Linear(12, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.norm(self.first(x)))
        x = x + torch.tanh(self.twice(x))
        x = functional.avg_pool2d(self.twice(x), 4)
        x = x.view(x.size(0), -1)
        x = self.layer_norm(self.frozen(x))
        x = self.again(functional.relu(self.again(x)))
        result: Tensor = self.out(x.reshape(x.shape[0], 12)[:, :])
        return result


def split(kind: Kind, count: int, seed: int = 0) -> Dataset:
    rng = np.random.default_rng(seed)
    inputs: dict[Kind, Callable[[], np.ndarray]] = {
        "image": lambda: rng.standard_normal((count, 1, 28, 28)).astype(np.float32),
        "tabular": lambda: rng.standard_normal((count, 20)).astype(np.float32),
        "text": lambda: rng.integers(0, 10, (count, 7)),
    }
    part = Split(inputs[kind](), rng.integers(0, 10, count))
    return Dataset("made", part, part, 10, kind, "made")


MODELS: dict[str, tuple[Kind, Callable[[], nn.Module] | None]] = {
    "linear": ("image", None),
    "mlp": ("tabular", None),
    "cnn_small": ("image", None),
    "cnn": ("image", None),
    "lstm": ("text", None),
    "workload B": ("image", workload_b),
    "tutorial": ("image", tutorial),
    "residual": ("image", Residual),
}


def made(name: str, count: int = 9) -> tuple[nn.Module, Tensor, Tensor]:
    kind, factory = MODELS[name]
    data = split(kind, count)
    torch.manual_seed(3)
    model = models.build(name, data, 0) if factory is None else factory()
    return model, torch.from_numpy(data.train.inputs), torch.from_numpy(data.train.labels)


def exact(model: nn.Module, inputs: Tensor, labels: Tensor) -> np.ndarray:
    """(n, d) by torch's own backward in float64, a record at a time."""
    twin = model.double()
    trained = [p for p in twin.parameters() if p.requires_grad]
    rows = []
    for record, label in zip(inputs, labels, strict=True):
        record = record.double() if record.is_floating_point() else record
        loss = functional.cross_entropy(twin(record[None]), label[None])
        rows.append(torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, trained)]).numpy())
    model.float()
    return np.array(rows)


def clipped(rows: np.ndarray, clip: float, lengths: tuple[int, ...]) -> np.ndarray:
    parts = np.split(rows, np.cumsum(lengths)[:-1], axis=1) if lengths else [rows]
    bound = clip / np.sqrt(len(parts))
    norms = [np.maximum(np.linalg.norm(part, axis=1, keepdims=True), 1e-300) for part in parts]
    return np.concatenate([p * np.minimum(1, bound / n) for p, n in zip(parts, norms, strict=True)], axis=1)


def each_length(model: nn.Module) -> tuple[int, ...]:
    return tuple(p.numel() for p in model.parameters() if p.requires_grad)


@pytest.mark.parametrize("name", MODELS)
def test_sums_are_those_of_each_record_s_own_gradient(name: str) -> None:
    model, inputs, labels = made(name)
    start, rows, records = models.flatten(model), exact(model, inputs, labels), RecordSums(model)
    lengths = each_length(model)
    two = (sum(lengths[:1]), sum(lengths[1:]))  # the first tensor, and all others together
    middle = float(np.median(np.linalg.norm(rows, axis=1)))
    for clip in (np.inf, middle, middle / 100):
        for layers in ((), lengths, two):
            found = records.clipped_sum(start, inputs, labels, clip, layers)
            expected = clipped(rows, clip, layers).sum(0)
            assert np.linalg.norm(found - expected) < 3e-5 * np.linalg.norm(expected)
    assert records._fast is not None and found.dtype == np.float64
    np.testing.assert_array_equal(models.flatten(model), start)


@pytest.mark.parametrize("name", ["cnn_small", "lstm", "residual"])
def test_how_many_records_are_taken_at_a_time_does_not_matter(name: str) -> None:
    model, inputs, labels = made(name)
    start, records = models.flatten(model), RecordSums(model)
    whole = records.clipped_sum(start, inputs, labels, 0.3, ())
    assert records._fast is not None
    for together in (1, 4):
        records._fast._together = together
        np.testing.assert_allclose(records.clipped_sum(start, inputs, labels, 0.3, ()), whole, atol=1e-6)


def test_layers_that_end_within_a_tensor_are_clipped_too() -> None:
    model, inputs, labels = made("mlp")
    start, rows, records = models.flatten(model), exact(model, inputs, labels), RecordSums(model)
    layers = (100, len(start) - 100)
    found = records.clipped_sum(start, inputs, labels, 0.2, layers)
    np.testing.assert_allclose(found, clipped(rows, 0.2, layers).sum(0), atol=1e-6)
    with pytest.raises(PlanError, match="layers have 7 parameters"):
        records.clipped_sum(start, inputs, labels, 0.2, (3, 4))


def test_where_torch_may_round_more_nothing_is_summed_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs, labels = made("mlp")
    start, records = models.flatten(model), RecordSums(model)
    monkeypatch.setattr(records._fast, "clipped_sum", None)
    torch.set_float32_matmul_precision("medium")
    try:
        assert np.linalg.norm(records.clipped_sum(start, inputs[:1], labels[:1], 0.1, ())) <= 0.1
    finally:
        torch.set_float32_matmul_precision("highest")


def random_stack(rng: np.random.Generator) -> tuple[nn.Module, tuple[int, ...]]:
    """Convolutions of any shape, normalisations, activations, dense layers."""
    channels, side = int(rng.integers(1, 4)), int(rng.integers(7, 12))
    shape, parts = (channels, side, side + 1), list[nn.Module]()
    for _ in range(rng.integers(0, 3)):
        out, kernel = int(rng.integers(1, 5)), (int(rng.integers(1, 4)), int(rng.integers(1, 4)))
        stride, padding, dilation = (int(x) for x in rng.integers((1, 0, 1), (3, 2, 3)))
        parts.append(nn.Conv2d(channels, out, kernel, stride, padding, dilation, bias=bool(rng.integers(2))))
        parts += [nn.GroupNorm(1, out)] if rng.integers(2) else []
        parts.append([nn.ReLU(), nn.Tanh(), nn.ELU(), nn.MaxPool2d(2, 1, 1)][rng.integers(4)])
        channels = out
        if min(nn.Sequential(*parts)(torch.zeros(1, *shape)).shape[2:]) < 5:
            break
    parts.append(nn.Flatten())
    width = nn.Sequential(*parts)(torch.zeros(1, *shape)).shape[1]
    for _ in range(rng.integers(0, 3)):
        hidden = int(rng.integers(1, 9))
        parts += [nn.Linear(width, hidden, bias=bool(rng.integers(2))), nn.Sigmoid()]
        parts += [nn.LayerNorm(hidden)] if hidden > 1 and rng.integers(2) else []
        width = hidden
    return nn.Sequential(*parts, nn.Linear(width, 4)), shape


def test_random_models_have_the_sums_of_their_exact_gradients() -> None:
    rng = np.random.default_rng(0)
    for seed in range(60):
        torch.manual_seed(seed)
        model, shape = random_stack(rng)
        inputs, labels = torch.randn(6, *shape), torch.randint(0, 4, (6,))
        start, rows, records = models.flatten(model), exact(model, inputs, labels), RecordSums(model)
        for layers in ((), each_length(model)):
            clip = float(np.median(np.linalg.norm(rows, axis=1)))
            found = records.clipped_sum(start, inputs, labels, clip, layers)
            expected = clipped(rows, clip, layers).sum(0)
            assert np.linalg.norm(found - expected) < 1e-4 * np.linalg.norm(expected), (seed, model)
        assert records._fast is not None


def both_ways(model: nn.Module) -> list[RecordSums]:
    """By the inputs and slopes of layers, and by each record's own gradient."""
    short, long = RecordSums(model), RecordSums(model)
    assert short._fast is not None
    long._fast = None
    return [short, long]


def test_a_record_alone_is_never_longer_than_the_clip_whatever_its_size() -> None:
    """Inputs and weights from 1e-30 to 1e38, clips from 1e-38 to 1e30: not even by a rounding."""
    rng, longest = np.random.default_rng(1), 0
    for seed in range(150):
        torch.manual_seed(seed)
        model, shape = random_stack(rng) if seed % 2 else (nn.Sequential(nn.Linear(5, 4)), (5,))
        start = models.flatten(model) * np.float32(10.0 ** rng.uniform(-3, 3))
        inputs = torch.randn(1, *shape) * 10.0 ** rng.uniform(-30, 38)
        clip, lengths = float(10.0 ** rng.uniform(-38, 30)), each_length(model)
        for records in both_ways(model):
            for layers in ((), lengths):
                found = records.clipped_sum(start, inputs, torch.zeros(1, dtype=torch.int64), clip, layers)
                assert np.isfinite(found).all()
                assert np.linalg.norm(found) <= clip
                longest += bool(np.linalg.norm(found) > 0.9999 * clip)
                for part in np.split(found, np.cumsum(layers)[:-1]) if layers else []:
                    assert np.linalg.norm(part) <= clip / np.sqrt(len(layers))
    assert longest > 100  # the clip is reached


def test_what_float32_cannot_shorten_counts_as_zero() -> None:
    """Small slopes times a small factor would lose their digits, and large inputs show it."""
    model = nn.Sequential(nn.Linear(4, 3))
    start, labels = models.flatten(model) * np.float32(0), torch.tensor([0])
    start[12] = 14.0  # a good guess: slopes are about 1e-6
    kept = 0
    for size in (1e25, 1e30, 1e36):
        for clip in 10.0 ** np.arange(-12, 0, 0.25):
            for records in both_ways(model):
                found = records.clipped_sum(start, torch.full((1, 4), size), labels, float(clip), ())
                assert np.linalg.norm(found) <= clip
                kept += bool(found.any())
    assert 100 < kept < 280  # of 288


@pytest.mark.parametrize("name", ["mlp", "cnn_small", "lstm", "residual"])
def test_one_record_more_or_less_moves_the_sum_by_at_most_the_clip(name: str) -> None:
    model, inputs, labels = made(name, 12)
    if inputs.is_floating_point():
        inputs *= 10 ** torch.linspace(-3, 3, 12).view(-1, *[1] * (inputs.dim() - 1))
    start, lengths, clip = models.flatten(model), each_length(model), 0.05
    for records in both_ways(model):
        for layers in ((), lengths):
            whole, long = records.clipped_sum(start, inputs, labels, clip, layers), 0
            for gone in range(1, 12, 3):
                rest = torch.arange(12) != gone
                moved = whole - records.clipped_sum(start, inputs[rest], labels[rest], clip, layers)
                assert np.linalg.norm(moved) <= clip + 1e-6  # the sum is float32: its rounding is of all
                long += bool(np.linalg.norm(moved) > 0.99 * clip)
                for part in np.split(moved, np.cumsum(layers)[:-1]) if layers else []:
                    assert np.linalg.norm(part) <= clip / np.sqrt(len(layers)) + 1e-6
            assert long > 1 or layers


@pytest.mark.parametrize("name", ["linear", "cnn_small", "tutorial", "residual"])
def test_records_that_are_not_finite_count_as_zero_and_spoil_no_other(name: str) -> None:
    model, inputs, labels = made(name)
    start, good = models.flatten(model), torch.ones(9, dtype=torch.bool)
    for place, value in ((1, np.nan), (4, np.inf), (5, -np.inf)):
        inputs[place, ..., 3:5], good[place] = value, False
    for records in both_ways(model):
        for layers in ((), each_length(model)):
            found = records.clipped_sum(start, inputs, labels, 0.5, layers)
            expected = records.clipped_sum(start, inputs[good], labels[good], 0.5, layers)
            assert np.isfinite(found).all() and expected.any()
            np.testing.assert_allclose(found, expected, atol=1e-6)
    start[:] = np.nan
    for records in both_ways(model):
        assert not records.clipped_sum(start, inputs, labels, 0.5, ()).any()


@pytest.mark.parametrize("name", ["mlp", "cnn_small", "lstm"])
def test_an_empty_batch_has_the_sum_zero(name: str) -> None:
    model, inputs, labels = made(name)
    for records in both_ways(model):
        found = records.clipped_sum(models.flatten(model), inputs[:0], labels[:0], 1.0, ())
        assert found.shape == (sum(each_length(model)),) and not found.any()


def _centred(layer: nn.Linear, x: Tensor) -> Tensor:
    return functional.linear(x - x.mean(0), layer.weight, layer.bias)


class Unknown(nn.Module):
    """A dense layer and something that nothing is known about, or that is known to mix records."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.inner = nn.Linear(20, 10)
        self.scale = nn.Parameter(torch.ones(10)) if how == "a parameter of its own" else None
        if how == "one parameter in two layers":
            self.other = nn.Linear(20, 10)
            self.other.weight = self.inner.weight
        if how == "a hook":
            self.inner.register_forward_hook(lambda layer, taken, given: given - given.mean(0))
        if how == "a layer with a forward of its own":
            self.inner.forward = _centred.__get__(self.inner)  # type: ignore[method-assign]

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.inner(x)
        match self.how:
            case "a parameter of its own":
                assert self.scale is not None
                return y * self.scale
            case "the weights themselves":
                return y + functional.linear(x, self.inner.weight)
            case "one parameter in two layers":
                y = y + self.other(x)
            case "the mean of the batch":
                return y - y.mean(0)
            case "a look at the numbers":
                return y if float(y.detach().sum()) < 1e9 else -y
            case "another order":
                return y.view(-1, 2, 5).flip(0).view(-1, 10)
            case "a neighbour":
                return y[-1:] + 0 * y
            case "a layer across":
                y = self.inner(y.new_zeros(20, 20))[: len(y)] * 0 + y
        return y


@pytest.mark.parametrize(
    "how",
    [
        *("a parameter of its own", "the weights themselves", "one parameter in two layers", "a hook"),
        *("the mean of the batch", "a look at the numbers", "another order", "a neighbour", "a layer across"),
        "a layer with a forward of its own",
    ],
)
def test_models_of_unknown_parts_go_the_long_way(how: str) -> None:
    torch.manual_seed(0)
    model, inputs, labels = Unknown(how), torch.randn(6, 20), torch.randint(0, 10, (6,))
    assert trace_per_record(model) is None
    start, rows = models.flatten(model), exact(model, inputs, labels)
    found = RecordSums(model).clipped_sum(start, inputs, labels, 0.5, ())
    np.testing.assert_allclose(found, clipped(rows, 0.5, ()).sum(0), atol=1e-6)


class Mixing(nn.Module):
    """Of known parts, but what is added or laid out anew may be of several records."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.inner = nn.Linear(20, 10)
        self.last = nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.inner(x)
        return self.last(y.view(-1, 5)).view(-1, 10) if self.how == "halves" else y + y[:, 0]


@pytest.mark.parametrize("how", ["halves", "broadcast"])
def test_models_that_turn_out_to_mix_records_go_the_long_way(how: str) -> None:
    torch.manual_seed(0)
    model = Mixing(how)
    model.last.requires_grad_(how == "halves")
    inputs, labels = torch.randn(10, 20), torch.randint(0, 10, (10,))
    records = RecordSums(model)
    assert records._fast is not None  # its parts are known
    rows = exact(model, inputs, labels)
    found = records.clipped_sum(models.flatten(model), inputs, labels, 0.5, ())
    np.testing.assert_allclose(found, clipped(rows, 0.5, ()).sum(0), atol=1e-6)
    assert records._fast is None


def test_layers_with_special_rules_are_not_taken_for_known() -> None:
    for layer in (
        nn.Conv2d(2, 4, 3, groups=2),
        nn.Conv2d(2, 4, 3, padding_mode="circular", padding=1),
        nn.Conv2d(2, 4, 3, padding="same"),
        nn.Embedding(4, 3, padding_idx=0),
        nn.Embedding(4, 3, max_norm=1.0),
        nn.Flatten(0),
        nn.Softmax(0),
        nn.Bilinear(3, 3, 2),
    ):
        assert trace_per_record(nn.Sequential(layer, nn.Linear(4, 3))) is None
    assert trace_per_record(nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(4, 3))) is not None


def test_the_user_s_model_is_left_as_it_is() -> None:
    model, inputs, labels = made("residual")
    start = models.flatten(model)
    RecordSums(model).clipped_sum(start * np.float32(2), inputs, labels, 0.5, ())
    np.testing.assert_array_equal(models.flatten(model), start)
    assert all(p.requires_grad != name.startswith("frozen") for name, p in model.named_parameters())
    assert (
        isinstance(model.act, nn.ReLU)
        and model.act.inplace
        and not any(layer._forward_hooks for layer in model.modules())
    )
