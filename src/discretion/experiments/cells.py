"""Cells of an experiment (one row, mode, variation and seed), and their results on disk."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import tomli_w

from discretion.errors import ConfigError
from discretion.experiments.settings import Experiment, Row, Setting, Variation, has_modes, merged
from discretion.jsonfile import Record, parse
from discretion.methods import find
from discretion.plan.plan import Accounting, Parameter
from discretion.runs.config import Config, make
from discretion.runs.read import read_run

FORMAT = "discretion-cell/1"
Chosen = Mapping[str, Mapping[str, Parameter]]  # by row and mode: settings that tuning found


@dataclass(frozen=True)
class Cell:
    row: Row
    accounting: Accounting
    variation: Variation
    seed: int
    name: str  # of its files
    config: Config
    version: int

    @property
    def digest(self) -> str:
        """SHA-256 of all settings that decide the result.

        Settings at their defaults are left out, so that a new setting invalidates no result; when a default
        changes, the experiment's version must be raised.
        """
        decided = self.config.deciding().model_dump(exclude={"clients", "after"}, exclude_defaults=True)
        content = f"{FORMAT}\n{self.version}\n{tomli_w.dumps(decided)}"
        return hashlib.sha256(content.encode()).hexdigest()[:16]


class Result(Record):
    """Result of a cell; small enough to be kept for good."""

    digest: str
    row: str
    accounting: str
    variation: str
    seed: int
    method: str
    accuracy: float
    loss: float
    share: float  # largest share of a budget that any client spends, by PLD
    spent: float  # epsilon of that client
    budget: float  # of that client
    clients_over: int  # that spend more than their budget
    accountant: str
    rounds: list[int]  # with an evaluation
    accuracies: list[float]  # in those rounds
    seconds: float
    made: str
    discretion: str


def key(row: Row, accounting: Accounting) -> str:
    """Return the name of a row in one mode, for files and tuned values."""
    return f"{row.name}-paper" if accounting == "paper" else row.name


def cells(experiment: Experiment, chosen: Chosen, seeds: int, skip_untuned: bool = False) -> list[Cell]:
    """Return every cell, seed by seed, so that an interrupted experiment has whole seeds first."""
    made = [
        _cell(experiment, row, accounting, variation, seed, chosen)
        for seed in range(seeds)
        for variation in experiment.variations
        for row in experiment.rows_of(variation)
        for accounting in row.accounting
        if not (skip_untuned and variation.tuned and key(row, accounting) not in chosen)
    ]
    names = [cell.name for cell in made]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ConfigError(f"{experiment.name}: two variations are both called {min(twice)!r} on disk")
    return made


def _cell(
    experiment: Experiment, row: Row, accounting: Accounting, variation: Variation, seed: int, chosen: Chosen
) -> Cell:
    who, taken = key(row, accounting), find(row.method).parameters
    if variation.tuned and who not in chosen:
        raise ConfigError(
            f"{experiment.name}: variation {variation.name} needs tuned values for {who}, and there are "
            "none: run it with --tune first"
        )
    setting = experiment.setting_of(variation, nested(chosen[who]) if variation.tuned else {})
    shared = setting.get("plan", {})
    options = {name: value for name, value in shared.get("options", {}).items() if name in taken}
    options |= row.options
    if has_modes(row):
        options["accounting"] = accounting
    if "seed" in taken:
        options.setdefault("seed", seed)  # whom a plan draws changes with the seed, too
    setting["plan"] = {**shared, "method": row.method, "options": options}
    setting["train"] = {"threads": 1, "workers": 1, "accept_no_privacy": True, **setting.get("train", {})}
    setting["seed"] = seed
    name = "-".join(part for part in (who, slug(variation.name), f"{seed}") if part)
    config = make(setting, experiment.overrides, f"{experiment.name}, cell {name}")
    return Cell(row, accounting, variation, seed, name, config, experiment.about.version)


def nested(dotted: Mapping[str, Parameter]) -> Setting:
    """Return {"plan.clip": 1} as {"plan": {"clip": 1}}."""
    out: Setting = {}
    for name, value in dotted.items():
        inner: Any = value
        for part in reversed(name.split(".")):
            inner = {part: inner}
        out = merged(out, inner)
    return out


def slug(text: str) -> str:
    """Return text as a part of a file name."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")


def measure(cell: Cell, path: Path, seconds: float) -> Result:
    """Return the result of a finished run."""
    run = read_run(path)
    certificate, history = run.certificate, run.history
    worst = int(certificate.share.argmax())
    return Result(
        digest=cell.digest,
        row=cell.row.name,
        accounting=cell.accounting,
        variation=cell.variation.name,
        seed=cell.seed,
        method=cell.row.method,
        accuracy=float(history.accuracy[-1]),
        loss=float(history.loss[-1]),  # infinite where training diverged
        share=float(certificate.share[worst]),
        spent=float(certificate.spent[worst]),
        budget=float(certificate.budget[worst]),
        clients_over=len(certificate.overspent),
        accountant=certificate.accountant,
        rounds=history.rounds.tolist(),
        accuracies=history.accuracy.tolist(),
        seconds=round(seconds, 1),
        made=now(),
        discretion=version("discretion"),
    )


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def result_path(out: Path, cell: Cell) -> Path:
    return out / "cells" / f"{cell.name}.json"


def read_result(out: Path, cell: Cell) -> Result | None:
    """Return the result of exactly this cell as it is defined now, or None."""
    path = result_path(out, cell)
    if not path.exists():
        return None
    result = parse(path.read_text(encoding="utf-8"), Result, "result")
    return result if result.digest == cell.digest else None


def finished(cells: Sequence[Cell], out: Path) -> dict[str, Result]:
    """Return the results on disk by the cells' names."""
    found = {cell.name: read_result(out, cell) for cell in cells}
    return {name: result for name, result in found.items() if result is not None}
