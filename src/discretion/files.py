"""Crash-safe files: written in full under another name, flushed to disk, then renamed."""

import os
import shutil
from pathlib import Path

from discretion.errors import InputError

AnyPath = str | os.PathLike[str]


def read_text(path: Path) -> str:
    """Return the text of a UTF-8 file; raise `InputError` with the reason where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as problem:
        raise InputError(f"cannot read {path}: {problem}") from None
    except OSError as problem:
        raise InputError(f"cannot read {path}: {problem.strerror}") from None


def write_safely(path: Path, content: bytes) -> None:
    """Replace a file so that after a crash it has its old content or the new one, never a part of either.

    The file keeps its permissions.
    """
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
    """Flush a folder's file names to disk: a rename may otherwise be lost when the power fails."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def append(path: Path, line: str) -> None:
    """Append text to a file and flush it to disk."""
    with path.open("a", encoding="utf-8") as file:
        file.write(line)
        file.flush()
        os.fsync(file.fileno())
