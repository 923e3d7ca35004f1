"""Round-by-round records of a run, history.jsonl and answers.jsonl: written, parsed and cut after a crash."""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt, TypeAdapter

from discretion import jsonfile
from discretion.arrays import Floats, Ints
from discretion.clients.remote import Heard
from discretion.files import append, read_bytes, write_safely
from discretion.jsonfile import Record


class HistoryLine(Record):
    """Line of history.jsonl"""

    round: PositiveInt
    accuracy: float | None = None
    loss: float | None = None


class AnswersLine(Record):
    """Line of answers.jsonl: the fields of `Heard`."""

    round: NonNegativeInt
    asked: NonNegativeInt
    answered: NonNegativeInt
    refused: dict[str, str]
    lost: NonNegativeInt
    missing: NonNegativeFloat = 0.0
    expected: NonNegativeInt = 0
    answering: NonNegativeInt = 0
    enough: bool = True
    masked: dict[str, str] = {}


_HISTORY, _ANSWERS = TypeAdapter(HistoryLine), TypeAdapter(AnswersLine)


@dataclass(frozen=True)
class RoundRecord:
    """One line of history.jsonl. Nothing in it depends on who took part."""

    round: int
    accuracy: float | None  # None in rounds without an evaluation
    loss: float  # infinite where training diverged, or without an evaluation

    @classmethod
    def parse(cls, line: str) -> "RoundRecord":
        """Return the record in a line; raise `ValueError` where it is damaged."""
        record = jsonfile.read(line, _HISTORY)
        return cls(record.round, record.accuracy, math.inf if record.loss is None else record.loss)


@dataclass(frozen=True)
class History:
    """The lines of history.jsonl, in their order."""

    lines: tuple[RoundRecord, ...]

    @property
    def done(self) -> int:
        """The last round on record."""
        return max((line.round for line in self.lines), default=0)

    @cached_property
    def evaluated(self) -> tuple[RoundRecord, ...]:
        """Those with an evaluation; of a round on record twice, the later one."""
        by_round = {line.round: line for line in self.lines}
        return tuple(line for line in by_round.values() if line.accuracy is not None)

    @cached_property
    def rounds(self) -> Ints:
        """(E,) rounds with an evaluation."""
        return np.array([line.round for line in self.evaluated], dtype=np.int64)

    @cached_property
    def accuracy(self) -> Floats:
        """(E,) accuracy in those rounds"""
        return np.array([line.accuracy for line in self.evaluated], dtype=np.float64)

    @cached_property
    def loss(self) -> Floats:
        """(E,) loss in those rounds, infinite where training diverged"""
        return np.array([line.loss for line in self.evaluated], dtype=np.float64)


def parse_answers(line: str) -> Heard:
    """Parse one line of answers.jsonl: what came of the orders to clients elsewhere in one round."""
    return Heard(**jsonfile.read(line, _ANSWERS).model_dump())


def read_history(path: Path) -> History:
    """Read what is on record; a line that is being written is left out, and there need be no file."""
    return History(tuple(RoundRecord.parse(line) for line in _whole_lines(path)))


def read_answers(path: Path) -> list[Heard]:
    return [parse_answers(line) for line in _whole_lines(path)]


class Journal:
    """history.jsonl or answers.jsonl of a run that is being executed, with the digest of its lines."""

    def __init__(self, path: Path, rounds: int) -> None:
        """Keep the lines of the first `rounds` rounds, which the model has seen; drop all others."""
        kept = lines_until(path, rounds)
        if path.exists():
            write_safely(path, kept)
        self.path = path
        self._content = hashlib.sha256(kept)

    def add(self, records: Sequence[dict[str, Any]]) -> None:
        """Append a line for each record, which says its round; all lines are on disk when this returns."""
        lines = "".join(map(jsonfile.line, records))
        append(self.path, lines)
        self._content.update(lines.encode())

    @property
    def digest(self) -> str:
        """SHA-256 of all lines."""
        return self._content.hexdigest()


def lines_until(path: Path, rounds: int) -> bytes:
    """Return the lines of the first rounds; half-written and damaged lines are left out."""
    return "".join(line for line in _whole_lines(path) if 0 <= _round_of(line) <= rounds).encode()


def _round_of(line: str) -> int:
    """Return the line's round; -1 where the line is damaged, as after a crash while it was written."""
    try:
        return int(jsonfile.loads(line)["round"])
    except (ValueError, TypeError, LookupError):
        return -1


def _whole_lines(path: Path) -> list[str]:
    text = (read_bytes(path) or b"").decode(errors="replace")
    return [line for line in text.splitlines(keepends=True) if line.endswith("\n")]
