"""Readers of published data files and of a user's own table: files to numpy arrays."""

import csv
import math
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from discretion.errors import DataError

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
    shape = struct.unpack(f">{rank}I", data[4:header].tobytes())
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


# The vocabulary as UCI publishes it in adult.names, by column; "?" is a category of its own in
# the three columns that are documented as having missing values.
_ADULT_CATEGORIES = {
    (1, "workclass"): """? Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov
        Without-pay Never-worked""",
    (3, "education"): """Bachelors Some-college 11th HS-grad Prof-school Assoc-acdm Assoc-voc 9th
        7th-8th 12th Masters 1st-4th 10th Doctorate 5th-6th Preschool""",
    (5, "marital-status"): """Married-civ-spouse Divorced Never-married Separated Widowed
        Married-spouse-absent Married-AF-spouse""",
    (6, "occupation"): """? Tech-support Craft-repair Other-service Sales Exec-managerial
        Prof-specialty Handlers-cleaners Machine-op-inspct Adm-clerical Farming-fishing
        Transport-moving Priv-house-serv Protective-serv Armed-Forces""",
    (7, "relationship"): "Wife Own-child Husband Not-in-family Other-relative Unmarried",
    (8, "race"): "White Asian-Pac-Islander Amer-Indian-Eskimo Other Black",
    (9, "sex"): "Female Male",
    (13, "native-country"): """? United-States Cambodia England Puerto-Rico Canada Germany
        Outlying-US(Guam-USVI-etc) India Japan Greece South China Cuba Iran Honduras Philippines
        Italy Poland Jamaica Vietnam Mexico Portugal Ireland France Dominican-Republic Laos
        Ecuador Taiwan Haiti Columbia Hungary Guatemala Nicaragua Scotland Thailand Yugoslavia
        El-Salvador Trinadad&Tobago Peru Hong Holand-Netherlands""",
}
# Divisors fixed by hand from what each number can be, never from the records: statistics of
# private records would be a release of their own. Column 2, fnlwgt, the census's sampling weight,
# is left out.
_ADULT_SCALES = {(0, "age"): 100, (4, "education-num"): 16, (12, "hours-per-week"): 100}
_ADULT_LOG_SCALES = {(10, "capital-gain"): 12, (11, "capital-loss"): 12}  # log1p(99999) is 11.5


def read_adult(path: Path) -> tuple[Floats, Ints]:
    """Read (n, 107) features in about 0..1 and (n,) labels, 1 for an income above 50K."""
    rows: list[list[str]] = []
    lines: list[int] = []
    for line, text in enumerate(path.read_text(encoding="ascii").splitlines(), 1):
        if not text.strip() or text.startswith("|"):  # adult.test opens with a comment
            continue
        rows.append([cell.strip() for cell in text.split(",")])
        lines.append(line)
        if len(rows[-1]) != 15:
            raise DataError(f"{path}, line {line}: {len(rows[-1])} columns, expected 15")
    if not rows:
        raise DataError(f"{path}: no records")
    columns = list(zip(*rows, strict=True))
    parts: list[Floats] = []
    for (column, name), scale in _ADULT_SCALES.items():
        values = _numbers(path, name, columns[column], lines)
        parts.append(values[:, None] / np.float32(scale))
    for (column, name), scale in _ADULT_LOG_SCALES.items():
        values = _numbers(path, name, columns[column], lines)
        parts.append((np.log1p(values) / scale)[:, None].astype(np.float32))
    for (column, name), words in _ADULT_CATEGORIES.items():
        codes = _codes(path, name, columns[column], words.split(), lines)
        parts.append(np.eye(len(words.split()), dtype=np.float32)[codes])
    labels = [label.removesuffix(".") for label in columns[14]]  # adult.test has ">50K."
    return np.hstack(parts), _codes(path, "label", labels, ("<=50K", ">50K"), lines)


def _numbers(path: Path, name: str, cells: Sequence[str], lines: Sequence[int]) -> Floats:
    try:
        return np.array(cells, dtype=np.float32)
    except ValueError:
        bad = next(i for i, cell in enumerate(cells) if not cell.isdigit())
        raise DataError(f"{path}, line {lines[bad]}: {name} is {cells[bad]!r}, expected a number") from None


def _codes(path: Path, name: str, cells: Sequence[str], words: Sequence[str], lines: Sequence[int]) -> Ints:
    index = {word: code for code, word in enumerate(words)}
    try:
        return np.array([index[cell] for cell in cells], dtype=np.int64)
    except KeyError as error:
        line = lines[cells.index(error.args[0])]
        raise DataError(
            f"{path}, line {line}: {name} is {error.args[0]!r}, expected one of {', '.join(words)}"
        ) from None


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


@dataclass(frozen=True)
class Table:
    """A user's own records, as text where they are not features."""

    features: Floats  # (n, F)
    labels: tuple[str, ...]  # (n,)
    clients: tuple[str, ...] | None  # (n,) the client that owns each record; None without such a column


def read_table(path: Path) -> Table:
    """Read a CSV file with a column `label`, optionally `client`, and numbers; report every bad cell."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            header = [name.strip() for name in next(reader, [])]
            rows = [(reader.line_num, row) for row in reader if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read as a CSV file in UTF-8: {error}") from None
    numeric = [i for i, name in enumerate(header) if name not in ("label", "client")]
    if "label" not in header or not numeric or len(set(header)) < len(header):
        raise DataError(
            f"{path}: the header is {', '.join(header) or 'empty'}; expected a column `label`, at least one "
            "column of numbers, optionally a column `client`, and no name twice"
        )
    problems: list[str] = []
    largest = float(np.finfo(np.float32).max)
    features = np.zeros((len(rows), len(numeric)), np.float32)
    for i, (line, row) in enumerate(rows):
        if len(row) != len(header):
            problems.append(f"line {line}: {len(row)} cells, but the header has {len(header)}")
            continue
        for name in ("label", "client"):
            if name in header and not row[header.index(name)].strip():
                problems.append(f"line {line}, column {name}: empty")
        for j, column in enumerate(numeric):
            try:
                number = float(row[column])
            except ValueError:
                number = np.nan
            if abs(number) <= largest:
                features[i, j] = number
            else:
                where = f"line {line}, column {header[column]}"
                problems.append(f"{where}: {row[column].strip()!r} is not a finite number")
    if problems:
        shown = "\n".join(f"  {problem}" for problem in problems[:20])
        more = f"\n  and {len(problems) - 20} more" if len(problems) > 20 else ""
        raise DataError(f"{path}: {len(problems)} problems to correct:\n{shown}{more}")

    def texts(name: str) -> tuple[str, ...]:
        return tuple(row[header.index(name)].strip() for _, row in rows)

    return Table(features, texts("label"), texts("client") if "client" in header else None)
