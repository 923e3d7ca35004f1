"""The small run that many tests share: its settings, its number of rounds, what a folder holds."""

from pathlib import Path

ROUNDS = 8
SMALL = f"""
seed = 3
[population]
clients = 20
budgets = "groups:4,8,16"
[data]
name = "digits"
[model]
name = "mlp"
[plan]
rounds = {ROUNDS}
rate = 0.5
clip = 0.5
[train]
threads = 1
evaluate_every = 1
server_momentum = 0.5
"""


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Return each file's time of change and bytes, by path."""
    found = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in found}
