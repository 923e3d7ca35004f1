"""Hyper-parameter tuning by one grid for every row, on public data in place of the private data."""

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from discretion.errors import ConfigError, DiscretionError
from discretion.experiments.cells import Cell, Chosen, cells, key, nested, now
from discretion.experiments.run_cells import OnProgress, run
from discretion.experiments.settings import Experiment, Tuning, Variation, merged
from discretion.files import write_safely
from discretion.jsonfile import dump
from discretion.methods import find
from discretion.plan.plan import Parameter

Point = dict[str, Parameter]  # of the grid


def chosen(experiment: Experiment, out: Path) -> Chosen:
    """Return tuned values by row: of the last --tune in this folder, else of the experiment's file."""
    path = out / "tuned.json"
    if path.exists():
        try:
            found: Chosen = json.loads(path.read_text(encoding="utf-8"))["chosen"]
        except (ValueError, KeyError):
            raise ConfigError(f"{path} is not a record of tuning: remove it, or run --tune again") from None
        return found
    return experiment.tuning.chosen if experiment.tuning else {}


def tune(
    experiment: Experiment, out: Path, jobs: int, command: str, on_progress: OnProgress
) -> dict[str, Point]:
    """Try the grid on the stand-in for every row of a tuned variation; write tuned.json, return the best."""
    if experiment.tuning is None:
        raise ConfigError(f"{experiment.name} has no [tuning] section, which --tune needs")
    todo = trials(experiment, experiment.tuning)
    outcome = run([cell for cell, _ in todo], out / "tuning", jobs, False, on_progress)
    if outcome.failures:
        name, reason = next(iter(outcome.failures.items()))
        raise DiscretionError(f"{len(outcome.failures)} of {len(todo)} trials failed, first {name}: {reason}")
    scores: dict[str, list[tuple[float, Point]]] = {}
    for (name, point), seeds in itertools.groupby(
        todo, lambda pair: (key(pair[0].row, pair[0].accounting), pair[1])
    ):
        accuracies = [outcome.results[cell.name].accuracy for cell, _ in seeds]
        scores.setdefault(name, []).append((float(np.mean(accuracies)), point))
    best = {name: max(tried, key=lambda pair: pair[0])[1] for name, tried in scores.items()}
    record: dict[str, Any] = {
        "made": now(),
        "command": command,
        "stand_in": experiment.tuning.stand_in,
        "seeds": experiment.tuning.seeds,
        "grid": {name: list(values) for name, values in experiment.tuning.grid.items()},
        "chosen": best,
        "scores": {name: [[score, point] for score, point in tried] for name, tried in scores.items()},
    }
    write_safely(out / "tuned.json", dump(record).encode())
    return best


def trials(experiment: Experiment, tuning: Tuning) -> list[tuple[Cell, Point]]:
    """Return every row in each mode with every point of the grid, row by row.

    Settings that a method does not take are not varied.
    """
    tuned = [row for one in experiment.variations if one.tuned for row in experiment.rows_of(one)]
    wanted = {(row.name, accounting) for row in tuned for accounting in row.accounting}
    made = []
    for row in experiment.rows:
        free = _free(row.method, tuning)
        for accounting in (mode for mode in row.accounting if (row.name, mode) in wanted):
            alone = row.model_copy(update={"accounting": (accounting,)})
            for number, values in enumerate(itertools.product(*free.values())):
                point = dict(zip(free, values, strict=True))
                setting = merged(tuning.stand_in, nested(point))
                trial = replace(experiment, rows=(alone,), variations=(Variation(setting=setting),))
                for cell in cells(trial, {}, tuning.seeds):
                    made.append((replace(cell, name=f"{cell.name}-{number}"), point))
    return made


def _free(method: str, tuning: Tuning) -> dict[str, tuple[Parameter, ...]]:
    taken = {*find(method).parameters}
    if "clip" in taken:
        taken.add("clipping")  # by layers or not: of every plan that clips
    return {
        name: values
        for name, values in tuning.grid.items()
        if not name.startswith("plan.") or name.removeprefix("plan.") in taken
    }
