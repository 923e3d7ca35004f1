"""What Flower is given to run: two lines of code that name the installed apps, and a run folder."""

import subprocess
import sys
from pathlib import Path

from discretion.errors import InputError

PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "discretion-run"
version = "1.0.0"
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "discretion"

[tool.flwr.app.components]
serverapp = "discretion_run.server:app"
clientapp = "discretion_run.client:app"

[tool.flwr.app.config]
folder = ""
"""


def write(path: Path) -> None:
    """The project, in a folder of its own."""
    package = path / "discretion_run"
    package.mkdir(parents=True, exist_ok=True)
    (path / "pyproject.toml").write_text(PROJECT, encoding="utf-8")
    (package / "__init__.py").write_text("", encoding="utf-8")
    for name, module in (("server", "server"), ("client", "relay")):  # Flower looks for an assignment
        code = f"from discretion.flower import {module}\n\napp = {module}.app\n"
        (package / f"{name}.py").write_text(code, encoding="utf-8")


def submit(folder: Path, connection: str) -> None:
    """Run what is left of a prepared run on a SuperLink, by its name in Flower's config.toml, and wait."""
    write(folder / "flower")
    flwr = Path(sys.executable).with_name("flwr")
    if not flwr.exists():
        raise InputError("running on Flower needs it: pip install 'discretion[flower]'")
    settings = f'folder="{folder.absolute()}"'
    words = [str(flwr), "run", str(folder / "flower"), connection, "--stream", "--run-config", settings]
    if subprocess.run(words).returncode != 0 or not (folder / "model.safetensors").exists():
        raise InputError(f"Flower did not finish the run in {folder}; go on with --resume when it can")
