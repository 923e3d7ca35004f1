"""Catalogue of data sets: what catalogue.toml says of each."""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Kind = Literal["image", "tabular", "text"]


@dataclass(frozen=True)
class Entry:
    """Catalogue entry of a data set."""

    name: str
    kind: Kind
    records: int | None  # training and test together; None for the user's own table
    licence: str
    download: int  # bytes, 0 when nothing is downloaded
    about: str


FACTS: dict[str, dict[str, Any]] = tomllib.loads(
    Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
)
ENTRIES = {
    name: Entry(name, of["kind"], of.get("records"), of["licence"], of.get("download", 0), of["about"])
    for name, of in FACTS.items()
}
