"""Commands that show a run: `show` in the terminal, `watch` in the browser, `export` to other tools."""

import sys
import webbrowser
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from discretion.cli import Json, output
from discretion.errors import InputError
from discretion.export.feed import Feed, Target, open_tracker
from discretion.runs.folder import RunFolder
from discretion.watch import text
from discretion.watch.follow import Follow
from discretion.watch.state import record_of


def show(
    run: Annotated[Path, Argument(metavar="RUN", help="A run folder.")],
    plots: Annotated[bool, Option("--plots/--no-plots", help="Draw accuracy and spending.")] = True,
    json_: Json = False,
) -> None:
    """Show a run in the terminal: its progress, its accuracy, and what each budget class has left.

    Example: `discretion show runs/first`, at any time, also while it is being trained
    """
    RunFolder(run).require()
    seen = Follow(run).look()
    if seen.run is None:
        raise InputError(seen.problem)
    if json_:
        output.print_json(record_of(seen))
    else:
        text.show(output.out, seen, plots)


def watch(
    run: Annotated[Path, Argument(metavar="RUN", help="A run folder; it need not exist yet.")],
    port: Annotated[int, Option(min=0, max=65535, help="Port; 0: any free one.")] = 0,
    browser: Annotated[bool, Option("--open/--no-open", help="Open the page in a browser.")] = True,
    json_: Json = False,
) -> None:
    """Show a run live in the browser, on this machine only, until Ctrl-C. Nothing of the run is changed.

    Examples: `discretion watch runs/first`, before, while or after it is trained; on a server `discretion
    watch runs/first --port 8080 --no-open`, then on your own machine `ssh -L 8080:127.0.0.1:8080 SERVER`
    """
    from discretion.watch.server import Watch

    with Watch(run, port) as server:
        message = f"{run} is at {server.address} on this machine. Stop with Ctrl-C."
        output.answer(json_, {"address": server.address, "run": str(run)}, note=message)
        sys.stdout.flush()
        if browser:
            webbrowser.open(server.address)
        with suppress(KeyboardInterrupt):
            server.serve_forever(poll_interval=0.2)


def export(
    runs: Annotated[list[Path], Argument(metavar="RUN", help="Run folders.")],
    to: Annotated[Target, Option(help="The tool to export to.")] = "csv",
    out: Annotated[
        str, Option("--out", "-o", help="A file, a folder or a server's address; see above.")
    ] = "",
    json_: Json = False,
) -> None:
    """Export the history of runs to other tools: accuracy, loss, and the spending of each budget class.

    Only public facts go out. csv and parquet: one table, to --out or NAME.csv. tensorboard: a folder for each
    run in --out, or one in the run's own. mlflow: --out http://127.0.0.1:5000 or a folder, or as
    MLFLOW_TRACKING_URI says.

    Examples: `discretion export runs/first`, `discretion export runs/demo/* --to parquet -o demo.parquet`,
    `discretion export runs/first --to tensorboard`
    """
    if len(runs) > 1 and not out and to in ("csv", "parquet"):
        raise InputError(f"say where {len(runs)} runs go together: --out NAME.{to}")
    tracker, places = None, []
    for run in runs:
        if tracker is None or (to == "tensorboard" and not out):
            tracker = open_tracker(to, out, run)
        places.append(Feed(run, tracker).finish())
    found = list(dict.fromkeys(places))
    output.answer(json_, {"to": to, "out": found}, note=f"Wrote {', '.join(found)}.")
