"""Data sets by name: arrays ready for a model, number of classes, owners of records."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from discretion import outside
from discretion.errors import DataError, nearest
from discretion.tasks import fetch, own_table, readers
from discretion.tasks.catalogue import FACTS, Kind
from discretion.tasks.fetch import RECIPES, Progress, Report
from discretion.tasks.own_table import Table, TableForm
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
    test_owner: Ints | None = (
        None  # (m,) the owner of each test record, where owners kept them out of training
    )
    label_names: tuple[str, ...] = ()  # (classes,) labels of a table, in the order of their numbers
    feature_names: tuple[str, ...] = ()  # (F,) columns of a table
    feature_scales: tuple[float, ...] = ()  # (F,) public numbers that these were divided by; empty: by none


HOLD_OUT = 0.2  # share of a table's records that is kept for testing, where no file of test records is given


@dataclass(frozen=True)
class OwnTables:
    """A user's own records."""

    train: Path | None  # None: clients elsewhere have them
    test: Path | None = None  # None: a share of the records is kept out of training
    hold_out: float = HOLD_OUT
    form: TableForm = TableForm()
    labels: tuple[str, ...] = ()  # all labels in the order of their numbers; empty: those found, sorted
    scales: Mapping[str, float] = field(default_factory=dict)  # public numbers by which columns are divided


def load(
    name: str,
    *,
    own: OwnTables | None = None,
    offline: bool = False,
    report: Report | None = None,
    progress: Progress | None = None,
) -> Dataset:
    """Return a data set by name, from the cache if it is there; `own` has a person's own tables (csv).

    `package.module:function` is imported and called; the function takes nothing and returns a Dataset.
    """
    if outside.is_outside(name) and own is None:
        return _from_outside(name)
    if name not in FACTS:
        raise DataError(
            f"{name!r} is no data set.{nearest(name, FACTS)} There are: {', '.join(FACTS)}, and your own "
            "as package.module:function."
        )
    if name == "csv":
        if own is None:
            raise DataError("csv: needs the path of your table.")
        return _own_tables(own)
    if own is not None:
        raise DataError(
            f"{name}: takes no path, test records, labels or scales; its files belong into "
            f"{fetch.cache_folder() / name}. A table of your own is the data set csv."
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


def _heart(folder: Path, source: str) -> Dataset:
    """Return the records of four hospitals, which own them; a fixed fifth of all is for testing."""
    inputs, labels, owner = readers.read_heart(folder / "heart-disease.csv")
    is_test = _test_fifth(len(labels), owner)
    data = _dataset("heart-disease", _split(inputs, labels, is_test), 2, source)
    return replace(data, owner=owner[~is_test], owners=tuple(readers.HOSPITALS))


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


def _own_tables(own: OwnTables) -> Dataset:
    """Read the user's tables; features are used as they are, or divided by public constants."""
    owned = own.form.client != own_table.USUAL.client
    train = _scaled(own, own.train, owned) if own.train else None
    test = _scaled(own, own.test) if own.test else None
    table, path = (test, own.test) if train is None else (train, own.train)
    if table is None or path is None:
        raise DataError("csv: needs the path of your table, or of test records for clients behind guards.")
    names, labels = _labelled(table, path, own.labels)
    source = f"your table {path.name}, labels {', '.join(names[:20])} as 0, 1, ..."
    whole = Split(table.features, labels)
    nothing = Split(table.features[:0], labels[:0])
    if train is None:
        data = _dataset("csv", (nothing, whole), len(names), source)
    elif test is None or own.test is None:
        data = _holding_out(train, labels, len(names), own.hold_out, source, path)
    else:
        owners, owner = _owned(train)
        splits = whole, _same_columns(test, own.test, train, names, bool(own.labels))
        data = replace(_dataset("csv", splits, len(names), source), owner=owner, owners=owners)
    return replace(data, label_names=names, feature_names=table.names, feature_scales=table.scales)


def _scaled(own: OwnTables, path: Path, owned: bool = False) -> Table:
    return own_table.scaled(own_table.read_table(path, own.form, owned), path, own.scales)


def _labelled(table: Table, path: Path, declared: tuple[str, ...]) -> tuple[tuple[str, ...], Ints]:
    """Return the labels in order, declared or those of the table, and (n,) the number of each record's."""
    names = declared or _numbered(table.labels)[0]
    if len(names) < 2:
        raise DataError(f"{path}: found labels {', '.join(names)}; expected at least two different ones")
    spelt = {" ".join(name.casefold().split()): name for name in names}
    if alike := [name for name in names if name not in spelt.values()] if not declared else []:
        other = spelt[" ".join(alike[0].casefold().split())]
        raise DataError(
            f"{path}: found labels {alike[0]!r} and {other!r}, which differ only in case or spaces; "
            "expected one spelling of each. If both are meant, list them in data.labels"
        )
    values = _values(names)
    if len(set(values)) < len(values):
        raise DataError(f"{path}: found one number as two labels, such as 1 and 1.0; expected one spelling")
    return names, own_table.label_numbers(table, path, names)


def _owned(table: Table) -> tuple[tuple[str, ...], Ints | None]:
    """Return the owners' names and (n,) the owner of each record; none without a column of clients."""
    return ((), None) if table.clients is None else _numbered(table.clients)


def _holding_out(table: Table, labels: Ints, classes: int, share: float, source: str, path: Path) -> Dataset:
    """Keep a share of each owner's records, or of all where there are no owners, out of training."""
    owners, owner = _owned(table)
    is_test = _held_out(np.zeros_like(labels) if owner is None else owner, share)
    if not is_test.any():
        raise DataError(
            f"{path}: {len(labels)} records, too few for a test set: a share of {share:g} of each client's "
            "records, with one left for training, is none. Give a file of test records (data.test), or a "
            "larger data.hold_out"
        )
    data = _dataset("csv", _split(table.features, labels, is_test), classes, source)
    if owner is None:
        return data
    return replace(data, owner=owner[~is_test], owners=owners, test_owner=owner[is_test])


def _held_out(owner: Ints, share: float) -> npt.NDArray[np.bool_]:
    """Return the (n,) mask of the test records: of each owner a fixed share, to the nearest whole record.

    At least one record of each owner stays for training. Which records of an owner are held out depends on
    its own records only: alone, it would hold out the same ones.
    """
    is_test = np.zeros(len(owner), np.bool_)
    ends = np.cumsum(np.bincount(owner))
    for mine in np.split(np.argsort(owner, kind="stable"), ends[:-1]):
        order = np.random.default_rng(0).permutation(len(mine))
        count = min(int(len(mine) * share + 0.5), len(mine) - 1)
        is_test[mine[order[:count]]] = True
    return is_test


def training_sizes(path: Path, share: float, form: TableForm, how: str = "a TableForm") -> dict[str, int]:
    """Return the number of training records of each client in a table, where this share is held out.

    The table is checked as it is for a run, except that public scales and labels are not known. `how` says
    how columns with other names are named.
    """
    table = own_table.read_table(path, form, owned=True, how=how)
    _labelled(table, path, ())
    owners, owner = _numbered(table.clients or ())
    counts = np.bincount(owner[~_held_out(owner, share)])
    return dict(zip(owners, counts.tolist(), strict=True))


def _same_columns(test: Table, path: Path, train: Table, names: tuple[str, ...], declared: bool) -> Split:
    """Return test records with the features and labels of the training table, by their names."""
    lacking = "data.labels does not list" if declared else "no training record has"
    features = own_table.ordered(test, path, train.names, "the training table").features
    labels = own_table.label_numbers(test, path, names, lacking)
    if not len(labels):
        raise DataError(f"{path}: found no test record, expected at least one")
    return Split(features, labels)


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
    "heart-disease": _heart,
}
