"""What a run tells round by round, history and answers: lines of JSON, added, read, and cut after a crash."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from discretion.files import append, write_safely


def add(path: Path, records: Sequence[dict[str, Any]]) -> None:
    """Each has a line and says its round; all are on disk when this returns."""
    append(path, "".join(json.dumps(record) + "\n" for record in records))


def read(path: Path) -> list[dict[str, Any]]:
    """What is on record; a line that is being written is left out, and there need be none."""
    return [json.loads(line) for line in _whole_lines(path)]


def loss_in(record: Mapping[str, Any]) -> float:
    """Infinite where training diverged: then there is none on record, or none that is a number."""
    loss = record.get("loss")
    return math.inf if loss is None or math.isnan(loss) else float(loss)


def cut(path: Path, rounds: int) -> None:
    """Keep the lines of so many rounds, those that the model has; half-written lines go, too."""
    if path.exists():
        kept = [line for line in _whole_lines(path) if 0 <= _round_of(line) <= rounds]
        write_safely(path, "".join(kept).encode())


def _round_of(line: str) -> int:
    """-1 where it cannot be read, as after a crash in the middle of a line."""
    try:
        return int(json.loads(line)["round"])
    except (KeyError, TypeError, ValueError):
        return -1


def _whole_lines(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    return [line for line in text.splitlines(keepends=True) if line.endswith("\n")]
