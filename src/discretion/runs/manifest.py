"""Manifest of a run folder: the SHA-256 of every file that decides or tells something, compared on reading.

It guards against damage and mix-ups, not against people: who can write to the folder can write a manifest,
too. The ledger is not in it, because it outlives runs and guards its own rows; nor are statements.json, whose
statements are signed, preflight.json, which is of one moment, and report.html, which nothing is read from.
The manifest has a digest of its own content.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from discretion.errors import FolderError, InputError, PlanError
from discretion.files import read_bytes, read_text, sync, write_safely
from discretion.jsonfile import Record, dump, parse
from discretion.runs.folder import RESTORE, RunFolder, alone, read_sealed
from discretion.runs.history import has_stray_line, lines_until

Format = Literal["discretion-manifest/1"]
FORMAT: Format = "discretion-manifest/1"
Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class Manifest(Record):
    """manifest.json"""

    format: Format
    files: dict[str, Digest]  # SHA-256 by file name
    sha256: Digest  # of the manifest without this field


def write_manifest(folder: RunFolder, coming: Mapping[Path, bytes] | None = None) -> None:
    """List the files that are there, and those that are `coming` right after the manifest.

    It is written with the files of a new run and, when a run ends, before its model, so that the folder of a
    finished run always has the manifest of all its files. In between, the checkpoint has the digests of what
    changes in every round, itself included. What the manifest says of an audit stays (`write_audit`).
    """
    content = {path: read_bytes(path) for path in (*folder.made, *folder.results)} | dict(coming or {})
    found = {path.name: _sha256(there) for path, there in content.items() if there is not None}
    audit = _listed(folder).get(folder.audit.name) if folder.manifest.exists() else None
    _write(folder, found | ({folder.audit.name: audit} if audit else {}))


def write_audit(folder: RunFolder, content: bytes) -> None:
    """Keep the audit of a run that no process is executing, in place of an earlier audit.

    Guarantees:
        After a crash at any moment, `audit_of` returns the earlier audit or this one.
    """
    with alone(folder):
        listed = _listed(folder)
        if _is(folder.next_audit, listed.get(folder.audit.name)):  # a crash came before its renaming
            _put_in_place(folder)
        write_safely(folder.next_audit, content)
        _write(folder, listed | {folder.audit.name: _sha256(content)})
        _put_in_place(folder)


def audit_of(folder: RunFolder) -> str | None:
    """Return the text of the audit that the manifest lists; None where it lists none.

    Guarantees:
        An audit that is missing, changed or not listed is refused.
    """
    expected = _listed(folder).get(folder.audit.name)
    again = f"Restore it from a copy, or audit the run again: discretion audit {folder.path}"
    if expected is None:
        if folder.audit.exists():
            raise FolderError(f"found {folder.audit}, which {folder.manifest.name} does not list. {again}")
        return None
    for path in (folder.next_audit, folder.audit):
        if _is(path, expected):
            return read_text(path)
    state = "is damaged or was changed" if folder.audit.exists() else "is missing"
    raise FolderError(
        f"{folder.audit} {state}: expected SHA-256 {expected[:16]}… by {folder.manifest.name}. {again}"
    )


def compare_file(path: Path) -> None:
    """Raise `FolderError` where a file is one that a run was made with, but not as it was written."""
    folder = RunFolder(path.parent)
    if folder.about.is_file() and path in folder.made:
        _require(path, _listed(folder)[path.name])


def compare(folder: RunFolder, audited: bool = True) -> None:
    """Raise `FolderError` unless every file of a run folder is the one that was written there.

    Guarantees:
        Of a finished run every file but ledger and report is compared; of another, the files that it was made
        with, the checkpoint, the lines of history and answers up to the checkpoint's round, and the line of
        a round in which it stopped. The audit is compared, too, unless `audited` is false: then it may be
        made anew.
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
    if audited:
        audit_of(folder)
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
        compare(folder, audited=False)
    elif ended:
        raise FolderError(f"{folder.model} is missing, which {folder.manifest.name} lists. {RESTORE}")
    if has_stray_line(folder.answers, folder.history):
        raise FolderError(
            f"{folder.answers} is damaged or was changed: it has a line of a round that is not in "
            f"{folder.history.name}, without the seal of a round in which a run stopped. {RESTORE}"
        )


def _listed(folder: RunFolder) -> dict[str, str]:
    if not folder.manifest.exists():
        raise FolderError(
            f"{folder.path} has no {folder.manifest.name}: the file was lost, or the folder was made by an "
            "earlier version of Discretion. Versions before 1.0 do not read each other's folders: use the "
            f"version that {folder.about.name} names, or start a new run."
        )
    try:
        text = read_text(folder.manifest)
        listed = parse(text, Manifest, folder.manifest.name).files
    except (InputError, PlanError) as problem:
        raise FolderError(f"cannot read {folder.manifest}: {problem}. {RESTORE}") from None
    if text != _text(listed):
        raise FolderError(
            f"{folder.manifest} is damaged or was changed: its content has not the SHA-256 that is in it. "
            f"{RESTORE}"
        )
    known = {path.name for path in (*folder.made, *folder.results, folder.audit)}
    needed = known - {path.name for path in (folder.key, *folder.results, folder.audit)}
    if odd := sorted((set(listed) - known) | (needed - set(listed))):
        raise FolderError(
            f"{folder.manifest} is damaged or was changed: it must list the files of a run, and each of "
            f"{', '.join(sorted(needed))}; wrong are {', '.join(map(ascii, odd))}. {RESTORE}"
        )
    return listed


def _require(path: Path, expected: str) -> None:
    content = read_bytes(path)
    if content is None:
        raise FolderError(f"{path} is missing, which manifest.json lists. {RESTORE}")
    if (found := _sha256(content)) != expected:
        raise FolderError(
            f"{path} is damaged or was changed: found SHA-256 {found[:16]}…, expected {expected[:16]}… by "
            f"manifest.json. {RESTORE}"
        )


def _write(folder: RunFolder, files: Mapping[str, str]) -> None:
    write_safely(folder.manifest, _text(files).encode())


def _text(files: Mapping[str, str]) -> str:
    """Return the manifest of files with these digests, with a digest of its own."""
    content = {"format": FORMAT, "files": dict(files)}
    return dump(content | {"sha256": _sha256(dump(content).encode())})


def _is(path: Path, expected: str | None) -> bool:
    return path.exists() and _sha256(path.read_bytes()) == expected


def _put_in_place(folder: RunFolder) -> None:
    folder.next_audit.replace(folder.audit)
    sync(folder.path)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
