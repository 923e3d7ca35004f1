"""What every test can have: a small run of the digits inside scikit-learn, or no compiled code."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from discretion import extension

# the same examples in every run: a failure can be repeated, and a green run says what was tried
settings.register_profile("repeatable", derandomize=True)
settings.load_profile("repeatable")

SMALL = """
seed = 3
[population]
clients = 20
budgets = "groups:4,8,16"
[data]
name = "digits"
[model]
name = "mlp"
[plan]
rounds = 8
rate = 0.5
clip = 0.5
[train]
threads = 1
evaluate_every = 1
server_momentum = 0.5
"""


@pytest.fixture
def small_config(tmp_path: Path) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(SMALL, encoding="utf-8")
    return path


@pytest.fixture
def without_compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """As if no compiler had been there."""
    monkeypatch.setattr(extension, "PLACE", tmp_path)
    extension.extension.cache_clear()
    yield
    extension.extension.cache_clear()
