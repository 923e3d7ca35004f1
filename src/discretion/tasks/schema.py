"""Schema of a data set: what its labels and features mean, which server and clients must agree on."""

import hashlib
from collections.abc import Iterator
from typing import Annotated, NamedTuple

from pydantic import Field

from discretion.jsonfile import Record, dump
from discretion.tasks.catalogue import FACTS
from discretion.tasks.datasets import Dataset

WORDS = ("about", "by_hand", "licence", "sources", "download")  # of a catalogue entry, that decide no record
MOST_NAMES = 10  # in one sentence
AGREE = "data.{} must be the same, in the same order, in config.toml and every GUARD.toml"


class Schema(Record):
    """What records mean: names in order, or where there are none, the data set and its catalogue entry."""

    data: Annotated[str, Field(max_length=256)]  # name of the data set
    digest: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    labels: list[str] = []  # by number
    features: dict[str, float] = {}  # the number that each is divided by, in the order of the columns


class Difference(NamedTuple):
    what: str
    said: str


def schema_of(dataset: Dataset) -> Schema:
    facts = {name: value for name, value in FACTS.get(dataset.name, {}).items() if name not in WORDS}
    shape = list(dataset.train.inputs.shape[1:])
    decides = (dataset.name, facts, dataset.classes, dataset.kind, shape, dataset.mean, dataset.std)
    scales = dataset.feature_scales or (1.0,) * len(dataset.feature_names)
    digest = hashlib.sha256(dump({"decides": list(decides)}).encode()).hexdigest()
    return Schema(
        data=dataset.name,
        digest=digest,
        labels=list(dataset.label_names),
        features=dict(zip(dataset.feature_names, scales, strict=True)),
    )


def differences(asked: Schema, mine: Schema) -> Iterator[Difference]:
    """Yield in what a server's schema differs from a guard's own.

    Guarantees:
        A sentence names labels and data set as the guard's owner declared them, and of the features only
        those that the server named: what else a client's table holds is not told.
    """
    if not (asked.features and mine.features):
        if (asked.data, asked.digest) != (mine.data, mine.digest):
            yield Difference("data set", _data_sets(asked, mine))
        return
    if asked.labels != mine.labels:
        said = f"found labels {_names(mine.labels)}, the server expects {_names(asked.labels)}"
        yield Difference("labels", f"{said}: {AGREE.format('labels')}")
    if list(asked.features) != list(mine.features):
        yield Difference("features", _columns(list(asked.features), list(mine.features)))
    scales = [name for name, scale in asked.features.items() if mine.features.get(name, scale) != scale]
    if scales:
        each = (f"{name} by {asked.features[name]:g}, not {mine.features[name]:g}" for name in scales)
        said = f"the server divides {', '.join(list(each)[:MOST_NAMES])}"
        yield Difference("scaling", f"{said}: {AGREE.format('scales')}")


def _data_sets(asked: Schema, mine: Schema) -> str:
    if asked.data == mine.data:
        return f"{asked.data} at the server has other shapes, classes, scaling or files than here"
    return f"the server has {asked.data}, this guard has {mine.data}: expected the same data set"


def _columns(asked: list[str], mine: list[str]) -> str:
    missing, more = [name for name in asked if name not in mine], len(set(mine) - set(asked))
    if not missing and not more:
        return "the columns of the client's table are in another order than the server's"
    lacks = f"lacks {_names(missing)}" if missing else "lacks none of the server's"
    return f"the client's table {lacks}, and has {more} that the server does not name"


def _names(names: list[str]) -> str:
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
