"""A small run that every test can have: the digits inside scikit-learn, twenty clients."""

from pathlib import Path

import pytest

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
server_momentum = 0.5
"""


@pytest.fixture
def small_config(tmp_path: Path) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(SMALL, encoding="utf-8")
    return path
