"""Pins and their hashes: constraints.txt, the folder requirements, and the look-up of vulnerabilities."""

import json
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from audit_pins import main as audit
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pins import EXEMPT, FLOWER, FLOWER_CONSTRAINTS, OURS, blocks, flower_constraints

FILES = sorted(Path("requirements").glob("*.txt"))
PROJECT = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))


def pins(*names: str) -> set[str]:
    """Return the pins of these files of the folder, without markers."""
    texts = [Path(f"requirements/{name}.txt").read_text(encoding="utf-8") for name in names]
    return {pin.split(" ;")[0] for text in texts for pin in blocks(text)}


def constraints(file: str = "constraints.txt") -> set[str]:
    return {pin.split(" ;")[0] for pin in blocks(Path(file).read_text(encoding="utf-8"))}


DOCUMENTS = [
    "README.md",
    "CONTRIBUTING.md",
    *map(str, [*Path("docs").glob("*.md"), *Path("examples").glob("*/*.md")]),
]
INSTALLS = re.compile(r"pip install -c (\S+) -e '?\.(?:\[([a-z,-]+)\])?")
TAKES = re.compile(r"^\| `([a-z-]+)` \| .* \| (?:`(constraints\S*\.txt)`|either file) \|$", re.MULTILINE)


def documented() -> set[tuple[str, str]]:
    """Return each file of constraints that a document names, with each extra to install with it."""
    text = "\n".join(Path(file).read_text(encoding="utf-8") for file in DOCUMENTS)
    found = {(file, extra) for file, extras in INSTALLS.findall(text) for extra in extras.split(",")}
    table = TAKES.findall(Path("docs/installing.md").read_text(encoding="utf-8"))
    assert {extra for extra, _ in table} == set(EXTRAS)
    either = ("constraints.txt", "constraints-flower.txt")
    return found | {(file, extra) for extra, named in table for file in ([named] if named else either)}


EXTRAS: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]


def needed_by(extra: str) -> list[Requirement]:
    """Return what the package needs with an extra, and with those that this one includes."""
    asked = [Requirement(line) for line in [*PROJECT["project"]["dependencies"], *EXTRAS.get(extra, [])]]
    included = [more for each in asked if each.name == "discretion" for more in each.extras]
    rest = [each for each in asked if each.name != "discretion"]
    return [*rest, *(each for more in included for each in needed_by(more))]


@pytest.mark.parametrize("file, extra", sorted(documented()))
def test_what_documents_tell_to_install_is_pinned_in_the_file_that_they_name(file: str, extra: str) -> None:
    """A package without a pin may be one that no version of those with a pin fits, as Flower was."""
    versions = dict(pin.split("==") for pin in constraints(file))
    for requirement in needed_by(extra):
        assert versions.get(canonicalize_name(requirement.name), "no pin") in requirement.specifier, (
            requirement
        )


@pytest.mark.parametrize("file", ["constraints.txt", "constraints-flower.txt"])
def test_pins_of_a_file_fit_each_other(file: str) -> None:
    """Of those that are installed here in the pinned version, as their own records say what they need."""
    versions, compared = dict(pin.split("==") for pin in constraints(file)), 0
    for name, version in versions.items():
        try:
            installed = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        if installed.version.split("+")[0] != version:
            continue
        for need in map(Requirement, installed.requires or []):
            if need.marker is None or need.marker.evaluate({"extra": ""}):
                compared += 1
                pinned = versions.get(canonicalize_name(need.name))
                assert EXEMPT.match(f"{need.name}==") or (pinned and pinned in need.specifier), (
                    name,
                    str(need),
                )
    assert compared > 50


def test_constraints_for_flower_are_its_pins_and_our_torch() -> None:
    """The two files of its pins were resolved together, by `make pins`."""
    assert FLOWER_CONSTRAINTS.read_text(encoding="utf-8") == flower_constraints()
    ours = {pin for pin in constraints() if pin.startswith("torch==")}
    assert constraints("constraints-flower.txt") == pins("flower", "flower-sim") | ours


def test_layers_together_have_the_pins_of_the_constraints_except_torch() -> None:
    found = pins(*(layer.name for layer in OURS))
    torch = {pin for pin in constraints() if pin.startswith("torch==")}
    assert found == constraints() - torch
    assert len(torch) == 1
    assert {file.stem for file in FILES} == {"node", "tools", *(layer.name for layer in (*OURS, *FLOWER))}


def test_a_node_has_pins_of_flower_alone() -> None:
    assert pins("node") < pins("flower")
    assert "flwr==1.41.0" in pins("node") and not any(pin.startswith("scipy") for pin in pins("node"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_pin_has_hashes_and_no_index_is_named(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    pin = re.compile(r"[a-z0-9-]+==[^ ]+( ; .+)? \\")
    hashed = re.compile(r"    --hash=sha256:[0-9a-f]{64}( \\)?")
    for line, after in zip(lines, [*lines[1:], ""], strict=True):
        assert pin.fullmatch(line) or hashed.fullmatch(line), line
        assert line.endswith("\\") == bool(hashed.fullmatch(after)), line
    assert not any(EXEMPT.match(pin) for pin in blocks(text))
    assert "://" not in text


def test_pins_satisfy_what_the_project_asks_for_and_what_builds_it() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    torch = {pin for pin in constraints() if pin.startswith("torch==")}
    asked = {
        ("core",): [*PROJECT["build-system"]["requires"], *PROJECT["project"]["dependencies"]],
        ("core", "test", "torch", "docs", "dev"): [*extras["torch"], *extras["docs"], *extras["dev"]],
        ("flower", "flower-sim"): [*PROJECT["project"]["dependencies"], *extras["flower-sim"]],
    }
    for layers, needed in asked.items():
        versions = dict(pin.split("==") for pin in pins(*layers) | torch)
        for requirement in map(Requirement, needed):
            if requirement.name != "discretion":
                assert versions[canonicalize_name(requirement.name)] in requirement.specifier, requirement


def test_a_file_with_another_hash_is_not_installed(tmp_path: Path) -> None:
    """pip is given a wheel of the right name and version, whose bytes are others."""
    with zipfile.ZipFile(tmp_path / "mdurl-0.1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr(
            "mdurl-0.1.2.dist-info/METADATA", "Metadata-Version: 2.1\nName: mdurl\nVersion: 0.1.2\n"
        )
        wheel.writestr("mdurl-0.1.2.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr("mdurl-0.1.2.dist-info/RECORD", "")
    known = blocks(Path("requirements/core.txt").read_text(encoding="utf-8"))
    (tmp_path / "core.txt").write_text(f"mdurl==0.1.2 \\\n{known['mdurl==0.1.2']}", encoding="utf-8")
    here = str(tmp_path)
    options = ["--isolated", "--no-index", "--no-deps", f"--find-links={here}", f"--target={here}"]
    install = [sys.executable, "-m", "pip", "install", *options, "--require-hashes", "-r", f"{here}/core.txt"]
    done = subprocess.run(install, capture_output=True, text=True)
    assert done.returncode == 1
    assert "DO NOT MATCH THE HASHES" in done.stderr


@pytest.mark.parametrize(
    "answer, code, said",
    [
        ([{"name": "a", "version": "1", "vulns": []}], 0, "No vulnerability is known"),
        ([{"name": "a", "version": "1", "vulns": [{"id": "X-1", "fix_versions": ["2"]}]}], 1, "a 1: X-1"),
        (
            [{"name": "a", "version": "1", "vulns": []}, {"name": "b", "skip_reason": "not found"}],
            2,
            "NOT CHECKED: 1",
        ),
        ([{"name": "a", "skip_reason": "not found on PyPI"}], 2, "none of its 1 pins was found. Is there a"),
        (None, 2, "NOT CHECKED: 1"),
    ],
    ids=["none known", "one known", "one not looked up", "offline", "no service"],
)
def test_only_pins_that_were_all_looked_up_pass(
    answer: object, code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An answer of pip-audit, played by a script; None: it fails."""
    text = (
        f"print({json.dumps(json.dumps({'dependencies': answer}))})"
        if answer
        else "import sys; sys.exit('down')"
    )
    (tmp_path / "pip_audit.py").write_text(text, encoding="utf-8")
    assert audit([sys.executable, str(tmp_path / "pip_audit.py")], ["constraints.txt"]) == code
    out = capsys.readouterr().out
    assert said in out
    assert ("No vulnerability" in out) == (code == 0)
