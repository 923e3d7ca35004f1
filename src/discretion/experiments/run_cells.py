"""Running the cells of an experiment, each in its own process; finished cells are not run again."""

import json
import multiprocessing
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from discretion.accounting import Certificate
from discretion.accounting.certificate import Spending
from discretion.errors import ConfigError, DiscretionError
from discretion.experiments.cells import Cell, Result, measure, read_result, result_path
from discretion.files import write_safely
from discretion.jsonfile import dump
from discretion.runs.execute import Progress, execute
from discretion.runs.folder import RunFolder
from discretion.runs.history import read_history
from discretion.runs.prepare import prepare
from discretion.runs.read import read_run

POLL_SECONDS = 0.2

# imported by the fork server (where torch is installed), not by the process that starts it
PRELOADED = [__name__, "discretion.clients.local_clients"]


@dataclass(frozen=True)
class Running:
    """Progress of one cell, read from its files."""

    name: str
    total: int
    rounds: int = 0  # done
    accuracy: float | None = None
    spent: float | None = None  # the largest share of a budget that any client has spent; None: not known yet
    started: bool = False
    ended: bool = False


OnProgress = Callable[[Sequence[Running]], None]


@dataclass
class Outcome:
    results: dict[str, Result] = field(default_factory=dict)  # by the cell's name
    failures: dict[str, str] = field(default_factory=dict)  # why


def run(cells: Sequence[Cell], out: Path, jobs: int, keep_runs: bool, on_progress: OnProgress) -> Outcome:
    """Run every cell that has no result yet, `jobs` at a time.

    Guarantees: a result on disk whose digest fits its cell is used, and the cell not run; a cell that fails
    stops no other; an interrupt ends the running processes, and their cells go on from the round they
    reached.
    """
    outcome = Outcome()
    shown = {cell.name: Running(cell.name, cell.config.plan.rounds) for cell in cells}
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
                    shown[process.cell.name] = process.collect(keep_runs, outcome)
            on_progress(list(shown.values()))
            time.sleep(POLL_SECONDS)
    finally:
        for process in running:
            process.stop()
    on_progress(list(shown.values()))
    return outcome


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
    """The process that runs a cell, or resumes it, forked from a server that has imported everything."""

    def __init__(self, cell: Cell, out: Path) -> None:
        self.cell, self.folder = cell, RunFolder(out / cell.name)
        self.result = result_path(out, cell)
        self.settings, self.log = (out / "cells" / f"{cell.name}.{end}" for end in ("toml", "log"))
        self.settings.parent.mkdir(parents=True, exist_ok=True)
        self.settings.write_text(cell.config.anchored().to_toml(), encoding="utf-8")
        self.log.touch()
        self.begin = time.monotonic()
        self.spending: Spending | None = None
        paths = (self.settings, self.folder.path, self.log)
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        self.process = context.Process(target=_work, args=[path.absolute() for path in paths])
        self.process.start()

    @property
    def ended(self) -> bool:
        return self.process.exitcode is not None

    def look(self) -> Running:
        name, total = self.cell.name, self.cell.config.plan.rounds
        if not self.folder.about.exists():
            return Running(name, total, started=True)
        if self.spending is None:
            text = self.folder.certificate.read_text(encoding="utf-8")
            self.spending = Certificate.from_json(text).spending
        history = read_history(self.folder.history)
        accuracy = history.evaluated[-1].accuracy if history.evaluated else None
        return Running(name, total, history.done, accuracy, self.spending.share(history.done), True)

    def collect(self, keep_runs: bool, outcome: Outcome) -> Running:
        """Record the result of an ended process, or the reason why there is none; keep a failure's log."""
        cell = self.cell
        if self.process.exitcode != 0:
            outcome.failures[cell.name] = self.reason
            return Running(cell.name, cell.config.plan.rounds, started=True, ended=True)
        result = measure(cell, self.folder.path, time.monotonic() - self.begin)
        write_safely(self.result, dump(result.model_dump()).encode())
        outcome.results[cell.name] = result
        self.settings.unlink()
        self.log.unlink()
        if not keep_runs:
            shutil.rmtree(self.folder.path)
        return _finished(cell, result)

    @property
    def reason(self) -> str:
        """Reason of a failure: the last line of the log, which is JSON where the error was expected."""
        said = self.log.read_text(encoding="utf-8", errors="replace").strip()
        last = said.splitlines()[-1] if said else f"ended with code {self.process.exitcode}"
        try:
            return str(json.loads(last)["error"])
        except (ValueError, TypeError, KeyError):
            return f"{last} (see {self.log})"

    def stop(self) -> None:
        self.process.kill()
        self.process.join()


def _work(settings: Path, path: Path, log: Path) -> None:
    """Run these settings in the folder, or resume the run in it; what is printed goes to the log."""
    said = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(said, 1)
    os.dup2(said, 2)
    try:
        begun = RunFolder(path).about.exists()
        execute(read_run(path) if begun else prepare(settings, path), _go_on)
    except (DiscretionError, OSError) as problem:
        print(json.dumps({"error": str(problem)}), file=sys.stderr)
        sys.exit(1)


def _go_on(_: Progress) -> None:
    """After each round, end this process if the experiment was killed."""
    parent = multiprocessing.parent_process()
    if parent is not None and not parent.is_alive():
        sys.exit(1)
