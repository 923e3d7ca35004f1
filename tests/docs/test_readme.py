"""What the README shows is what happens, and it stays short."""

import re
import subprocess
import sys
from pathlib import Path

from console import POINTS

from discretion.methods import METHODS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_python_example_prints_what_it_says(tmp_path: Path) -> None:
    example = re.search(r"```python\n(.*?)```\n\n```\n(.*?)```", README, re.S)
    assert example
    code, shown = example.groups()
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    pattern = r"strictest budget 10, spent (\S+)\naccuracy (\S+)% after 40 rounds\n"
    found, expected = (re.fullmatch(pattern, text) for text in (done.stdout, shown))
    assert found and expected
    assert float(found[1]) == float(expected[1]) <= 10
    assert abs(float(found[2]) - float(expected[2])) <= POINTS  # machines differ: docs/engine.md says why
    other = code.replace('run="first"', 'run="second"')
    again = subprocess.run([sys.executable, "-c", other], cwd=tmp_path, capture_output=True, text=True)
    assert "BudgetError" in again.stderr and "refuse this plan" in again.stderr


def test_it_is_short_and_has_a_picture_and_both_commands() -> None:
    assert len(README.splitlines()) < 150
    for path in re.findall(r"\]\((?!http)([^)#]+)", README):
        assert (ROOT / path).exists(), path
    assert "![" in README and "\nmake demo\n" in README and "\nmake test\n" in README


def test_the_number_of_methods_is_right() -> None:
    texts = [README, *(path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md"))]
    texts.append((ROOT / "docs" / "assets" / "flow.svg").read_text(encoding="utf-8"))
    said = [int(n) for text in texts for n in re.findall(r"\b(\d+)\*?\*? (?:methods|planners)\b", text)]
    said += [int(n) for n in re.findall(r"one of (\d+)<", texts[-1])]
    assert len(said) >= 4 and set(said) == {len(METHODS)}


def test_ci_runs_the_test_command_of_the_readme() -> None:
    script = (ROOT / ".ci" / "run").read_text().splitlines()
    assert script[-1] == "make test" and "make test" in README
