"""Running the cells of an experiment, each in its own process; finished cells are not run again."""

import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from discretion.accounting import Certificate
from discretion.accounting.certificate import Spending
from discretion.errors import ConfigError
from discretion.experiments.cells import Cell, Result, measure, read_result, write_result
from discretion.experiments.worker import start
from discretion.runs.folder import RunFolder
from discretion.runs.history import read_history

POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Running:
    """Progress of one cell, read from its files."""

    name: str
    rounds: int  # done
    total: int
    accuracy: float | None
    spent: float | None  # the largest share of a budget that any client has spent; None: not known yet
    started: bool = False
    ended: bool = False


@dataclass
class Outcome:
    results: dict[str, Result] = field(default_factory=dict)  # by the cell's name
    failures: dict[str, str] = field(default_factory=dict)  # why


def run(
    cells: Sequence[Cell],
    out: Path,
    jobs: int,
    keep_runs: bool,
    on_progress: Callable[[Sequence[Running]], None],
) -> Outcome:
    """Run every cell that has no result yet, `jobs` at a time.

    Guarantees: a result on disk whose digest fits its cell is used, and the cell not run; a cell that fails
    stops no other; an interrupt ends the running processes, and their cells go on from the round they
    reached.
    """
    outcome = Outcome()
    shown = {cell.name: _waiting(cell) for cell in cells}
    waiting = []
    for cell in cells:
        found = read_result(out, cell)
        if found is None or (keep_runs and not RunFolder(out / cell.name).model.exists()):
            _refuse_other_run(cell, out, keep_runs)
            waiting.append(cell)
        else:
            outcome.results[cell.name] = found
            shown[cell.name] = _finished(cell, found)
    running: list[_CellProcess] = []
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                running.append(_CellProcess(waiting.pop(0), out))
            for process in list(running):
                shown[process.cell.name] = process.look()
                if process.ended:
                    running.remove(process)
                    shown[process.cell.name] = _collect(process, out, keep_runs, outcome)
            on_progress(list(shown.values()))
            time.sleep(POLL_SECONDS)
    finally:
        for process in running:
            process.stop()
    on_progress(list(shown.values()))
    return outcome


def _waiting(cell: Cell) -> Running:
    return Running(cell.name, 0, cell.config.plan.rounds, None, None)


def _finished(cell: Cell, result: Result) -> Running:
    rounds = cell.config.plan.rounds
    return Running(cell.name, rounds, rounds, result.accuracy, result.share, True, True)


def _refuse_other_run(cell: Cell, out: Path, keep_runs: bool) -> None:
    """Remove a run folder made with other settings; raise instead where runs are kept."""
    folder = RunFolder(out / cell.name)
    if not folder.about.exists():
        return
    if folder.config.read_text(encoding="utf-8") != cell.config.anchored().to_toml():
        if keep_runs:
            raise ConfigError(f"{folder.path} was made with other settings: give another --out")
        shutil.rmtree(folder.path)


class _CellProcess:
    """The process that runs a cell."""

    def __init__(self, cell: Cell, out: Path) -> None:
        self.cell, self.folder = cell, RunFolder(out / cell.name)
        self.settings, self.errors = (out / "cells" / f"{cell.name}.{end}" for end in ("toml", "log"))
        self.settings.parent.mkdir(parents=True, exist_ok=True)
        self.settings.write_text(cell.config.anchored().to_toml(), encoding="utf-8")
        self.errors.touch()
        self.begin = time.monotonic()
        self.spending: Spending | None = None
        self.process = start(self.settings, self.folder.path, self.errors)

    @property
    def ended(self) -> bool:
        return self.process.exitcode is not None

    def look(self) -> Running:
        total = self.cell.config.plan.rounds
        if not self.folder.about.exists():
            return Running(self.cell.name, 0, total, None, None, True)
        if self.spending is None:
            text = self.folder.certificate.read_text(encoding="utf-8")
            self.spending = Certificate.from_json(text).spending
        history = read_history(self.folder.history)
        accuracy = history.evaluated[-1].accuracy if history.evaluated else None
        return Running(self.cell.name, history.done, total, accuracy, self.spending.share(history.done), True)

    @property
    def reason(self) -> str:
        """Reason of a failure: the last line of the log, which is JSON where the error was expected."""
        said = self.errors.read_text(encoding="utf-8", errors="replace").strip()
        last = said.splitlines()[-1] if said else f"ended with code {self.process.exitcode}"
        try:
            return str(json.loads(last)["error"])
        except (ValueError, TypeError, KeyError):
            return f"{last} (see {self.errors})"

    def stop(self) -> None:
        self.process.kill()
        self.process.join()


def _collect(process: _CellProcess, out: Path, keep_runs: bool, outcome: Outcome) -> Running:
    """Record the result of a process that ended, or the reason why there is none; keep a failure's log."""
    cell = process.cell
    if process.process.exitcode != 0:
        outcome.failures[cell.name] = process.reason
        return Running(cell.name, 0, cell.config.plan.rounds, None, None, True, True)
    result = measure(cell, process.folder.path, time.monotonic() - process.begin)
    write_result(out, cell, result)
    outcome.results[cell.name] = result
    process.settings.unlink()
    process.errors.unlink()
    if not keep_runs:
        shutil.rmtree(process.folder.path)
    return _finished(cell, result)
