"""What the README shows is what happens."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_python_example_prints_what_it_says(tmp_path: Path) -> None:
    code, shown = re.search(r"```python\n(.*?)```\n\n```\n(.*?)```", README, re.S).groups()
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(shown.splitlines()) == 2
    pattern = r"strictest budget 10, spent (\S+)\naccuracy (\S+)% after 40 rounds\n"
    (spent, accuracy), (spent_shown, accuracy_shown) = (
        map(float, re.fullmatch(pattern, text).groups()) for text in (done.stdout, shown)
    )
    assert spent == spent_shown <= 10
    assert abs(accuracy - accuracy_shown) < 3  # arithmetic of another machine may differ in the last bits


def test_ci_runs_the_test_command_of_the_readme() -> None:
    script = (ROOT / ".ci" / "run").read_text().splitlines()
    assert script[-1] == "make test" and "make test" in README
