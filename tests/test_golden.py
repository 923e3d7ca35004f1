"""What commands print and write is what tests/golden has on record; support/golden.py writes it anew."""

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support import golden
from support.canonical import canonical

PRECISE = 1e-9  # other processors round the last bits of a plan's numbers differently
NORM = 1e-6  # and those of float32 sums


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("golden")
    subprocess.run([sys.executable, golden.__file__, str(folder)], check=True)
    return folder


def differences(found: Any, expected: Any, place: str = "") -> Iterator[str]:
    if isinstance(expected, dict) and isinstance(found, dict):
        for key in sorted(set(expected) | set(found)):
            yield from differences(found.get(key), expected.get(key), f"{place}.{key}")
    elif isinstance(expected, list) and isinstance(found, list) and len(found) == len(expected):
        for number, (one, other) in enumerate(zip(found, expected, strict=True)):
            yield from differences(one, other, f"{place}[{number}]")
    elif isinstance(expected, float) and isinstance(found, float):
        precise = NORM if ".norms." in place else PRECISE
        if not math.isclose(found, expected, rel_tol=precise, abs_tol=1e-300):
            yield f"{place}: {found} for {expected}"
    elif found != expected:
        yield f"{place}: {found!r} for {expected!r}"


def test_every_golden_file_is_made(made: Path) -> None:
    names = {path.relative_to(made) for path in made.rglob("*") if path.is_file()}
    kept = {path.relative_to(golden.GOLDEN) for path in golden.GOLDEN.rglob("*") if path.is_file()}
    assert names == {path for path in kept if path.parts[0] != "folders"}


@pytest.mark.parametrize("path", sorted((golden.GOLDEN / "methods").iterdir()), ids=lambda path: path.stem)
def test_plans_certificates_ledgers_and_models_of_each_method(path: Path, made: Path) -> None:
    found, expected = (
        json.loads((folder / "methods" / path.name).read_text(encoding="utf-8"))
        for folder in (made, golden.GOLDEN)
    )
    exact = [found["run_plan"] == expected["run_plan"]]  # as on the processor that wrote the golden files
    exact += [found["plans"][mode]["plan"] == expected["plans"][mode]["plan"] for mode in expected["plans"]]
    if not all(exact):
        for each in (found, expected):
            for digested in (each["model"], *each["plans"].values()):
                del digested["sha256"]
    assert not list(differences(found, expected))


@pytest.mark.parametrize("path", sorted(golden.GOLDEN.glob("*.*")), ids=lambda path: path.name)
def test_pages_and_texts(path: Path, made: Path) -> None:
    found, expected = ((folder / path.name).read_text(encoding="utf-8") for folder in (made, golden.GOLDEN))
    if path.suffix == ".html":
        found, expected = canonical(found), canonical(expected)
    assert found == expected
