"""Four hospitals with a table each, a server with a table for tests, and their settings, in one folder."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import tomli_w

from discretion.clients.messages import write_key
from support.guard_process import Process

NAMES = tuple(f"h{i}" for i in range(4))
SETTINGS = """
seed = 5
[population]
csv = "people.csv"
[data]
name = "csv"
path = "test.csv"
[model]
name = "linear"
[plan]
method = "spend_as_you_go"
rounds = 3
rate = 0.6
[train]
threads = 1
[clients]
where = "guards"
addresses = "addresses.toml"
key = "operator.key"
"""


def write_hospitals(folder: Path, labels: list[str], **policy: object) -> None:
    """Write all files into a folder; every GUARD.toml declares these labels."""
    draw = np.random.default_rng(0)
    public = write_key(folder / "operator.key")
    (folder / "config.toml").write_text(SETTINGS)
    _table(folder / "test.csv", 100, draw)
    rows = [f"{name},8,1e-5,60" for name in NAMES]
    (folder / "people.csv").write_text("\n".join(["client,epsilon,delta,size", *rows]) + "\n")
    sockets = {name: f"{name}/guard/guard.sock" for name in NAMES}
    (folder / "addresses.toml").write_text(tomli_w.dumps(sockets))
    for name in NAMES:
        (folder / name).mkdir()
        _table(folder / name / "records.csv", 60, draw)
        record = {
            **{"client": name, "epsilon": 8.0, "delta": 1e-5, "against": "clients", "trust_server": True},
            **{"size": 60, "test_seed": 5, "operators": {"us": public}, "models": {"linear": ""}},
            "data": {"path": "records.csv", "labels": labels},
            **policy,
        }
        (folder / name / "GUARD.toml").write_text(tomli_w.dumps(record))


def _table(path: Path, records: int, draw: np.random.Generator) -> None:
    measured = draw.normal(size=(records, 3))
    ill = measured @ [1.0, 2.0, -1.0] > 0
    rows = (
        f"{'ill' if sick else 'well'},{a:.4f},{b:.4f},{c:.4f}"
        for sick, (a, b, c) in zip(ill, measured, strict=True)
    )
    path.write_text("\n".join(["label,age,bp,chol", *rows]) + "\n")


@contextmanager
def guarded(folder: Path, *names: str) -> Iterator[None]:
    """Start the guards of these hospitals, and end them."""
    guards = [Process(folder / name / "GUARD.toml") for name in names]
    try:
        for guard in guards:
            guard.ready()
        yield
    finally:
        for guard in guards:
            guard.end()
