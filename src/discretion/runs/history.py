"""Round-by-round records of a run, history.jsonl and answers.jsonl: written, parsed and cut after a crash."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from discretion.arrays import Floats, Ints
from discretion.clients.remote import Heard
from discretion.files import append, write_safely

UNREADABLE = (KeyError, TypeError, ValueError, AttributeError)  # what a damaged line raises


@dataclass(frozen=True)
class RoundRecord:
    """One line of history.jsonl. Nothing in it depends on who took part."""

    round: int
    accuracy: float | None  # None in rounds without an evaluation
    loss: float  # infinite where training diverged, or without an evaluation

    @classmethod
    def parse(cls, line: str) -> "RoundRecord":
        record = json.loads(line)
        accuracy, loss = record.get("accuracy"), record.get("loss")
        loss = math.inf if loss is None or math.isnan(loss) else float(loss)
        return cls(int(record["round"]), None if accuracy is None else float(accuracy), loss)


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
    record = json.loads(line)
    counts = {name: int(record[name]) for name in ("round", "asked", "answered", "lost")}
    refused = {str(client): str(why) for client, why in record["refused"].items()}
    return Heard(**counts, refused=refused, missing=float(record.get("missing", 0.0)))


def read_history(path: Path) -> History:
    """Read what is on record; a line that is being written is left out, and there need be no file."""
    return History(tuple(RoundRecord.parse(line) for line in _whole_lines(path)))


def read_answers(path: Path) -> list[Heard]:
    return [parse_answers(line) for line in _whole_lines(path)]


def add(path: Path, records: Sequence[dict[str, Any]]) -> None:
    """Append a line for each record, which says its round; all lines are on disk when this returns."""
    append(path, "".join(json.dumps(record) + "\n" for record in records))


def cut(path: Path, rounds: int) -> None:
    """Keep the lines of the first `rounds` rounds, which the model has seen; drop half-written lines."""
    if path.exists():
        kept = [line for line in _whole_lines(path) if 0 <= _round_of(line) <= rounds]
        write_safely(path, "".join(kept).encode())


def _round_of(line: str) -> int:
    """Return the line's round; -1 where the line is damaged, as after a crash while it was written."""
    try:
        return int(json.loads(line)["round"])
    except UNREADABLE:
        return -1


def _whole_lines(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    return [line for line in text.splitlines(keepends=True) if line.endswith("\n")]
