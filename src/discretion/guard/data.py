"""The client's own records, loaded from where its policy says."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from discretion.errors import DataError
from discretion.guard.policy import Data
from discretion.tasks import datasets, own_table
from discretion.tasks.datasets import Dataset, Split
from discretion.tasks.own_table import TableForm
from discretion.tasks.partitions import Partition


def own_records(data: Data) -> Dataset:
    """Load the client's records, with no test split; labels of a table are numbered as in `data.labels`."""
    if data.name == "csv":
        return _own_table(data)
    dataset = datasets.load(data.name)
    train = dataset.train
    if data.records:
        numbers = _record_numbers(Path(data.records), len(train.labels))
        train = Split(train.inputs[numbers], train.labels[numbers])
    nothing = Split(train.inputs[:0], train.labels[:0])
    return replace(dataset, train=train, test=nothing, owner=None, owners=())


def _own_table(data: Data) -> Dataset:
    path, form = Path(data.path), TableForm(encoding=data.encoding, decimal=data.decimal)
    table = own_table.scaled(own_table.read_table(path, form), path, data.scales)
    if data.features:
        table = own_table.ordered(table, path, data.features, "data.features in GUARD.toml")
    labels = own_table.label_numbers(table, path, data.labels)
    train, nothing = Split(table.features, labels), Split(table.features[:0], labels[:0])
    own = Dataset("csv", train, nothing, len(data.labels), "tabular", f"the client's table {path}")
    return replace(own, label_names=data.labels, feature_names=table.names, feature_scales=table.scales)


def _record_numbers(path: Path, records: int) -> np.ndarray:
    try:
        numbers = np.array([int(line) for line in path.read_text(encoding="ascii").split()], np.int64)
    except (OSError, ValueError) as problem:
        raise DataError(f"{path}: expected record numbers, one in each line: {problem}") from None
    if len(numbers) == 0 or numbers.min() < 0 or numbers.max() >= records or len(set(numbers)) < len(numbers):
        raise DataError(f"{path}: expected distinct record numbers from 0 to {records - 1}, at least one")
    return numbers


def held_by(client: int, clients: int, records: int) -> Partition:
    """Return a partition over `clients` clients that gives all records to `client`."""
    start = np.zeros(clients + 1, dtype=np.int64)
    start[client + 1 :] = records
    return Partition(np.arange(records), start)
