"""Manifest of a run folder: the SHA-256 of every file that decides or tells something, compared on reading.

It guards against damage and mix-ups, not against people: who can write to the folder can write a manifest,
too. The ledger is not in it, because it outlives runs and guards its own rows; nor is report.html, which
nothing is read from.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from discretion.errors import FolderError, InputError, PlanError
from discretion.files import read_text, write_safely
from discretion.jsonfile import Record, dump, parse
from discretion.runs.folder import RESTORE, RunFolder, read_sealed
from discretion.runs.history import lines_until

Format = Literal["discretion-manifest/1"]
FORMAT: Format = "discretion-manifest/1"


class Manifest(Record):
    """manifest.json"""

    format: Format
    files: dict[str, Annotated[str, Field(pattern="^[0-9a-f]{64}$")]]  # SHA-256 by file name


def write_manifest(folder: RunFolder, coming: Mapping[Path, bytes] | None = None) -> None:
    """List the files that are there, and those that are `coming` right after the manifest.

    It is written twice: with the files of a new run; and, when a run ends, before its model, so that the
    folder of a finished run always has the manifest of all its files. In between, the checkpoint has the
    digests of what changes in every round, itself included.
    """
    there = {path: path.read_bytes() for path in (*folder.made, *folder.results) if path.exists()}
    found = {path.name: _sha256(content) for path, content in (there | dict(coming or {})).items()}
    write_safely(folder.manifest, dump({"format": FORMAT, "files": found}).encode())


def compare(folder: RunFolder) -> None:
    """Raise `FolderError` unless every file of a run folder is the one that was written there.

    Guarantees:
        Of a finished run every file but ledger and report is compared; of another, the files that it was made
        with, the checkpoint, and the lines of history and answers up to the checkpoint's round.
        A folder as a crash at any moment leaves it passes, and so does one that is being run.
    """
    finished = folder.model.exists()  # looked for before the manifest is read, which is written first
    listed = _listed(folder)
    for path in (*folder.made, *(folder.results if finished else ())):
        expected = listed.get(path.name)
        if expected is None and path.exists():
            raise FolderError(f"found {path}, which {folder.manifest.name} does not list. {RESTORE}")
        if expected is not None:
            _require(path, expected)
    if not finished:
        _compare_rounds(folder, ended=folder.model.name in listed)


def _compare_rounds(folder: RunFolder, ended: bool) -> None:
    sealed = read_sealed(folder)
    if sealed is not None:
        for path in (folder.history, folder.answers):
            if _sha256(lines_until(path, sealed.state.round)) != sealed.digests.get(path.name):
                raise FolderError(
                    f"{path} is damaged or was changed: its lines up to round {sealed.state.round} are not "
                    f"those whose SHA-256 is in {folder.checkpoint.name}. {RESTORE}"
                )
    elif folder.model.exists():  # the run has ended meanwhile
        compare(folder)
    elif ended:
        raise FolderError(f"{folder.model} is missing, which {folder.manifest.name} lists. {RESTORE}")


def _listed(folder: RunFolder) -> dict[str, str]:
    if not folder.manifest.exists():
        raise FolderError(
            f"{folder.path} has no {folder.manifest.name}: the file was lost, or the folder was made by an "
            "earlier version of Discretion. Versions before 1.0 do not read each other's folders: use the "
            f"version that {folder.about.name} names, or start a new run."
        )
    try:
        listed = parse(read_text(folder.manifest), Manifest, folder.manifest.name).files
    except (InputError, PlanError) as problem:
        raise FolderError(f"cannot read {folder.manifest}: {problem}. {RESTORE}") from None
    known = {path.name for path in (*folder.made, *folder.results)}
    needed = known - {path.name for path in (folder.key, *folder.results)}
    if odd := sorted((set(listed) - known) | (needed - set(listed))):
        raise FolderError(
            f"{folder.manifest} is damaged or was changed: it must list the files of a run, and each of "
            f"{', '.join(sorted(needed))}; wrong are {', '.join(map(ascii, odd))}. {RESTORE}"
        )
    return listed


def _require(path: Path, expected: str) -> None:
    try:
        found = _sha256(path.read_bytes())
    except FileNotFoundError:
        raise FolderError(f"{path} is missing, which manifest.json lists. {RESTORE}") from None
    if found != expected:
        raise FolderError(
            f"{path} is damaged or was changed: found SHA-256 {found[:16]}…, expected {expected[:16]}… by "
            f"manifest.json. {RESTORE}"
        )


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
