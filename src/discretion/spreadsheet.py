"""Tables as spreadsheets save them: encoding, separator and decimal sign of a CSV file, found or refused.

Nothing is guessed that could change a number: where two readings are possible, a `ValueError` says which.
"""

import codecs
import csv
import io
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs"}
_MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
_ONE_SIGN = re.compile(r"[+-]?\d*([.,])\d*(?:[eE][+-]?\d+)?")  # 0,5 or 1.234 or -.5e3
_GROUPS = re.compile(r"[+-]?\d{1,3}(?:[.,'\s]\d{3})+(?:[.,]\d+)?")  # 1.234,5 or 1 234
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}[.,]\d{3}")  # 1.234 may be 1234, 0.123 and 1.2345 cannot


@dataclass(frozen=True)
class Sheet:
    """A table as text."""

    header: tuple[str, ...]
    rows: tuple[tuple[int, tuple[str, ...]], ...]  # line number and cells, without rows of empty cells
    separator: str

    def decimal_sign(self, columns: Iterable[str], how: str) -> str:
        """Return the decimal sign of these columns; `how` says what to do where the table does not tell."""
        at = [(name, self.header.index(name)) for name in columns]
        rows = (row for row in self.rows if len(row[1]) == len(self.header))
        cells = ((f"line {line}, column {name}", row[i]) for line, row in rows for name, i in at)
        return "." if self.separator == "," else _sign(cells, how)


def read(path: Path, needed: Sequence[str], encoding: str = "") -> Sheet:
    """Read a CSV file; `needed` are columns that it must have; raise `OSError` or `ValueError`."""
    return parse(decode(path.read_bytes(), encoding), needed)


def decode(content: bytes, encoding: str = "") -> str:
    """Return the text of a file: in the given encoding, as its byte order mark says, or in UTF-8."""
    marked = next((name for mark, name in _MARKS.items() if content.startswith(mark)), "")
    try:
        text = content.decode(encoding or marked or "utf-8")
    except LookupError:
        raise ValueError(f"unknown encoding {encoding!r}; expected one such as cp1252 or utf-8") from None
    except UnicodeDecodeError as problem:
        if encoding or marked:
            raise ValueError(f"not a text in {encoding or marked}: {problem.reason}") from None
        raise ValueError(_other_encoding(content, problem.start)) from None
    if "\0" in text:
        raise ValueError("found a zero byte, expected text: save the table as CSV in UTF-8")
    return text.removeprefix("\ufeff")


def _other_encoding(content: bytes, at: int) -> str:
    """Say where a file is not UTF-8, with the cell as Windows-1252 would have it."""
    line = content.count(b"\n", 0, at) + 1
    before, after = (re.split(rb'[,;\t\r\n"]', part) for part in (content[:at], content[at:]))
    cell = (before[-1][-40:] + after[0][:40]).decode("cp1252", errors="replace")
    return (
        f"line {line}: found a byte 0x{content[at]:02x}, which is not UTF-8; in Windows-1252 (cp1252) the "
        f"cell would be {cell!r}. Save the table as CSV in UTF-8 or, of a data table, set data.encoding"
    )


def parse(text: str, needed: Sequence[str]) -> Sheet:
    """Split text into header and rows, by the separator with which the header has the needed columns."""
    headers = {separator: _header(text, separator) for separator in SEPARATORS}
    fitting = [separator for separator, header in headers.items() if set(needed) <= set(header)]
    if len(fitting) > 1:
        ways = " and ".join(SEPARATORS[separator] for separator in fitting)
        raise ValueError(f"the first line can be read as separated by {ways}: name its columns otherwise")
    separator = fitting[0] if fitting else max(headers, key=lambda each: len(headers[each]))
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    try:
        header = tuple(name.strip() for name in next(lines, []))
        rows = [(lines.line_num, tuple(cell.strip() for cell in cells)) for cells in lines]
    except csv.Error as problem:
        raise ValueError(f"not CSV: {problem}") from None
    return Sheet(header, tuple(row for row in rows if any(row[1])), separator)


def _header(text: str, separator: str) -> list[str]:
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    try:
        return [name.strip() for name in next(lines, [])]
    except csv.Error:
        return []


def _sign(cells: Iterable[tuple[str, str]], how: str) -> str:
    """Return the decimal sign of (place, cell) pairs: that of a cell such as 0,5 that can be nothing else.

    One table has one sign, and 1.234 alone may be a thousand.
    """
    sure: dict[str, str] = {}
    unsure = ""
    for place, cell in cells:
        if (found := _ONE_SIGN.fullmatch(cell)) is None:
            continue
        if _THOUSANDS.fullmatch(cell):
            unsure = unsure or f"{place}: {cell!r}"
        else:
            sure.setdefault(found[1], f"{place}: {cell!r}")
    if len(sure) > 1:
        raise ValueError(f"found decimal commas and decimal points ({', '.join(sure.values())}): {how}")
    if not sure and unsure:
        raise ValueError(f"{unsure} may be a decimal fraction or a thousand: {how}")
    return next(iter(sure), ".")


def number(cell: str, decimal: str = ".") -> float:
    """Return the number in a cell; refuse other signs, underscores, and infinity unless the cell says inf."""
    if decimal == ",":
        if "." in cell:
            raise ValueError(cell)
        cell = cell.replace(",", ".")
    value = float(cell)
    if "_" in cell or (math.isinf(value) and "inf" not in cell.lower()):
        raise ValueError(cell)
    return value


def hint(cell: str, decimal: str, how: str) -> str:
    """Return what a cell that is no number may mean by its commas, points and spaces; else nothing."""
    if decimal == "." and (found := _ONE_SIGN.fullmatch(cell)) and found[1] == ",":
        return f"; a decimal comma? Then {how}"
    return "; write thousands without a separator" if _GROUPS.fullmatch(cell) else ""
