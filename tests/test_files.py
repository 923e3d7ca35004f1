"""Files: who may read keys and drafts, from their first moment on; what is said where a disk fails."""

import errno
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from discretion.errors import InputError
from discretion.files import append, locked, make_folder, read_bytes, write_private, write_safely
from discretion.flower import cluster
from support.commands import discretion


@pytest.fixture(params=[0o000, 0o022])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.fixture
def modes(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Permissions of each file at the moment when its content has been written; by name."""
    found: dict[str, int] = {}
    fsync = os.fsync

    def look(number: int) -> None:
        mode = os.fstat(number).st_mode
        if stat.S_ISREG(mode):
            found[Path(os.readlink(f"/proc/self/fd/{number}")).name] = stat.S_IMODE(mode)
        fsync(number)

    monkeypatch.setattr(os, "fsync", look)
    return found


def test_every_key_is_private_from_its_first_moment(
    tmp_path: Path, umask: int, modes: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert discretion("key", "operator.key") == 0
    (tmp_path / "net").mkdir()
    cluster.write(tmp_path / "net", ("a",), 12345)
    (tmp_path / "config.toml").write_text(SETTINGS)
    words = ("-c", "train.randomness=cryptographic", "--no-report", "--json")
    assert discretion("run", "config.toml", "--out", "run", *words) == 0
    keys = {"operator.key", "server.key", "key", ".key"}
    assert keys <= modes.keys()
    assert {modes[name] for name in modes if "key" in name} == {0o600}


SETTINGS = """
[population]
clients = 3
[data]
name = "digits"
records = 20
[model]
name = "linear"
[plan]
rounds = 1
"""


def test_a_private_file_replaces_none(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "there").write_text("old")
    for name in ("link", "there", "none/inside"):
        with pytest.raises(InputError, match="cannot write"):
            write_private(tmp_path / name, b"new")
    assert (tmp_path / "there").read_text() == "old" and not (tmp_path / "elsewhere").exists()


def test_a_draft_can_be_read_by_no_more_people_than_the_file(
    tmp_path: Path, umask: int, modes: dict[str, int]
) -> None:
    path = tmp_path / "answers.jsonl"
    path.touch(mode=0o600)
    (tmp_path / "answers.jsonl.part").write_text("left by a crash, for everybody")
    write_safely(path, b"new")
    assert modes["answers.jsonl.part"] == stat.S_IMODE(path.stat().st_mode) == 0o600
    write_safely(tmp_path / "public", b"new")
    assert modes["public.part"] == 0o666 & ~umask


WRITERS: dict[str, Callable[[Path], object]] = {
    "replace": lambda path: write_safely(path, b"new"),
    "private": lambda path: write_private(path, b"new"),
    "append": lambda path: append(path, "new"),
    "folder": make_folder,
}


@pytest.mark.parametrize("way", WRITERS)
def test_a_failing_disk_is_named(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(number: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(InputError, match=rf"cannot (write|make the folder) {tmp_path}/a: Input/output error"):
        WRITERS[way](tmp_path / "a")


def test_what_cannot_be_read_or_locked_is_named_and_what_is_missing_is_none(tmp_path: Path) -> None:
    assert read_bytes(tmp_path / "missing") is None
    with pytest.raises(InputError, match=f"cannot read {tmp_path}: Is a directory"):
        read_bytes(tmp_path)
    with pytest.raises(InputError, match=f"cannot write {tmp_path}: Is a directory"), locked(tmp_path, ""):
        pass


def test_a_folder_is_made_with_those_above_it_and_every_name_is_flushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda number: flushed.append(os.readlink(f"/proc/self/fd/{number}")))
    make_folder(tmp_path / "a" / "b", 0o700)
    assert flushed == [str(tmp_path), str(tmp_path / "a")]
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700
    make_folder(tmp_path / "a" / "b")  # a crash may have come before the name was flushed
    assert flushed[2:] == [str(tmp_path / "a")]
