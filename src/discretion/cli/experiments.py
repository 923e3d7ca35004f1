"""The commands `experiment` and `demo`, which is one of the experiments."""

import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.progress import TaskID
from rich.table import Table

from discretion import terminal
from discretion.errors import DiscretionError
from discretion.experiments import tables
from discretion.experiments.cells import cells, finished
from discretion.experiments.obtaining import with_data
from discretion.experiments.reading import Experiment, read, shipped
from discretion.experiments.running import Running, run
from discretion.experiments.tuning import chosen, tune
from discretion.experiments.writing import EXPLAINED, statements, write
from discretion.options import Json, Override

FEW = 12  # cells, whose bars all stay on the screen


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the runs and the report.")] = Path("runs/demo"),
    workers: Annotated[int, typer.Option(min=1, help="Runs at the same time.")] = 2,
    change: Override = None,
    json_: Json = False,
) -> None:
    """Compare three methods on real data under unequal budgets, and write a report.

    Goes on where it stopped if it is interrupted. Example: `discretion demo --out runs/demo --workers 2`
    """
    _perform(read("demo", change or []), ([], []), None, out, workers, json_)


def experiment(
    name: Annotated[str | None, typer.Argument(help="One of those listed, or a TOML file.")] = None,
    only: Annotated[list[str] | None, typer.Option(metavar="ROW", help="This row; repeatable.")] = None,
    variation: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="This variation; repeatable.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="How many; else as the file says.")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Runs at a time; else one a core.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder; else results/NAME.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="All of it in small: a smoke test.")] = False,
    tuning: Annotated[bool, typer.Option("--tune", help="Choose tuned values on the stand-in.")] = False,
    change: Override = None,
    json_: Json = False,
) -> None:
    """Run the setting of a paper: its methods, published and ours, with true epsilon; or list what there is.

    Goes on where it stopped. Examples: `discretion experiment`, `discretion experiment NAME --seeds 1`,
    `discretion experiment NAME --only ROW --variation NAME`, `discretion experiment NAME --tune`
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
    if json_:
        terminal.print_json({"tuned": str(folder / "tuned.json"), "chosen": best})
    else:
        for row, values in best.items():
            terminal.out.print(f"{row}: " + ", ".join(f"{key} {value}" for key, value in values.items()))
        terminal.say(f"Wrote {folder / 'tuned.json'}")


def _list(as_json: bool) -> None:
    found = [read(name) for name in shipped()]
    runs = {
        one.name: one.about.seeds
        * sum(len(row.accounting) for part in one.variations for row in one.rows_of(part))
        for one in found
    }
    if as_json:
        rows = [{"name": one.name, "runs": runs[one.name], **one.about.model_dump()} for one in found]
        return terminal.print_json({"experiments": rows})
    table = Table("name", "what", "runs", "minutes", caption="minutes: about, for all runs, on two cores")
    for one in found:
        table.add_row(one.name, one.about.title, f"{runs[one.name]}", f"{one.about.minutes:g}")
    terminal.out.print(table)


def _perform(
    whole: Experiment,
    wanted: tuple[list[str], list[str]],
    seeds: int | None,
    out: Path,
    jobs: int,
    as_json: bool,
) -> None:
    """Run the wanted rows and variations; the files are about all that is finished of the whole."""
    whole = with_data(whole, terminal.say)
    part = whole.only(*wanted)
    if not as_json:
        terminal.say(whole.about.title)
    values, count = chosen(whole, out), seeds or whole.about.seeds
    todo = cells(part, values, count, skip_untuned=not wanted[1])
    left_out = {one.name for one in part.variations if one.tuned} - {cell.variation.name for cell in todo}
    if left_out and not as_json:
        terminal.say(f"Left out until --tune was run: {', '.join(sorted(left_out))}")
    every = cells(whole, values, max(count, whole.about.seeds), skip_untuned=True)
    failures: dict[str, str] = {}
    try:
        with _progress(as_json) as show:
            outcome = run(todo, out, jobs, whole.about.keep_runs, show)
        failures = outcome.failures
    finally:  # an interrupt leaves a table of what is there
        write(whole, every, finished(every, out), failures, out, _command())
    table = tables.lines(todo, outcome.results)
    if whole.about.keep_runs and not outcome.failures:
        folders = [out / cell.name for cell in todo]
        terminal.compare_runs(folders, out / "report.html", whole.about.title, as_json)
    elif as_json:
        terminal.print_json(
            {"folder": str(out), "lines": tables.records(table), "failures": outcome.failures}
        )
    else:
        _show(part, table)
        terminal.say(f"Wrote {out / 'table.md'}, table.json, cells.csv and figures beside it.")
    if outcome.failures:
        lines = "\n  ".join(f"{name}: {reason}" for name, reason in outcome.failures.items())
        raise DiscretionError(f"{len(outcome.failures)} of {len(todo)} runs failed\n  {lines}")


def _show(made: Experiment, lines: Sequence[tables.Line]) -> None:
    several = len(made.variations) > 1
    for heading, mine in tables.parts(lines).items():
        table = Table(title=heading or None, title_justify="left")
        table.add_column("method", overflow="fold")
        for name in tables.HEADINGS:
            table.add_column(name, justify="right", min_width=len(name.split()[0]))
        for line in mine:
            label = f"{line.label}\n[dim]{escape(line.variation)}[/]" if several else line.label
            table.add_row(label, *tables.columns(line))
        terminal.out.print(table)
    for sentence in (EXPLAINED, *statements(made)):
        terminal.out.print(f"[dim]{sentence}[/]")
    for sentence in made.about.differences:
        terminal.out.print(f"- {sentence}", markup=False)


@contextmanager
def _progress(as_json: bool) -> Iterator[Callable[[Sequence[Running]], None]]:
    """One bar over the rounds of all cells, and one for each cell that runs; lines where nobody watches."""
    with terminal.bars(as_json) as progress:
        bars: dict[str, TaskID] = {}
        told: set[str] = set()

        def show(now: Sequence[Running]) -> None:
            total = sum(cell.total for cell in now)
            ended = [cell for cell in now if cell.ended]
            if "" not in bars:
                bars[""] = terminal.bar(progress, "all rounds", total)
                told.update(cell.name for cell in ended)
            done = sum(cell.total if cell.ended else cell.rounds for cell in now)
            progress.update(bars[""], completed=done, note=f"{len(ended)} of {len(now)} runs")
            for cell in now:
                if not cell.started or (len(now) > FEW and cell.ended and cell.name not in bars):
                    continue
                if cell.name not in bars:
                    bars[cell.name] = terminal.bar(progress, cell.name, cell.total)
                note = "" if cell.spent is None else terminal.progress_note(cell.accuracy, cell.spent)
                failed = cell.ended and cell.accuracy is None
                progress.update(
                    bars[cell.name],
                    completed=cell.rounds,
                    note="failed" if failed else note,
                    visible=failed or not cell.ended or len(now) <= FEW,
                )
                if cell.ended and cell.name not in told:
                    told.add(cell.name)
                    if not as_json and not terminal.err.is_terminal:
                        terminal.say(f"{len(ended)}/{len(now)} {cell.name} {'failed' if failed else note}")

        yield show


def _command() -> str:
    return shlex.join(["discretion", *sys.argv[1:]])
