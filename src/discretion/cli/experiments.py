"""Commands `experiment` and `demo`, which runs one of the experiments."""

import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from rich.markup import escape
from rich.progress import TaskID
from rich.table import Table
from typer import Argument, Option

from discretion.cli import Json, Override, output
from discretion.errors import DiscretionError
from discretion.experiments import table_lines
from discretion.experiments.cells import cells
from discretion.experiments.result_files import EXPLAINED, statements, write
from discretion.experiments.run_cells import OnProgress, Outcome, Running, run
from discretion.experiments.settings import Experiment, read, shipped, with_data
from discretion.experiments.tuning import chosen, tune

FEW = 12  # cells whose bars all stay on the screen
Wanted = tuple[list[str], list[str]]  # names of rows and of variations; empty: all


def demo(
    out: Annotated[Path, Option(help="Folder for the runs and the report.")] = Path("runs/demo"),
    workers: Annotated[int, Option(min=1, help="Parallel runs.")] = 2,
    change: Override = None,
    json_: Json = False,
) -> None:
    """Compare three methods on real data under unequal budgets, and write a report.

    An interrupted demo goes on where it stopped. Example: `discretion demo --out runs/demo --workers 2`
    """
    _perform(read("demo", change or []), ([], []), None, out, workers, json_)


def experiment(
    name: Annotated[str | None, Argument(help="Name from the list, or a TOML file.")] = None,
    only: Annotated[list[str] | None, Option(metavar="ROW", help="Run this row only; repeatable.")] = None,
    variation: Annotated[
        list[str] | None, Option(metavar="NAME", help="Run this variation only; repeatable.")
    ] = None,
    seeds: Annotated[int | None, Option(min=1, help="Number of seeds; else as in the file.")] = None,
    jobs: Annotated[int | None, Option(min=1, help="Parallel runs; else one per core.")] = None,
    out: Annotated[Path | None, Option("--out", "-o", help="Output folder; else results/NAME.")] = None,
    quick: Annotated[bool, Option("--quick", help="Smoke test: every cell, with tiny settings.")] = False,
    tuning: Annotated[bool, Option("--tune", help="Tune on the public stand-in data.")] = False,
    change: Override = None,
    json_: Json = False,
) -> None:
    """Reproduce a paper: published accuracy beside ours, with true epsilon. Without a name, list experiments.

    An interrupted experiment goes on where it stopped. Examples: `discretion experiment`,
    `discretion experiment NAME --seeds 1`, `discretion experiment NAME --only ROW --variation NAME`,
    `discretion experiment NAME --tune`
    """
    if name is None:
        return _list(json_)
    made = read(name, change or [], quick)
    folder = out or Path("runs" if made.about.keep_runs else "results") / made.name
    wanted, workers = (only or [], variation or []), jobs or os.cpu_count() or 1
    if not tuning:
        return _perform(made, wanted, seeds, folder, workers, json_)
    with _progress(json_) as show:
        best = tune(made.only(*wanted), folder, workers, _command(), show)
    path = folder / "tuned.json"
    lines = [f"{row}: {', '.join(f'{key} {value}' for key, value in best[row].items())}" for row in best]
    output.answer(json_, {"tuned": str(path), "chosen": best}, *lines, note=f"Wrote {path}")


def _list(as_json: bool) -> None:
    rows = [{"name": one.name, "runs": one.runs, **one.about.model_dump()} for one in map(read, shipped())]
    table = Table("name", "what", "runs", "minutes", caption="minutes: about, for all runs, on two cores")
    for row in rows:
        table.add_row(row["name"], row["title"], f"{row['runs']}", f"{row['minutes']:g}")
    output.answer(as_json, {"experiments": rows}, table)


def _perform(
    whole: Experiment, wanted: Wanted, seeds: int | None, out: Path, jobs: int, as_json: bool
) -> None:
    """Run the wanted rows and variations; write files on all finished cells of the whole experiment."""
    whole = with_data(whole, output.say)
    part = whole.only(*wanted)
    if not as_json:
        output.say(whole.about.title)
    values, count = chosen(whole, out), seeds or whole.about.seeds
    todo = cells(part, values, count, skip_untuned=not wanted[1])
    left_out = {one.name for one in part.variations if one.tuned} - {cell.variation.name for cell in todo}
    if left_out and not as_json:
        output.say(f"Left out until --tune was run: {', '.join(sorted(left_out))}")
    every = cells(whole, values, max(count, whole.about.seeds), skip_untuned=True)
    outcome = Outcome()
    try:
        with _progress(as_json) as show:
            outcome = run(todo, out, jobs, whole.about.keep_runs, show)
    finally:  # an interrupt leaves a table of what is there
        write(whole, every, outcome.failures, out, _command())
    table = table_lines.lines(todo, outcome.results)
    if whole.about.keep_runs and not outcome.failures:
        folders = [out / cell.name for cell in todo]
        output.compare_runs(folders, out / "report.html", whole.about.title, as_json, {})
    elif as_json:
        lines = list(map(asdict, table))
        output.print_json({"folder": str(out), "lines": lines, "failures": outcome.failures})
    else:
        _show(part, table)
        output.say(f"Wrote {out / 'table.md'}, table.json, cells.csv and figures beside it.")
    if outcome.failures:
        reasons = "\n  ".join(f"{name}: {reason}" for name, reason in outcome.failures.items())
        raise DiscretionError(f"{len(outcome.failures)} of {len(todo)} runs failed\n  {reasons}")


def _show(made: Experiment, lines: Sequence[table_lines.TableLine]) -> None:
    several = len(made.variations) > 1
    for heading, mine in table_lines.parts(lines).items():
        table = Table(*output.folded("method"), title=heading or None, title_justify="left")
        for name in table_lines.HEADINGS:
            table.add_column(name, justify="right", min_width=len(name.split()[0]))
        for line in mine:
            label = f"{line.label}\n[dim]{escape(line.variation)}[/]" if several else line.label
            table.add_row(label, *table_lines.columns(line))
        output.out.print(table)
    for sentence in (EXPLAINED, *statements(made)):
        output.out.print(f"[dim]{sentence}[/]")
    for sentence in made.about.differences:
        output.out.print(f"- {sentence}", markup=False)


@contextmanager
def _progress(as_json: bool) -> Iterator[OnProgress]:
    """Show a bar over all rounds and one for each running cell; print lines where there is no terminal."""
    with output.bars(as_json) as progress:
        bars: dict[str, TaskID] = {}
        told: set[str] = set()

        def show(now: Sequence[Running]) -> None:
            ended = [cell for cell in now if cell.ended]
            if "" not in bars:
                total = sum(cell.total for cell in now)
                bars[""] = progress.add_task("all rounds", total=total, note="")
                told.update(cell.name for cell in ended)
            done = sum(cell.total if cell.ended else cell.rounds for cell in now)
            progress.update(bars[""], completed=done, note=f"{len(ended)} of {len(now)} runs")
            for cell in now:
                if not cell.started or (len(now) > FEW and cell.ended and cell.name not in bars):
                    continue
                if cell.name not in bars:
                    bars[cell.name] = progress.add_task(cell.name, total=cell.total, note="")
                note = "" if cell.spent is None else output.progress_note(cell.accuracy, cell.spent)
                if failed := cell.ended and cell.accuracy is None:
                    note = "failed"
                visible = failed or not cell.ended or len(now) <= FEW
                progress.update(bars[cell.name], completed=cell.rounds, note=note, visible=visible)
                if cell.ended and cell.name not in told:
                    told.add(cell.name)
                    if not as_json and not output.err.is_terminal:
                        output.say(f"{len(ended)}/{len(now)} {cell.name} {note}")

        yield show


def _command() -> str:
    return shlex.join(["discretion", *sys.argv[1:]])
