"""A small run that every test can have: the digits inside scikit-learn, twenty clients."""

from pathlib import Path

import pytest
from hypothesis import settings

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
