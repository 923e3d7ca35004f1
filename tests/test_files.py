"""Files: who may read keys and drafts, from their first moment on."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from discretion.errors import InputError
from discretion.files import write_private, write_safely
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
