"""Every command in the documents is run, or at least understood; what is shown to be printed is printed."""

import re
from pathlib import Path

import nbformat
import pytest
import tutorial
import typer.main
from console import Done, Shell, blocks, commands, differs, exchanges, inline, understand

from discretion.cli import main
from discretion.methods import METHODS

ROOT = Path(__file__).parents[2]
PAGES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in [
        *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY")),
        *sorted((ROOT / "docs").rglob("*.md")),
        *sorted((ROOT / "examples").rglob("*.md")),
    ]
}
# tests/test_examples.py runs examples, which need data
RUN = [
    page
    for page, text in PAGES.items()
    if any(not block.why for block in blocks(text)) and not page.startswith("examples")
]
EXAMPLE = "fade"  # of the page on adding a method
TUTORIAL = ROOT / "docs" / "tutorial.ipynb"


@pytest.mark.parametrize("page", RUN)
def test_commands_do_what_is_shown(page: str, tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    for block in blocks(PAGES[page]):
        if block.why:
            continue
        if block.kind == "sh":
            done = shell.script(block.text)
            assert done.code == 0, f"{block.text}\n{done.said}"
            continue
        done = Done(0, "")
        for command, shown in exchanges(block):
            assert done.code == 0 or command == "echo $?", f"a failure is shown by its exit code: {done.said}"
            done = shell.run(command)
            assert differs(shown, done.said) is None, f"{command}\n{done.said}"
        assert done.code == 0, done.said


def test_what_is_not_run_is_understood() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    skipped = [block for text in PAGES.values() for block in blocks(text) if block.why]
    assert skipped
    for block in skipped:
        targets = re.findall(r"^make ([\w-]+)", block.text, re.M)
        assert all(f"\n{target}:" in makefile for target in targets)
        tests = re.findall(r"pytest (tests[\w/.]*)", block.text)
        assert all((ROOT / path).exists() for path in tests)
        found = commands(block.text)
        assert found or targets or tests or block.text.startswith("pip install")
        for command in found:
            understand(command)


def test_commands_in_sentences_and_tables_are_understood() -> None:
    group = typer.main.get_command(main.app)
    helped = [inner.help or "" for inner in [group, *group.commands.values()]]  # type: ignore[attr-defined]
    found = [command for text in [*PAGES.values(), *helped] for command in inline(text)]
    assert len(found) > 50
    for command in found:
        understand(command)
        if planned := re.match(r"discretion plan ([a-z]\w*)", command):
            assert planned[1] in {*METHODS, EXAMPLE}
    for text in PAGES.values():
        for path in re.findall(r"`(?:python|sh) ([\w/]+\.\w+)", text):
            assert (ROOT / path).exists(), path


def test_no_command_hides_in_a_block_that_is_not_looked_at() -> None:
    for page, text in PAGES.items():
        looked_at = [block.text for block in blocks(text)]
        for fenced in re.findall(r"^```\w*\n(.*?)^```$", text, re.M | re.S):
            if re.search(r"^\$? ?(discretion|make|pip) ", fenced, re.M):
                assert fenced in looked_at, f"{page}: fence it as sh or console\n{fenced}"


def test_the_notebook_prints_what_it_shows(tmp_path: Path) -> None:
    shown = nbformat.read(TUTORIAL, as_version=4)
    found = tutorial.executed(TUTORIAL)
    for before, after in zip(shown.cells, found.cells, strict=True):
        assert before.source == after.source
        for was, now in zip(before.get("outputs", []), after.get("outputs", []), strict=True):
            assert was.output_type == now.output_type
            if was.output_type == "stream":
                assert differs(was.text, now.text) is None, now.text
            else:
                assert all("<path" in output.data["image/svg+xml"] for output in (was, now))


@pytest.mark.parametrize(
    "shown, said",
    [
        ("spent 1.9996 of 2\n", "spent 2.3 of 2\n"),
        ("spent 1.9996 of 2\n", "spent 1.99 of 2\n"),
        ("47 clients\n", "46 clients\n"),
        ("clip 0.1538\n", "clip 0.1545\n"),
        ("delta 1e-05\n", "delta 1e-06\n"),
        ("│ 93.6 │\n", "│ 88.4 │\n"),
        ("within yes\n", "within no\n"),
        ("one\n…\nthree\n", "one\ntwo\nfour\n"),
        ("one\n", "one\ntwo\n"),
        ("one\ntwo\n", "one\n"),
        ("…\ntwo\n", "two\nthree\n"),
        ("two\n…\n", "one\ntwo\n"),
    ],
)
def test_what_is_printed_otherwise_is_found(shown: str, said: str) -> None:
    assert differs(shown, said) is not None


def test_numbers_may_be_near_and_lines_left_out() -> None:
    assert differs("│ 91.4 │ kept │\n…\nend\n", "┃ 91.7   ┃ kept ┃\nmore\nand more\nend\n") is None
    assert differs("83.0 then 0.0004 and 5,637\n", "86.9 then 0.0005 and 5,640\n") is None
    assert differs("83.0\n", "86.9\n", exactly=True) is not None
    assert differs("one\n…\n", "one\n") is None


def test_what_the_command_line_lacks_is_not_understood() -> None:
    for wrong in (
        "discretion pln",
        "discretion run a.toml --outt b",
        "discretion check a b c",
        "discretion flower ap",
    ):
        with pytest.raises(Exception, match="(?i)no such|got unexpected"):
            understand(wrong)
    assert commands('for p in *; do discretion guard "$p" & done\n') == ['discretion guard "$p"']


def test_a_shell_shares_a_folder_and_an_exit_code(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    assert shell.run("discretion population groups:1 --clients 2 > people.csv") == Done(0, "")
    assert shell.run("wc -l < people.csv").said == "3\n"
    assert shell.run("discretion plan nonsense people.csv").code == 2
    assert shell.run("echo $?").said == "2\n"
    assert shell.script("discretion methods nonsense\ndiscretion methods\n").code == 2
