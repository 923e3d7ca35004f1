"""Commands that show a run: `show` in the terminal, `watch` in the browser, `export` to other tools."""

import sys
import webbrowser
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from discretion.cli import Json, output
from discretion.clients.prometheus import MetricsServer, port_of
from discretion.errors import InputError
from discretion.export.documents import Document, write_document
from discretion.export.feed import Feed, Target, open_tracker
from discretion.runs.folder import RunFolder
from discretion.runs.read import read_run
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
        read_run(run)  # raises what is wrong with it
        raise InputError(seen.problem)
    if json_:
        output.print_json(record_of(seen))
    else:
        text.show(output.out, seen, plots)


def watch(
    run: Annotated[Path, Argument(metavar="RUN", help="A run folder; it need not exist yet.")],
    port: Annotated[int, Option(min=0, max=65535, help="Port; 0: any free one.")] = 0,
    browser: Annotated[bool, Option("--open/--no-open", help="Open the page in a browser.")] = True,
    metrics: Annotated[
        str, Option(metavar="127.0.0.1:PORT", help="Serve metrics for Prometheus here, too, at /metrics.")
    ] = "",
    json_: Json = False,
) -> None:
    """Show a run live in the browser, on this machine only, until Ctrl-C. Nothing of the run is changed.

    Examples: `discretion watch runs/first`, before, while or after it is trained; on a server `discretion
    watch runs/first --port 8080 --no-open`, then on your own machine `ssh -L 8080:127.0.0.1:8080 SERVER`;
    `discretion watch runs/first --no-open --metrics 127.0.0.1:9464`
    """
    from discretion.watch.run_metrics import RunMetrics
    from discretion.watch.server import Watch

    with Watch(run, port) as server, ExitStack() as opened:
        record = {"address": server.address, "run": str(run)}
        message = f"{run} is at {server.address} on this machine. Stop with Ctrl-C."
        if metrics:
            collect = RunMetrics(lambda: server.look().seen).collect
            record["metrics"] = opened.enter_context(MetricsServer(port_of(metrics), collect)).address
            message += f" Metrics are at {record['metrics']}."
        output.answer(json_, record, note=message)
        sys.stdout.flush()
        if browser:
            webbrowser.open(server.address)
        with suppress(KeyboardInterrupt):
            server.serve_forever(poll_interval=0.2)


def export(
    runs: Annotated[list[Path], Argument(metavar="RUN", help="Run folders.")],
    to: Annotated[Literal[Target, Document], Option(help="The tool or the reader to export to.")] = "csv",
    out: Annotated[
        str, Option("--out", "-o", help="A file, a folder or a server's address; see above.")
    ] = "",
    json_: Json = False,
) -> None:
    """Export the history of runs to other tools: accuracy, loss, and the spending of each budget class.

    Only public facts go out. csv and parquet: one table, to --out or NAME.csv. tensorboard: a folder for each
    run in --out, or one in the run's own. mlflow: --out http://127.0.0.1:5000 or a folder, or as
    MLFLOW_TRACKING_URI says. registry: a record of a deployment for the OpenDP deployments registry, as YAML.
    nist: answers to the questions of NIST SP 800-226, as Markdown.

    Examples: `discretion export runs/first`, `discretion export runs/demo/* --to parquet -o demo.parquet`,
    `discretion export runs/first --to tensorboard`, `discretion export runs/first --to nist`
    """
    if len(runs) > 1 and not out and to in ("csv", "parquet"):
        raise InputError(f"say where {len(runs)} runs go together: --out NAME.{to}")
    if to == "registry" or to == "nist":
        if len(runs) > 1:
            raise InputError(f"found {len(runs)} runs: a document for {to} is of one run")
        found = [str(path) for path in write_document(to, runs[0], out)]
    else:
        found = _tracked(runs, to, out)
    output.answer(json_, {"to": to, "out": found}, note=f"Wrote {', '.join(found)}.")


def _tracked(runs: list[Path], to: Target, out: str) -> list[str]:
    """Pass runs on to a tool; return where it put them."""
    tracker, places = None, []
    for run in runs:
        if tracker is None or (to == "tensorboard" and not out):
            tracker = open_tracker(to, out, run)
        places.append(Feed(run, tracker).finish())
    return list(dict.fromkeys(places))
