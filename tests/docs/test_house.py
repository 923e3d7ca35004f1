"""The pages for contributors and reviewers fit the code: map, import rule, line counts, versions, paths."""

import re
import tomllib
from pathlib import Path

import pytest
import reviewing
import yaml

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "discretion"
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
REVIEWING = reviewing.PAGE.read_text(encoding="utf-8")
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
MOST_TO_READ = 2_560  # lines of code of what every privacy reviewer should read


def test_line_counts_are_todays() -> None:
    assert reviewing.counted(REVIEWING) == REVIEWING, "run: python scripts/site/reviewing.py"


def test_there_is_little_to_read_and_nothing_twice() -> None:
    files = [found["file"] for line in REVIEWING.splitlines() if (found := reviewing.ROW.match(line))]
    assert len(files) == len(set(files)) > 20
    totals = re.findall(r"\*\*together\*\* \| ([\d,]+) \| ([\d,]+)", REVIEWING)
    assert len(totals) == 3 and int(totals[0][1].replace(",", "")) <= MOST_TO_READ


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ('"""Doc."""\n\nx = 1  # why\n', 1),
        ('# why\ndef f() -> str:\n    """Doc,\n    more."""\n    return """a\n    b"""\n', 3),
        ("x = (\n    1,\n\n    # why\n    2,\n)\n", 4),
    ],
)
def test_code_is_counted_without_blank_lines_comments_and_docstrings(text: str, code: int) -> None:
    assert reviewing.code_lines(text) == code


def test_the_map_has_every_folder() -> None:
    folders = {path.parent.name for path in SOURCE.glob("*/*.py")}
    assert {name for name in re.findall(r"^\| `(\w+)` \|", CONTRIBUTING, re.M)} == folders
    leaves = {path.stem for path in SOURCE.glob("*.py") if not path.stem.startswith("__")}
    beside = re.search(r"The few modules beside these folders \((.*?)\)", CONTRIBUTING, re.S)
    assert beside and set(re.findall(r"`(\w+)`", beside[1])) == leaves


def test_the_import_rule_is_the_one_that_is_checked() -> None:
    checked = (ROOT / "tests" / "test_architecture.py").read_text(encoding="utf-8")
    rules = [re.search(rf"^{name} = \[(.*?)\]", checked, re.M | re.S) for name in ("LEAVES", "ORDER")]
    lines = [line for rule in rules if rule for line in re.findall(r'"([^"]+)"', rule[1])]
    shown = re.search(r"\*\*The import rule\.\*\*.*?```\n(.*?)```", CONTRIBUTING, re.S)
    assert shown and shown[1].splitlines() == lines


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "SECURITY.md", "docs/reviewing.md"])
def test_what_is_named_exists(name: str) -> None:
    page = (ROOT / name).read_text(encoding="utf-8")
    for path in re.findall(r"`((?:tests|scripts|docs|benchmarks)/[\w/.]+)`", page):
        assert (ROOT / path).exists(), path
    for path in re.findall(r"`(\w+/\w+\.py)`", page):
        assert (SOURCE / path).exists() or (ROOT / path).exists(), path
    for path in re.findall(r"\]\((?!http)([^)#]+)", page):
        assert (ROOT / name).parent.joinpath(path).exists(), path


def test_one_version_everywhere() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["cff-version"] == "1.2.0" and citation["version"] == VERSION
    assert {"message", "title", "authors"} <= citation.keys()
    released = re.search(r"^## (\S+) - (\S+)$", CHANGELOG, re.M)
    assert released and released.groups() == (VERSION, str(citation["date-released"]))
    supported = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    assert f"| {VERSION.rpartition('.')[0]} | yes |" in supported


def test_issue_forms_can_be_read() -> None:
    forms = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
    assert len(forms) == 4
    for path in forms:
        form = yaml.safe_load(path.read_text(encoding="utf-8"))
        if path.stem != "config":
            assert {"name", "description", "body"} <= form.keys()
            assert all({"type", "attributes"} <= part.keys() for part in form["body"])
