"""A run in the terminal: what is shown is what is in its folder, and it fits."""

import io
import json
import shutil
import webbrowser
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from rich.console import Console

from discretion.runs.folder import RunFolder
from discretion.watch.braille import EMPTY, LONGEST_NAME, Trace, sketch
from discretion.watch.follow import Follow
from discretion.watch.text import show
from support.commands import Cli
from support.run_folders import seal


class Drawn(NamedTuple):
    left: list[str]  # of the axis, by row
    dots: np.ndarray  # (height, columns) whether a character has dots
    names: list[str]


def read_back(text: str, height: int) -> Drawn:
    rows = text.splitlines()[:height]
    cut = [row.replace("┤", "│").split("│", 1) for row in rows]
    wide = min(len(right.split(" ")[0]) for _, right in cut)
    dots = [[ord(c) != EMPTY for c in right[:wide]] for _, right in cut]
    return Drawn(
        [left.strip() for left, _ in cut], np.array(dots), [right[wide:].strip() for _, right in cut]
    )


def test_a_line_goes_from_corner_to_corner() -> None:
    found = read_back(sketch([Trace("up", [0, 10], [0.0, 1.0])], 10, 60, 8).plain, 8)
    assert found.left[0] == "100 %" and found.left[-1] == "0 %"
    assert found.dots[0, -1] and found.dots[-1, 0] and not found.dots[0, 0] and not found.dots[-1, -1]
    assert found.dots.any(axis=0).all()  # no gap
    assert found.names[0] == "up"


def test_stairs_hold_the_later_value() -> None:
    line = Trace("", [0, 5, 10], [0.0, 0.5, 1.0], stairs=True)
    found = read_back(sketch([line], 10, 60, 9).plain, 9)
    middle = found.dots.shape[1] // 2
    assert found.dots[4, 2 : middle - 1].all() and found.dots[0, middle + 2 :].all()


def test_names_are_never_on_top_of_each_other() -> None:
    lines = [Trace(f"class {k}", [0, 10], [0.0, 1.0]) for k in range(5)]
    found = read_back(sketch(lines, 10, 60, 8).plain, 8)
    assert sorted(filter(None, found.names)) == [f"class {k}" for k in range(5)]


@pytest.mark.parametrize("width", [60, 80, 100])
@pytest.mark.parametrize("values", [[0.5], [0.3, 0.3], [0.0, 1.0], [0.123, 0.1231], [float("nan"), 0.5]])
def test_a_sketch_fits(width: int, values: list[float]) -> None:
    known = [v for v in values if v == v]
    lines = [Trace("a name that is far too long for it", range(1, len(known) + 1), known)]
    for line in sketch(lines, 50, width, 9, top=1.0).plain.splitlines():
        assert len(line) <= width and "too long for it" not in line[-LONGEST_NAME:]
    assert sketch([], 50, width, 9).plain


@pytest.mark.parametrize("width", [60, 80, 120])
def test_what_is_shown_fits_and_is_so(small_run: Path, width: int) -> None:
    out = Console(width=width, record=True, file=open("/dev/null", "w"), highlight=False)  # noqa: SIM115
    seen = Follow(small_run).look()
    show(out, seen)
    text = out.export_text()
    out.file.close()
    assert all(len(line.rstrip()) <= width for line in text.splitlines())
    assert "finished" in text and "All 8 rounds are done" in text and "accuracy" in text
    assert f"{seen.accuracy[-1]:.1%}" in text and "spent of the budget" in text
    for name in ("ε 4", "ε 8", "ε 16"):
        assert text.count(name) >= 2  # in the table, and at its line


def test_show_as_a_command(discretion: Cli, small_run: Path) -> None:
    done = discretion("show", str(small_run))
    assert done.code == 0 and "of budget" in done.out and "round 8" in done.out
    assert all(len(line) <= 80 for line in done.out.splitlines())
    assert "round 8" not in discretion("show", str(small_run), "--no-plots").out
    found = json.loads(discretion("show", str(small_run), "--json").out)
    assert found["status"] == "finished" and found["within_budget"] and found["certified"]
    assert [row["name"] for row in found["classes"]] == ["ε 4", "ε 8", "ε 16"]
    assert all(row["spent"] + row["left"] == pytest.approx(row["budget"]) for row in found["classes"])
    missing = discretion("show", "nowhere")
    assert missing.code == 2 and "no run in nowhere" in missing.err


def test_every_command_explains_itself(discretion: Cli) -> None:
    for command in ("show", "watch", "export"):
        helped = discretion(command, "--help")
        assert helped.code == 0 and f"discretion {command}" in helped.out
        assert all(len(line) <= 80 for line in helped.out.splitlines())


def test_names_are_no_markup(small_run: Path, tmp_path: Path) -> None:
    folder = RunFolder(Path(shutil.copytree(small_run, tmp_path / "x[/]")))
    about = json.loads(folder.about.read_text())
    folder.about.write_text(json.dumps(about | {"data": "[/red]digits"}))
    folder.model.unlink()
    seal(folder.path)
    out = Console(width=500, file=io.StringIO())
    show(out, Follow(folder.path).look(), plots=False)
    said = out.file.getvalue()  # type: ignore[attr-defined]
    assert "on [/red]digits" in said and "x[/] --resume" in said


def test_watch_says_where_it_is(discretion: Cli, small_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from discretion.watch.server import Watch

    opened: list[str] = []

    def stop(self: Watch, poll_interval: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Watch, "serve_forever", stop)
    monkeypatch.setattr(webbrowser, "open", opened.append)
    done = discretion("watch", str(small_run), "--json")
    address = json.loads(done.out)["address"]
    assert done.code == 0 and opened == [address] and address.startswith("http://127.0.0.1:")
    done = discretion("watch", str(small_run), "--no-open")
    assert "http://127.0.0.1:" in done.err and len(opened) == 1
