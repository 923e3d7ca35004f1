"""Tables of a user's own records: read from CSV, and written for one client."""

import csv
import io
import math
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from discretion import spreadsheet
from discretion.errors import DataError
from discretion.tasks.readers import Bytes, Floats, Ints


@dataclass(frozen=True)
class TableForm:
    """How a user's own table is written."""

    label: str = "label"  # name of the column of labels
    client: str = "client"  # name of the column of clients
    encoding: str = ""  # such as cp1252; empty: UTF-8, or as a byte order mark says
    decimal: str = ""  # decimal sign; empty: as the table tells


@dataclass(frozen=True)
class Table:
    """A user's own records, as text where they are not features."""

    names: tuple[str, ...]  # (F,) names of the features
    features: Floats  # (n, F)
    labels: tuple[str, ...]  # (n,)
    clients: tuple[str, ...] | None  # (n,) the client that owns each record; None without such a column
    scales: tuple[float, ...]  # (F,) the public number that each feature was divided by


USUAL = TableForm()
MOST_SCALED = 1e6  # size of a feature: with a larger one, every gradient is of that column alone
_LARGE_SIZE = 10.0  # root mean square of a column; of one that is scaled well it is about 1
_NAMED = 5  # columns in a warning
_SAY_SIGN = 'set data.decimal to "," or "."'


def read_table(path: Path, form: TableForm = USUAL, owned: bool = False, how: str = "a TableForm") -> Table:
    """Read a CSV file with a column of labels, optionally of clients, and numbers; report every bad cell.

    `owned`: there must be a column of clients. `how` says how columns with other names are named.
    """
    sheet = _sheet(path, form.label, form)
    header = sheet.header
    _require_header(path, header, form, owned, how)
    numeric = [i for i, name in enumerate(header) if name not in (form.label, form.client)]
    try:
        decimal = form.decimal or sheet.decimal_sign([header[i] for i in numeric], _SAY_SIGN)
    except ValueError as error:
        raise DataError(f"{path}: {error}") from None
    problems: list[str] = []
    features = np.zeros((len(sheet.rows), len(numeric)), np.float32)
    for i, (line, row) in enumerate(sheet.rows):
        if len(row) != len(header):
            problems.append(f"line {line}: {len(row)} cells, but the header has {len(header)}")
            continue
        problems += [
            f"line {line}, column {name}: empty"
            for name in (form.label, form.client)
            if name in header and not row[header.index(name)]
        ]
        for j, column in enumerate(numeric):
            try:
                features[i, j] = _feature(row[column], decimal)
            except ValueError as why:
                problems.append(f"line {line}, column {header[column]}: {why}")
    _raise(path, problems)
    clients = _column(sheet, form.client) if form.client in header else None
    names, scales = tuple(header[i] for i in numeric), (1.0,) * len(numeric)
    return Table(names, features, _column(sheet, form.label), clients, scales)


def scaled(table: Table, path: Path, scales: Mapping[str, float]) -> Table:
    """Return a table with each feature divided by its public number; those without one stay as they are."""
    odd = sorted(set(scales) - set(table.names))
    odd += [name for name, scale in scales.items() if not 0 < scale < math.inf]
    if odd:
        raise DataError(
            f"{path}: data.scales has {', '.join(odd[:5])}; expected columns of the table, each with "
            "a number above 0"
        )
    divisors = tuple(float(scales.get(name, 1.0)) for name in table.names)
    features = table.features / np.array(divisors)
    if (large := np.abs(features).max(axis=0, initial=0.0) > MOST_SCALED).any():
        names = ", ".join(table.names[i] for i in np.flatnonzero(large)[:5])
        raise DataError(
            f"{path}: found numbers above {MOST_SCALED:,.0f} in {names}, too large for a model to learn from "
            "the others. Correct the cells, or divide the column by a public number in data.scales"
        )
    return replace(table, features=features.astype(np.float32), scales=divisors)


def unscaled(names: Sequence[str], features: Bytes | Floats) -> str:
    """Return a warning on columns of (n, F) features that are far from a size of 1; else nothing.

    Guarantees:
        It names columns, and no number that was computed from records.
    """
    if not names or not len(features):
        return ""
    size = np.sqrt(np.mean(np.square(features, dtype=np.float64), axis=0))
    if not (large := [name for name, own in zip(names, size, strict=True) if own > _LARGE_SIZE]):
        return ""
    more = f" and {len(large) - _NAMED} more" if len(large) > _NAMED else ""
    return (
        f"Numbers of {', '.join(large[:_NAMED])}{more} are far from a size of 1 (root mean square above "
        f"{_LARGE_SIZE:g}): such columns drown the others, training may diverge, and budgets are spent for "
        "nothing. Divide each by a round number that is known without the records: in data.scales, such as "
        f"scales = {{ {large[0]} = NUMBER }}, the same in config.toml and in every GUARD.toml."
    )


def ordered(table: Table, path: Path, names: Sequence[str], expected: str) -> Table:
    """Return a table with its features in the order of these names; `expected` says where names come from."""
    if sorted(names) != sorted(table.names):
        odd = sorted(set(names) ^ set(table.names)) or ["one that is listed twice"]
        raise DataError(f"{path}: expected the columns of {expected}; they differ in {', '.join(odd)}")
    at = [table.names.index(name) for name in names]
    scales = tuple(table.scales[i] for i in at)
    return replace(table, names=tuple(names), features=table.features[:, at], scales=scales)


def label_numbers(
    table: Table, path: Path, names: Sequence[str], lacking: str = "data.labels does not list"
) -> Ints:
    """Return (n,) the place of each record's label among these names; `lacking` says where names come from.

    Guarantees:
        Labels mean the same wherever the same names are given, whichever of them a table holds.
    """
    if twice := sorted({label for label in names if names.count(label) > 1}):
        raise DataError(f"data.labels lists {', '.join(twice[:5])} twice; expected each label once")
    unknown = sorted(set(table.labels) - set(names))
    if len(names) < 2 or unknown:
        raise DataError(
            f"{path}: found labels that {lacking}: {', '.join(unknown[:5]) or 'none'}. List all labels, at "
            "least two, in data.labels, in the same order in config.toml and in every GUARD.toml"
        )
    number = {label: i for i, label in enumerate(names)}
    return np.array([number[label] for label in table.labels], np.int64)


def _sheet(path: Path, needed: str, form: TableForm) -> spreadsheet.Sheet:
    try:
        return spreadsheet.read(path, [needed], form.encoding)
    except OSError as error:
        raise DataError(f"{path}: cannot be read as a CSV file: {error.strerror}") from None
    except ValueError as error:
        raise DataError(f"{path}: cannot be read as a CSV file: {error}") from None


def _column(sheet: spreadsheet.Sheet, name: str) -> tuple[str, ...]:
    at = sheet.header.index(name)
    return tuple(unicodedata.normalize("NFC", row[at]) for _, row in sheet.rows)


def _raise(path: Path, problems: Sequence[str]) -> None:
    if problems:
        shown = "\n".join(f"  {problem}" for problem in problems[:20])
        more = f"\n  and {len(problems) - 20} more" if len(problems) > 20 else ""
        raise DataError(f"{path}: {_counted(len(problems), 'problem')} to correct:\n{shown}{more}")


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _require_header(path: Path, header: Sequence[str], form: TableForm, owned: bool, how: str) -> None:
    needed = {form.label, form.client} if owned else {form.label}
    numeric = set(header) - {form.label, form.client}
    if not needed <= set(header) or not numeric or len(set(header)) < len(header):
        expected = " and ".join(f"a column `{name}`" for name in sorted(needed))
        also = "" if owned else f", optionally a column `{form.client}`"
        raise DataError(
            f"{path}: the header is {', '.join(header) or 'empty'}; expected {expected}, at least one "
            f"column of numbers{also}, and no name twice; say what columns are called with {how}"
        )
    if odd := sorted(numeric & {USUAL.label, USUAL.client}):
        raise DataError(
            f"{path}: found a column `{odd[0]}` beside those that are said to hold labels and clients "
            f"(`{form.label}`, `{form.client}`): leave it out, or give it another name"
        )


_LARGEST = float(np.finfo(np.float32).max)


def _feature(cell: str, decimal: str) -> float:
    """Return the number in a cell, finite as a float32; the error says what was found."""
    try:
        value = spreadsheet.number(cell, decimal)
    except ValueError:
        value = math.nan
    if abs(value) <= _LARGEST:
        return value
    if hint := spreadsheet.hint(cell, decimal, _SAY_SIGN):
        sign = "comma" if decimal == "," else "point"
        raise ValueError(f"{cell!r} is not a number with a decimal {sign}{hint}")
    raise ValueError(f"{cell!r} is not a finite number")


def to_csv(names: Sequence[str], features: Floats, labels: Sequence[str]) -> str:
    """Return a table as CSV text that `read_table` reads back exactly: the column `label`, then features."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["label", *names])
    writer.writerows([label, *map(str, row)] for label, row in zip(labels, features, strict=True))
    return out.getvalue()
