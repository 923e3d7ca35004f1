"""Brings the files of a data set into the cache folder, whole and verified or not at all."""

import hashlib
import json
import os
import shutil
import tarfile
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from discretion.errors import DataError
from discretion.tasks.recipes import Recipe
from discretion.tasks.sources import ByHand, Progress, Source, Unavailable, short, unpack

Report = Callable[[str], None]

_STAMP = "verified.json"


def cache_folder() -> Path:
    chosen = os.environ.get("DISCRETION_DATA") or "~/.cache/discretion"
    return Path(chosen).expanduser().absolute()


def ensure(
    recipe: Recipe,
    *,
    offline: bool = False,
    report: Report | None = None,
    progress: Progress | None = None,
) -> tuple[Path, str]:
    """The folder with the verified contents, and a sentence on where they came from.

    Guarantees:
        A file whose sha256 is not the pinned one is never installed.
        A download that fails or is killed leaves the data set's folder as it was.
    """
    folder = cache_folder() / recipe.name
    first_source = _verified_source(folder, recipe)
    if first_source is not None:
        return folder, f"cache, first from {first_source}"
    sources: tuple[Source, ...] = () if offline else recipe.sources
    if folder.is_dir() and any(folder.iterdir()):
        sources = (ByHand(folder), *sources)
    tried: list[tuple[str, str]] = []
    for source in sources:
        if report is not None:
            before = f"{tried[-1][0]}: {tried[-1][1]}; " if tried else ""
            report(f"{recipe.name}: {before}trying {source.name}")
        try:
            with _work_folder(recipe.name) as work:
                source.bring(work, progress)
                _install(_collected(work, recipe, source.name), folder)
        except (Unavailable, OSError) as reason:
            tried.append((source.name, short(str(reason))))
        else:
            return folder, source.name
    raise DataError(_failure(recipe, folder, tried, offline))


def _failure(recipe: Recipe, folder: Path, tried: list[tuple[str, str]], offline: bool) -> str:
    lines = [f"{recipe.name}: the data set could not be had. Tried:"] if tried else []
    lines += [f"  {name}: {reason}" for name, reason in tried]
    if offline:
        lines.append(f"{recipe.name}: not in the cache folder, and nothing may be downloaded.")
    lines.append(f"To bring it by hand, put {recipe.by_hand} into {folder} and try again.")
    return "\n".join(lines)


def _verified_source(folder: Path, recipe: Recipe) -> str | None:
    """Where verified contents came from; None if a file is missing or not what was pinned.

    A file is hashed again only when its size or time differ from when it was last verified.
    """
    try:
        stamp = json.loads((folder / _STAMP).read_text())
        source, seen = str(stamp["source"]), dict(stamp["files"])
    except (OSError, ValueError, KeyError, TypeError):
        source, seen = "files put there by hand", {}
    fresh = False
    for content in recipe.contents:
        path = folder / content.name
        if not path.is_file() or path.stat().st_size != content.size:
            return None
        if seen.get(content.name) != [path.stat().st_mtime_ns, content.sha256]:
            if _sha256(path) != content.sha256:
                return None
            fresh = True
    if fresh:
        with suppress(OSError):  # a cache that cannot be written is still good to read
            _write_stamp(folder, recipe, source)
    return source


def _write_stamp(folder: Path, recipe: Recipe, source: str) -> None:
    files = {c.name: [(folder / c.name).stat().st_mtime_ns, c.sha256] for c in recipe.contents}
    text = json.dumps({"source": source, "files": files}, indent=1)
    part = folder / f".{_STAMP}.{os.getpid()}"
    part.write_text(text + "\n")
    part.replace(folder / _STAMP)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _work_folder(name: str) -> Iterator[Path]:
    """A folder next to the data set's own, so that the last step is one rename."""
    root = cache_folder()
    try:
        root.mkdir(parents=True, exist_ok=True)
        for left in root.glob(".part-*"):  # by a download that was killed over a day ago
            if time.time() - left.stat().st_mtime > 86400:
                shutil.rmtree(left, ignore_errors=True)
        work = Path(tempfile.mkdtemp(prefix=f".part-{name}-", dir=root))
    except OSError as error:
        raise DataError(
            f"{root}: the cache folder cannot be written: {error.strerror}. "
            "Set DISCRETION_DATA to a folder that can."
        ) from None
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _collected(work: Path, recipe: Recipe, source: str) -> Path:
    """A folder with exactly the recipe's contents, each verified, and their stamp."""
    wanted = {content.name for content in recipe.contents}
    try:
        unpack(work, wanted)
        if recipe.convert is not None:
            recipe.convert(work)
    except (OSError, ValueError, EOFError, zlib.error, tarfile.TarError, zipfile.BadZipFile) as bad:
        raise Unavailable(f"what it gave cannot be unpacked ({short(str(bad))})") from None
    except DataError as bad:
        raise Unavailable(short(str(bad))) from None
    ready = work / ".ready"
    ready.mkdir()
    for content in recipe.contents:
        found = sorted(path for path in work.rglob(content.name) if path.is_file())
        if not found:
            raise Unavailable(f"{content.name} is missing")
        hashes = {_sha256(path): path for path in found}
        if content.sha256 not in hashes:
            raise Unavailable(
                f"{content.name} is not the published file: sha256 {min(hashes)[:12]}..., "
                f"expected {content.sha256[:12]}..."
            )
        hashes[content.sha256].rename(ready / content.name)
    _write_stamp(ready, recipe, source)
    return ready


def _install(ready: Path, folder: Path) -> None:
    try:
        ready.rename(folder)
    except OSError:  # the folder is there already: file by file, each verified, the stamp last
        for path in sorted(ready.iterdir(), key=lambda path: path.name == _STAMP):
            path.replace(folder / path.name)
