"""The command line, as a test uses it."""

import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest

from discretion import cli


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
            cli.main()
        except SystemExit as end:
            code = int(end.code or 0)
        return Done(code, *capsys.readouterr())

    return run
