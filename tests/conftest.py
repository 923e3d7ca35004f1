"""What every test can have: a small run of scikit-learn's digits, the command line, no compiled code."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from discretion import _native
from discretion.runs.config import read
from discretion.runs.execute import execute
from discretion.runs.folder import RunFolder
from discretion.runs.prepare import prepare
from support.commands import Cli, runner
from support.small_run import SMALL

# the same examples in every run: a failure can be repeated, and a green run says what was tried
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


@pytest.fixture
def small_config(tmp_path: Path) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(SMALL, encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of that run, finished: to be read, or copied."""
    home = tmp_path_factory.mktemp("small")
    (home / "config.toml").write_text(SMALL, encoding="utf-8")
    config, folder = read(home / "config.toml"), RunFolder(home / "run")
    execute(prepare(config, folder))
    return folder.path


@pytest.fixture
def discretion(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Cli:
    """The command line in a terminal of 80 columns."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return runner(monkeypatch, capsys)


@pytest.fixture
def without_compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """As if no compiler had been there."""
    monkeypatch.setattr(_native, "PLACE", tmp_path)
    _native.extension.cache_clear()
    yield
    _native.extension.cache_clear()
