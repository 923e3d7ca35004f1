"""Data sets by name: arrays ready for a model, number of classes, owners of records."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from discretion import outside
from discretion.errors import DataError, nearest
from discretion.tasks import fetch, readers
from discretion.tasks.catalogue import FACTS, Kind
from discretion.tasks.fetch import RECIPES, Progress, Report
from discretion.tasks.readers import Bytes, Floats, Ints


@dataclass(frozen=True)
class Split:
    inputs: Bytes | Floats  # (n, C, H, W) uint8 images, (n, F) float32 features, (n, L) uint8 text
    labels: Ints  # (n,)


@dataclass(frozen=True)
class Dataset:
    name: str
    train: Split
    test: Split
    classes: int
    kind: Kind
    source: str  # where the bytes came from
    mean: float = 0.0  # images are given to a model as (x / 255 - mean) / std
    std: float = 1.0
    owner: Ints | None = None  # (n,) the natural owner of each training record
    owners: tuple[str, ...] = ()  # their names


def load(
    name: str,
    *,
    path: Path | None = None,
    offline: bool = False,
    report: Report | None = None,
    progress: Progress | None = None,
) -> Dataset:
    """Return a data set by name, from the cache if it is there; `path` is a person's own table (csv).

    `package.module:function` is imported and called; the function takes nothing and returns a Dataset.
    """
    if outside.is_outside(name) and path is None:
        return _from_outside(name)
    if name not in FACTS:
        raise DataError(
            f"{name!r} is no data set.{nearest(name, FACTS)} There are: {', '.join(FACTS)}, and your own "
            "as package.module:function."
        )
    if name == "csv":
        if path is None:
            raise DataError("csv: needs the path of your table.")
        return _own_table(path)
    if path is not None:
        raise DataError(
            f"{name}: takes no path; its files belong into {fetch.cache_folder() / name}. "
            "A table of your own is the data set csv."
        )
    if name not in RECIPES:
        return _from_scikit_learn(name)
    folder, source = fetch.ensure(RECIPES[name], offline=offline, report=report, progress=progress)
    return _FETCHED[name](folder, source)


def _from_outside(name: str) -> Dataset:
    """Return the data set that a person's own function makes, under the function's name."""
    try:
        found = outside.load(name, DataError)()
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"Data set {name!r} fails when called: {type(error).__name__}: {error}") from error
    if not isinstance(found, Dataset):
        raise DataError(f"Data set {name!r} returned a {type(found).__name__}; expected a Dataset")
    for part, split in (("train", found.train), ("test", found.test)):
        labels = split.labels
        whole = labels.dtype == np.int64 and bool(((labels >= 0) & (labels < found.classes)).all())
        if len(labels) != len(split.inputs) or not len(labels) or not whole:
            raise DataError(
                f"Data set {name!r}: {part} has {len(split.inputs)} inputs and {len(labels)} labels of type "
                f"{labels.dtype}; expected an int64 label from 0 to {found.classes - 1} for each input"
            )
    return replace(found, name=name)


def _dataset(name: str, splits: tuple[Split, Split], classes: int, source: str) -> Dataset:
    """Return a data set of the catalogue from its training and test split."""
    facts = FACTS[name]
    mean, std = facts.get("mean", 0.0), facts.get("std", 1.0)
    return Dataset(name, *splits, classes, facts["kind"], source, mean, std)


def _idx_images(folder: Path, source: str) -> Dataset:
    def split(part: str) -> Split:
        images = readers.read_idx(folder / f"{part}-images-idx3-ubyte")
        labels = readers.read_idx(folder / f"{part}-labels-idx1-ubyte")
        return Split(images[:, None], labels.astype(np.int64))

    return _dataset(folder.name, (split("train"), split("t10k")), 10, source)


def _cifar(folder: Path, source: str) -> Dataset:
    batches = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
    *train, test = (Split(*readers.read_cifar_batch(folder / f"{batch}.bin")) for batch in batches)
    return _dataset("cifar-10", (_joined(train), test), 10, source)


def _joined(splits: Sequence[Split]) -> Split:
    return Split(
        np.concatenate([split.inputs for split in splits]), np.concatenate([split.labels for split in splits])
    )


def _adult(folder: Path, source: str) -> Dataset:
    train, test = (Split(*readers.read_adult(folder / f"adult.{part}")) for part in ("data", "test"))
    return _dataset("adult", (train, test), 2, source)


# LEAF's alphabet; a character that is not in it is left out.
ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
WINDOW = 80  # characters that a model sees
STRIDE = 8  # LEAF has a window at each character: eight times the records of the same text


def _shakespeare(folder: Path, source: str) -> Dataset:
    """Make windows of 80 characters, labelled by the next one; the last fifth of each role is for testing."""
    code = np.full(128, 255, np.uint8)
    code[np.frombuffer(ALPHABET.encode(), np.uint8)] = np.arange(len(ALPHABET))
    roles: list[tuple[str, Split, Split]] = []
    for role, words in readers.read_plays(folder / "plays.txt").items():
        text = code[np.frombuffer(words.encode(), np.uint8)]
        text = text[text != 255]
        starts = np.arange(0, text.size - WINDOW, STRIDE)
        if starts.size < 2:
            continue
        cut = max(1, starts.size * 4 // 5)
        # A test window may not overlap the characters that training has seen, labels included.
        unseen = starts[starts > starts[cut - 1] + WINDOW]
        windows = np.lib.stride_tricks.sliding_window_view(text, WINDOW)
        train, test = (
            Split(windows[at], text[at + WINDOW].astype(np.int64)) for at in (starts[:cut], unseen)
        )
        roles.append((role, train, test))
    owners, trains, tests = zip(*roles, strict=True)
    data = _dataset("shakespeare", (_joined(trains), _joined(tests)), len(ALPHABET), source)
    owner = np.repeat(np.arange(len(owners)), [len(train.labels) for train in trains])
    return replace(data, owner=owner, owners=owners)


def _from_scikit_learn(name: str) -> Dataset:
    try:
        from sklearn import datasets
    except ImportError:
        raise DataError(
            "digits and breast-cancer come with scikit-learn, which is not installed: "
            "pip install 'discretion[torch]'"
        ) from None
    features, labels = getattr(datasets, f"load_{name.replace('-', '_')}")(return_X_y=True)
    features, labels = features.astype(np.float32), labels.astype(np.int64)
    if name == "digits":  # 0..16 in the file; 0..255 like every other image here
        inputs = np.rint(features * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)
    else:
        inputs = features / np.array(FACTS[name]["scales"], np.float32).ravel()
    splits = _split(inputs, labels, _test_fifth(len(labels), None))
    return _dataset(name, splits, len(np.unique(labels)), "embedded in scikit-learn")


def _own_table(path: Path) -> Dataset:
    """Read the user's table; features are used as they are, so scale them by public constants before."""
    table = readers.read_table(path)
    found, labels = _numbered(table.labels)
    if len(found) < 2:
        raise DataError(f"{path}: found labels {', '.join(found)}; expected at least two different ones")
    values = _values(found)
    if len(set(values)) < len(values):
        raise DataError(f"{path}: found one number as two labels, such as 1 and 1.0; expected one spelling")
    owners, owner = ((), None) if table.clients is None else _numbered(table.clients)
    is_test = _test_fifth(len(labels), owner)
    if not is_test.any():
        raise DataError(
            f"{path}: {len(labels)} records, too few for a test set; expected at least 5 and, "
            "with a column `client`, more than one for some client"
        )
    source = f"your table {path.name}, labels {', '.join(found[:20])} as 0, 1, ..."
    data = _dataset("csv", _split(table.features, labels, is_test), len(found), source)
    return replace(data, owner=None if owner is None else owner[~is_test], owners=owners)


def _numbered(cells: Sequence[str]) -> tuple[tuple[str, ...], Ints]:
    """Return the distinct cells, in numeric order if all are numbers, and (n,) the number of each cell."""
    words = sorted(set(cells))
    order = np.argsort(_values(words) or range(len(words)), kind="stable")
    words = [words[i] for i in order]
    number = {word: i for i, word in enumerate(words)}
    return tuple(words), np.array([number[cell] for cell in cells], np.int64)


def _values(words: Sequence[str]) -> list[float]:
    """Return the numbers that words mean; empty unless all of them are finite numbers."""
    try:
        values = [float(word) for word in words]
    except ValueError:
        return []
    return values if np.isfinite(values).all() else []


def _test_fifth(count: int, owner: Ints | None) -> npt.NDArray[np.bool_]:
    """Return the (n,) mask of the test records: a fixed fifth that leaves each owner at least one record."""
    order = np.random.default_rng(0).permutation(count)
    if owner is not None:
        first = np.unique(owner[order], return_index=True)[1]
        order = np.delete(order, first)
    is_test = np.zeros(count, np.bool_)
    is_test[order[: count // 5]] = True
    return is_test


def _split(inputs: Bytes | Floats, labels: Ints, is_test: npt.NDArray[np.bool_]) -> tuple[Split, Split]:
    return Split(inputs[~is_test], labels[~is_test]), Split(inputs[is_test], labels[is_test])


_FETCHED = {
    "fashion-mnist": _idx_images,
    "mnist": _idx_images,
    "adult": _adult,
    "cifar-10": _cifar,
    "shakespeare": _shakespeare,
}
