"""Commands in documents: find them, run them as a shell would, and compare their output with what is shown.

A block fenced as `sh` is run. A block fenced as `console` has commands after `$ `, each followed by its
output; a line `…` stands for any lines. All blocks of a page are run in one folder, in their order. A block
under a comment `<!-- not run: why -->` is only parsed: every `discretion` in it must be a command with
options that exist.

`python scripts/site/console.py docs/first-hour.md` runs a page and replaces the outputs that it shows.
"""

import contextlib
import io
import math
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import typer.main

from discretion.cli import main

BLOCK = re.compile(
    r"(?:<!-- not run: (?P<why>[^>]+) -->\n+)?^```(?P<kind>sh|console)\n(?P<text>.*?)^```$", re.M | re.S
)
INLINE = re.compile(r"`(discretion\s[^`]+)`")
SHELL = re.compile(r"[|&;$*<`()]")  # what only a shell can do
TOKEN = re.compile(r"\d+(?:[.,]\d+)*(?:e[+-]?\d+)?|[^\W\d]+|[^\w\s]")
FRAMES = re.compile("[\u2500-\u259f]")
NEAR = 2e-3  # relative, of figures that are computed; or one in the last digit that is shown
TRAINED = re.compile(r"[1-9]\d\.\d|100\.0")  # accuracies, in per cent with one decimal
POINTS = 5.0  # of accuracies, which differ by this much from machine to machine: docs/engine.md says why
ANYTHING = "…"
HOME = "/home/you"  # stands for the folder in what is said


@dataclass(frozen=True)
class Block:
    kind: str
    text: str
    start: int  # offset of the text in the document
    why: str | None  # reason why it is not run


@dataclass(frozen=True)
class Done:
    code: int
    said: str


def blocks(document: str) -> list[Block]:
    return [Block(m["kind"], m["text"], m.start("text"), m["why"]) for m in BLOCK.finditer(document)]


def exchanges(block: Block) -> Iterator[tuple[str, str]]:
    """Yield the commands of a `console` block, each with the output that is shown."""
    assert block.text.startswith("$ "), f"a console block begins with $: {block.text}"
    for part in re.split(r"^\$ ", block.text, flags=re.M)[1:]:
        command, _, shown = part.partition("\n")
        yield command, shown


class Shell:
    """Runs commands in one folder, in this process (where imports are done) unless they need a shell."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.last = folder, 0
        self.programs = folder / ".programs"
        self.programs.mkdir()
        program = self.programs / "discretion"
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m discretion "$@"\n', encoding="utf-8")
        program.chmod(0o755)

    def run(self, command: str) -> Done:
        here = command.startswith("discretion ") and not SHELL.search(command)
        done = self._here(command) if here else self._in_shell(command)
        self.last = done.code
        return replace(done, said=done.said.replace(str(self.folder.resolve()), HOME))

    def script(self, text: str) -> Done:
        """Run a block of commands up to the first that fails; return its exit code and all output."""
        lines = [_without_comment(line) for line in text.replace("\\\n", " ").splitlines()]
        if any(SHELL.search(line) or not line.startswith("discretion ") for line in lines):
            return self.run(f"set -e\n{text}")
        said = ""
        for line in lines:
            done = self.run(line)
            said += done.said
            if done.code:
                break
        return Done(self.last, said)

    def _here(self, command: str) -> Done:
        words, said, printed = shlex.split(command, comments=True), io.StringIO(), io.StringIO()
        target = None
        if ">" in words:
            words, (_, target) = words[: words.index(">")], words[words.index(">") :]
        before, code = sys.argv, 0
        sys.argv = words
        try:
            with (
                contextlib.chdir(self.folder),
                contextlib.redirect_stderr(said),
                contextlib.redirect_stdout(printed if target else said),
                _columns(),
            ):
                main.main()
        except SystemExit as end:
            code = int(end.code or 0)
        finally:
            sys.argv = before
        if target:
            (self.folder / target).write_text(printed.getvalue(), encoding="utf-8")
        return Done(code, said.getvalue())

    def _in_shell(self, command: str) -> Done:
        path = f"{self.programs}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-c", f"(exit {self.last})\n{command}"],
            cwd=self.folder,
            env={**os.environ, "PATH": path, "COLUMNS": "80"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return Done(done.returncode, done.stdout)


def _without_comment(line: str) -> str:
    return re.sub(r"\s+#.*", "", line)


@contextlib.contextmanager
def _columns() -> Iterator[None]:
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "80"
    try:
        yield
    finally:
        del os.environ["COLUMNS"]
        if before is not None:
            os.environ["COLUMNS"] = before


def differs(shown: str, said: str, exactly: bool = False) -> str | None:
    """Return the first part of `shown` that was not printed, or None if all was.

    Frames and spaces are ignored, and numbers need only be near, unless `exactly` is asked for.
    """
    parts = [_tokens(part) for part in re.split(rf"^\s*{ANYTHING}\s*$", shown, flags=re.M)]
    found, at = _tokens(said), 0
    for place, part in enumerate(parts):
        last = len(found) - len(part)
        anchored = (
            range(at, at + 1) if place == 0 else range(last, last + 1) if place == len(parts) - 1 else None
        )
        for start in anchored if anchored is not None else range(at, last + 1):
            if start >= at and _alike(part, found[start : start + len(part)], exactly):
                at = start + len(part)
                break
        else:
            return " ".join(part)
    return None if at == len(found) else " ".join(found[at:])


def _tokens(text: str) -> list[str]:
    return TOKEN.findall(FRAMES.sub(" ", text))


def _alike(shown: list[str], found: list[str], exactly: bool) -> bool:
    same = str.__eq__ if exactly else _near
    return len(shown) == len(found) and all(same(*pair) for pair in zip(shown, found, strict=True))


def _near(shown: str, found: str) -> bool:
    if shown == found:
        return True
    try:
        values = [float(token.replace(",", "")) for token in (shown, found)]
    except ValueError:
        return False
    if TRAINED.fullmatch(shown):
        return math.isclose(*values, abs_tol=POINTS, rel_tol=0)
    decimals = len(shown.partition(".")[2])
    last = 1.01 * 10.0**-decimals if decimals and "e" not in shown else 0.0
    return math.isclose(*values, rel_tol=NEAR, abs_tol=last)


def commands(text: str) -> list[str]:
    """Return every `discretion …` command in some lines of shell, also after a prompt."""
    joined = text.replace("\\\n", " ")
    found = re.findall(r"(?:^(?:\$ )?|[;&|]|\bdo )\s*(discretion\b[^;&|>#\n]*)", joined, re.M)
    return [command.strip() for command in found]


def inline(document: str) -> list[str]:
    """Return every `discretion …` command between backticks in running text and tables."""
    text = re.sub(r"^```.*?^```$", "", document, flags=re.M | re.S)
    return [command for found in INLINE.findall(text) for command in commands(" ".join(found.split()))]


def understand(command: str) -> None:
    """Parse a command as the command line would, without running it; raise if it is wrong.

    A command name without arguments need only exist.
    """
    words = shlex.split(command, comments=True)[1:]
    group = typer.main.get_command(main.app)
    context = group.make_context("discretion", list(words))
    while words and hasattr(group, "resolve_command"):
        name, group, words = group.resolve_command(context, words)
        if words:
            context = group.make_context(name, list(words), parent=context)


def rewrite(path: Path) -> None:
    """Run a page and replace the outputs that it shows; outputs with `…` stay."""
    document = path.read_text(encoding="utf-8")
    with TemporaryDirectory() as folder:
        shell, made, at = Shell(Path(folder)), "", 0
        for block in blocks(document):
            if block.why:
                continue
            made += document[at : block.start]
            at = block.start + len(block.text)
            if block.kind == "sh":
                done = shell.script(block.text)
                assert done.code == 0, f"{block.text}\n{done.said}"
                made += block.text
                continue
            for command, shown in exchanges(block):
                said = shell.run(command).said
                said = "".join(f"{line.rstrip()}\n" for line in said.splitlines())
                elided = re.search(rf"^\s*{ANYTHING}\s*$", shown, re.M)
                if elided and (other := differs(shown, said, exactly=True)):
                    print(f"{path}: {command}\nis shown with {ANYTHING}: change it by hand.\n{other}\n{said}")
                made += f"$ {command}\n{shown if elided else said}"
    path.write_text(made + document[at:], encoding="utf-8")


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        rewrite(Path(argument))
