"""The command line, as a test uses it."""

import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest

from discretion.cli import main


class Done(NamedTuple):
    code: int
    out: str
    err: str


Cli = Callable[..., Done]


def runner(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    def run(*words: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["discretion", *words])
        code = 0
        try:
            main.main()
        except SystemExit as end:
            code = int(end.code or 0)
        return Done(code, *capsys.readouterr())

    return run


def discretion(*words: str) -> int:
    """Run one command in this process; return its exit code."""
    before, sys.argv = sys.argv, ["discretion", *words]
    try:
        main.main()
        return 0
    except SystemExit as end:
        return int(end.code or 0)
    finally:
        sys.argv = before
