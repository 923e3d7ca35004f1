"""Result files of an experiment: cells.csv, table.json, table.md and a figure for each variation."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from discretion.experiments.cells import Cell, Result, finished, now, slug
from discretion.experiments.settings import Experiment
from discretion.experiments.table_lines import HEADINGS, TableLine, cells_csv, columns, lines, parts
from discretion.files import write_safely
from discretion.jsonfile import dump
from discretion.report import numbers, picture
from discretion.report.chart import Chart

EXPLAINED = (
    "Accuracy in per cent on the test records after the last round, mean ± standard deviation over seeds. "
    "Spent / budget: the largest over clients of the true epsilon over the epsilon allowed, by PLD (for a "
    "fixed number of clients without replacement an upper bound, because PLD bounds that from below only); "
    "above 1 a promise is broken, and what is spent of which budget follows. Paper mode: noise by the "
    "paper's own formula. Tight mode: as much as the budgets need. s: seconds that a run took, on one core."
)
FOOTING = (
    "All rows share model, data, partition and weights (by seed), local training, rounds and the rate of "
    "participation that is asked for, which a method may spread over clients and rounds or not use up. "
    "Unless tuned, a row sets the options of its method and nothing else."
)


def statements(experiment: Experiment) -> list[str]:
    """Return sentences to read with the figures: what rows share, and how they were tuned."""
    said = [FOOTING]
    if tuning := experiment.tuning:
        grid = "; ".join(f"{name} {', '.join(map(str, values))}" for name, values in tuning.grid.items())
        data = tuning.stand_in.get("data", {}).get("name", "the same data")
        said.append(
            f"Tuned variations: every row, in each mode, got the best of the same grid on {data}, a public "
            f"stand-in ({numbers.count(tuning.seeds, 'seed')}): {grid}. Other variations: the values of the "
            "setting, for every row."
        )
    return said


def write(
    experiment: Experiment, cells: Sequence[Cell], failures: Mapping[str, str], out: Path, command: str
) -> None:
    """Write all files from the results on disk; `command` is the last one that added results."""
    results = finished(cells, out)
    table = [line for line in lines(cells, results) if line.paper or line.tight]
    about: dict[str, Any] = {
        "experiment": experiment.name,
        "title": experiment.about.title,
        "paper": experiment.about.paper,
        "made": now(),
        "command": command,
        "discretion": version("discretion"),
        "cells": len(cells),
        "finished": len(results),
        "differences": list(experiment.about.differences),
        "statements": statements(experiment),
        "failures": dict(failures),
    }
    out.mkdir(parents=True, exist_ok=True)
    figures = _figures(cells, results)
    for name, drawing in figures.items():
        write_safely(out / name, drawing.encode())
    write_safely(out / "cells.csv", cells_csv(cells, results).encode())
    write_safely(out / "table.json", dump({**about, "lines": list(map(asdict, table))}).encode())
    write_safely(out / "table.md", _markdown(experiment, about, table, list(figures)).encode())


def _figures(cells: Sequence[Cell], results: Mapping[str, Result]) -> dict[str, str]:
    """Return accuracy over rounds by row, as SVG, for each variation with more than one row."""
    drawings = {}
    for variation in dict.fromkeys(cell.variation.name for cell in cells):
        together: dict[str, list[Result]] = {}
        for cell in cells:
            if cell.variation.name != variation or cell.name not in results:
                continue
            label = cell.row.label + (", paper mode" if cell.accounting == "paper" else "")
            together.setdefault(label, []).append(results[cell.name])
        if len(together) > 1:
            name = f"accuracy-{slug(variation)}.svg" if variation else "accuracy.svg"
            drawings[name] = picture.draw(variation, {"": accuracy(together)})
    return drawings


def accuracy(together: Mapping[str, Sequence[Result]]) -> Chart:
    """Return a line for each row, by its label: the mean over seeds, in a band of one standard deviation."""
    curves: dict[str, picture.Curve] = {}
    for label, results in together.items():
        values = np.array([result.accuracies for result in results])  # (seeds, E)
        std = values.std(axis=0, ddof=1).tolist() if len(results) > 1 else []
        curves[label] = results[0].rounds, values.mean(axis=0).tolist(), std
    return picture.shares_over_rounds("Accuracy", curves)


def _markdown(
    experiment: Experiment, about: Mapping[str, Any], table: Sequence[TableLine], figures: Sequence[str]
) -> str:
    blocks = [
        f"# {about['title']}",
        f"Made on {about['made']} by `{about['command']}` (discretion {about['discretion']}); "
        f"{about['finished']} of {about['cells']} cells are finished."
        + (f" Published: {about['paper']}." if about["paper"] else ""),
    ]
    several = len(experiment.variations) > 1
    for heading, mine in parts(table).items():
        if heading:
            blocks.append(f"## {heading}")
        head = [*(["variation"] if several else []), "method", *HEADINGS]
        rows = [[*([line.variation] if several else []), line.label, *columns(line)] for line in mine]
        text = [head, ["---"] * len(head), *rows]
        blocks.append("\n".join("| " + " | ".join(cells) + " |" for cells in text))
    blocks += [EXPLAINED, *about["statements"]]
    if about["differences"]:
        said = "\n".join(f"- {sentence}" for sentence in about["differences"])
        blocks += ["Where this differs from the paper:", said]
    if about["failures"]:
        blocks += ["Failed:", "\n".join(f"- {name}: {why}" for name, why in about["failures"].items())]
    blocks += [f"![Accuracy over rounds]({name})" for name in figures]
    return "\n\n".join(blocks) + "\n"
