"""Files: crash-safe writing (in full under another name, flushed, then renamed), reading, locks."""

import fcntl
import hashlib
import os
import shutil
import stat
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import Any

from discretion.errors import ConfigError, InputError

AnyPath = str | os.PathLike[str]


@contextmanager
def trying_to(what: str, path: Path) -> Iterator[None]:
    """Raise `InputError` with the reason where the operating system cannot do something with a file."""
    try:
        yield
    except OSError as problem:
        raise InputError(f"cannot {what} {path}: {problem.strerror}") from None


def read_bytes(path: Path) -> bytes | None:
    """Return the content of a file, None where there is none; raise `InputError` where it cannot be read."""
    with trying_to("read", path), suppress(FileNotFoundError):
        return path.read_bytes()
    return None


def read_text(path: Path) -> str:
    """Return the text of a UTF-8 file; raise `InputError` with the reason where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as problem:
        raise InputError(f"cannot read {path}: {problem}") from None
    except OSError as problem:
        raise InputError(f"cannot read {path}: {problem.strerror}") from None


def read_toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file; raise `ConfigError` with the reason where it cannot be read."""
    try:
        return tomllib.loads(path.read_bytes().decode())  # a lone carriage return is not the end of a line
    except OSError as problem:
        raise ConfigError(f"cannot read {path}: {problem.strerror}") from None
    except RecursionError:
        raise ConfigError(f"{path} is not valid TOML: found lists nested too deeply") from None
    except ValueError as problem:  # not TOML, not UTF-8, or a number of thousands of digits
        raise ConfigError(f"{path} is not valid TOML: {problem}") from None


def sha256(path: Path) -> str:
    """Return the SHA-256 digest of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_safely(path: Path, content: bytes) -> None:
    """Replace a file so that after a crash it has its old content or the new one, never a part of either.

    The file keeps its permissions, and no draft of it can be read by more people than the file.
    """
    draft = path.with_name(path.name + ".part")
    with trying_to("write", path):
        draft.unlink(missing_ok=True)  # left by a crash
        mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o666
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            if path.exists():
                shutil.copymode(path, draft)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        sync(path.parent)


def write_private(path: Path, content: bytes) -> None:
    """Write a new file, such as a key, durably; raise `InputError` where there is a file of this name.

    Guarantees:
        From its first moment the file can be read and written by its owner only, whatever the umask.
    """
    with trying_to("write", path):
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(number, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(number)
        sync(path.parent)


def make_folder(path: Path, mode: int = 0o777) -> None:
    """Make a folder, and those above it, durably, unless it is there.

    Guarantees:
        What is durable in the folder is not lost with its name when the power fails.
    """
    with trying_to("make the folder", path):
        if not path.parent.is_dir():
            make_folder(path.parent)
        path.mkdir(mode, exist_ok=True)
        with suppress(PermissionError):  # of a folder that somebody else made there
            sync(path.parent)


def sync(folder: Path) -> None:
    """Flush a folder's file names to disk: a rename may otherwise be lost when the power fails."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


@contextmanager
def locked(path: Path, in_use: str) -> Iterator[FileIO]:
    """Hold a file's lock, or raise `InputError` where another process does; it ends with this process."""
    with trying_to("write", path):
        lock = path.open("ab", buffering=0)
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(in_use) from None
        yield lock


def append(path: Path, line: str) -> None:
    """Append text to a file and flush it to disk."""
    with trying_to("write", path), path.open("a", encoding="utf-8") as file:
        file.write(line)
        file.flush()
        os.fsync(file.fileno())
