"""Population: the clients' names, privacy budgets and other public facts, from CSV or arrays."""

import csv
import hashlib
import io
import math
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from discretion.arrays import Floats, Ints, distinct
from discretion.errors import PopulationError, listed
from discretion.plan.html_table import html_table, one_line, span
from discretion.plan.names import bad_names
from discretion.spreadsheet import decode, hint, number, parse

COLUMNS = ("client", "epsilon", "delta", "size")
MOST_CLASSES = 8
LARGEST_SIZE = 2**53  # up to here a float holds every whole number
_POINTS = "write numbers with a decimal point, and commas between cells"


@dataclass(frozen=True, eq=False)
class Population:
    """Public facts about the clients; never their data.

    An infinite epsilon marks a client with public data. Clients declare their sizes, which count as public.
    """

    client: tuple[str, ...]
    epsilon: Floats  # (N,) lifetime budget
    delta: Floats  # (N,)
    size: Ints  # (N,) number of records
    traits: Mapping[str, Floats] = field(default_factory=dict)  # (N,) each, for methods that ask

    def __post_init__(self) -> None:
        """Check every field, and keep read-only copies."""
        problems = bad_names(self.client)
        if len(set(self.client)) != len(self.client):
            problems.append("two clients have the same name")
        if not self.client:
            problems.append("there are no clients")
        problems += [
            f"found a trait named {name!r}, which is the name of a column: choose another name"
            for name in self.traits
            if name in COLUMNS
        ]
        columns = {"epsilon": self.epsilon, "delta": self.delta, "size": self.size, **self.traits}
        kept: dict[str, NDArray[Any]] = {k: np.array(column, np.float64) for k, column in columns.items()}
        problems += [
            f"{name} has {column.size} entries for {len(self.client)} clients"
            for name, column in kept.items()
            if column.shape != (len(self.client),)
        ]
        _raise("the population", problems or self._problems(kept))
        kept["size"] = kept["size"].astype(np.int64)
        for column in kept.values():
            column.flags.writeable = False
        for name in COLUMNS[1:]:
            object.__setattr__(self, name, kept.pop(name))
        object.__setattr__(self, "traits", MappingProxyType(kept))

    def _problems(self, columns: Mapping[str, Floats]) -> list[str]:
        epsilon, delta, size = (columns[name] for name in COLUMNS[1:])
        sound = (epsilon > 0) & (delta > 0) & (delta < 1) & (size >= 1) & (size <= LARGEST_SIZE)
        sound &= size == np.floor(size)
        return [
            f"client {self.client[i]!r}: {problem}"
            for i in np.flatnonzero(~sound)
            for problem in _row_problems(float(epsilon[i]), float(delta[i]), float(size[i]))
        ] + [
            f"trait {name!r} has {int(np.sum(~np.isfinite(columns[name])))} entries that are not finite"
            for name in self.traits
            if not np.isfinite(columns[name]).all()
        ]

    def __len__(self) -> int:
        return len(self.client)

    def __repr__(self) -> str:
        return one_line("Population", self._facts())

    def _repr_html_(self) -> str:
        return html_table("Population", self._facts() | {"traits": ", ".join(self.traits) or "none"})

    def _facts(self) -> dict[str, object]:
        columns = {"epsilon": self.epsilon, "delta": self.delta, "records": self.size}
        spans = {name: span(column.min(), column.max()) for name, column in columns.items()}
        return {"clients": len(self), **spans}

    @classmethod
    def of(
        cls,
        epsilon: ArrayLike,
        delta: ArrayLike = 1e-5,
        size: ArrayLike = 1,
        traits: Mapping[str, Floats] | None = None,
    ) -> "Population":
        """Return a population from arrays or numbers; a number holds for every client. Names are c0, c1, …"""
        budgets = np.atleast_1d(np.asarray(epsilon, dtype=np.float64))

        def for_each(value: ArrayLike) -> Floats:
            array = np.asarray(value, dtype=np.float64)
            return np.full(len(budgets), array) if array.ndim == 0 else array

        names = tuple(f"c{i}" for i in range(len(budgets)))
        sizes: Any = for_each(size)  # checked to be whole, then made integers
        return cls(names, budgets, for_each(delta), sizes, dict(traits or {}))

    @classmethod
    def from_csv(cls, path: Path | str, sizes: Mapping[str, int] | None = None) -> "Population":
        """Read `COLUMNS` and, as traits, all other columns; raise `PopulationError` with every bad row.

        Where the file has no column `size`, `sizes` tells the number of training records by client.
        """
        try:
            text = decode(Path(path).read_bytes())
        except (OSError, ValueError) as problem:
            raise PopulationError(f"cannot read the population from {path}: {problem}") from None
        return cls.from_text(text, str(path), sizes)

    @classmethod
    def from_text(cls, text: str, source: str, sizes: Mapping[str, int] | None = None) -> "Population":
        """Read a population from CSV text, as `from_csv` reads a file; `source` is its name in messages."""
        try:
            return _parse(text, source, sizes)
        except ValueError as problem:
            raise PopulationError(f"{source}: {problem}") from None

    def to_csv(self) -> str:
        """Return the CSV text that `from_csv` reads back exactly."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([*COLUMNS, *self.traits])
        epsilon, delta, *traits = (
            map(repr, column.tolist()) for column in (self.epsilon, self.delta, *self.traits.values())
        )
        writer.writerows(zip(self.client, epsilon, delta, self.size.tolist(), *traits, strict=True))
        return out.getvalue()

    def digest(self) -> str:
        """Return the SHA-256 of the population's CSV text."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        return hashlib.sha256(self.to_csv().encode()).hexdigest()

    def classes(self) -> tuple[tuple[str, ...], Ints]:
        """Return the names of the budget classes, strictest first, and (N,) each client's class number.

        Up to eight different budgets are a class each; otherwise clients are divided by epsilon into eight
        classes of about equal size.
        """
        kinds, index = distinct(np.stack([self.epsilon, self.delta]))
        budgets, one_delta = kinds.T, bool((self.delta == self.delta[0]).all())
        if len(budgets) <= MOST_CLASSES:
            tries = (_budget_names(budgets, one_delta, digits) for digits in (6, 17))  # 17 tell all apart
            return next(names for names in tries if len(set(names)) == len(names)), index
        rank = np.argsort(np.argsort(self.epsilon, kind="stable"), kind="stable")
        index = rank * MOST_CLASSES // len(self)
        members = [self.epsilon[index == k] for k in range(MOST_CLASSES)]
        names = tuple(f"ε {mine.min():.3g} to {mine.max():.3g}" for mine in members)
        return names, index.astype(np.int64)


def _budget_names(budgets: Floats, one_delta: bool, digits: int) -> tuple[str, ...]:
    return tuple(
        f"ε {epsilon:.{digits}g}" if one_delta else f"ε {epsilon:.{digits}g}, δ {delta:.{digits}g}"
        for epsilon, delta in budgets
    )


def _row_problems(epsilon: float, delta: float, size: float) -> list[str]:
    problems = []
    if math.isnan(epsilon) or epsilon <= 0:
        problems.append(f"epsilon is {epsilon:g}; expected a number above 0 (inf for public data)")
    if not 0 < delta < 1:
        problems.append(f"delta is {delta:g}; expected a number above 0 and below 1, such as 1e-5")
    if not (1 <= size <= LARGEST_SIZE) or size != math.floor(size):
        problems.append(f"size is {size:g}; expected a whole number of records, at least 1")
    return problems


def _parse(text: str, source: str, sizes: Mapping[str, int] | None) -> Population:
    sheet = parse(text, COLUMNS[:3])
    header = sheet.header
    counted = {} if sizes is None or "size" in header else sizes
    _require_columns(header, source, bool(counted))
    numeric = [name for name in header if name != "client"]
    decimal = sheet.decimal_sign(numeric, _POINTS)
    problems: list[str] = []
    seen: dict[str, int] = {}
    rows: list[dict[str, float]] = []
    for line, cells in sheet.rows:
        at = f"line {line}"
        if len(cells) != len(header):
            problems.append(f"{at}: {len(cells)} cells, expected {len(header)}")
            continue
        row = dict(zip(header, cells, strict=True))
        name = unicodedata.normalize("NFC", row["client"])
        if bad := bad_names([name]):
            problems += [f"{at}: {problem}" for problem in bad]
        elif name in seen:
            problems.append(f"{at}: client {name!r} is already in line {seen[name]}; expected each once")
        else:
            seen[name] = line
        values, bad = _numbers(row, numeric, decimal)
        if counted and name not in counted:
            bad.append(f"no size, and the data has no records of client {name!r} for training")
        values |= {"size": counted[name]} if name in counted else {}
        problems += [f"{at}: {problem}" for problem in bad]
        if all(column in values for column in COLUMNS[1:]):
            found = _row_problems(values["epsilon"], values["delta"], values["size"])
            problems += [f"{at}: {problem}" for problem in found]
        rows.append(values)
    if not rows and not problems:
        problems.append("there are no clients below the first line")
    _raise(source, problems)
    columns: dict[str, NDArray[Any]] = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    epsilon, delta, size = (columns.pop(name) for name in COLUMNS[1:])
    return Population(tuple(seen), epsilon, delta, size, columns)


def _require_columns(header: tuple[str, ...], source: str, counted: bool) -> None:
    missing = [name for name in COLUMNS if name not in header and not (counted and name == "size")]
    if missing:
        only = "; `discretion population` counts the records in a table" if missing == ["size"] else ""
        raise PopulationError(
            f"{source}: the first line must name the columns {', '.join(COLUMNS)}; "
            f"found {', '.join(header) or 'nothing'}, missing {', '.join(missing)}{only}"
        )
    if len(set(header)) != len(header):
        raise PopulationError(f"{source}: found a column name twice in the first line, expected each once")


def _numbers(row: dict[str, str], names: list[str], decimal: str) -> tuple[dict[str, float], list[str]]:
    values: dict[str, float] = {}
    problems = []
    for name in names:
        try:
            values[name] = number(row[name], decimal)
        except ValueError:
            found = repr(row[name]) if row[name] else "missing"
            problems.append(f"{name} is {found}; expected a number" + hint(row[name], decimal, _POINTS))
            continue
        if name not in COLUMNS and not math.isfinite(values[name]):
            problems.append(f"{name} is {row[name]}; expected a finite number")
    return values, problems


def _raise(source: str, problems: list[str]) -> None:
    if problems:
        count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
        raise PopulationError("\n  ".join([f"{source}: {count}, nothing loaded", *listed(problems)]))
