"""Files that are whole after any crash: written beside, put on disk, then given their name; and read."""

import os
import shutil
from pathlib import Path

from discretion.errors import InputError


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as problem:
        raise InputError(f"cannot read {path}: {problem}") from None
    except OSError as problem:
        raise InputError(f"cannot read {path}: {problem.strerror}") from None


def write_safely(path: Path, content: bytes) -> None:
    """Old content or new, never half: on disk before it gets its name. Who may read it stays as it was."""
    draft = path.with_name(path.name + ".part")
    with draft.open("wb") as file:
        if path.exists():
            shutil.copymode(path, draft)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    sync(path.parent)


def sync(folder: Path) -> None:
    """Make the names in a folder durable: without it a rename may be lost with the power."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def append(path: Path, line: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(line)
        file.flush()
        os.fsync(file.fileno())
