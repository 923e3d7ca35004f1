"""Worker process of one cell, forked from a server that has imported everything."""

import json
import multiprocessing
import os
import sys
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from discretion.errors import DiscretionError
from discretion.runs.execute import Progress, execute
from discretion.runs.folder import RunFolder
from discretion.runs.prepare import prepare
from discretion.runs.read import read_run

# imported by the fork server (where torch is installed), not by the process that starts it
PRELOADED = [__name__, "discretion.clients.local_clients"]


def start(settings: Path, folder: Path, log: Path) -> ForkServerProcess:
    """Start a process that runs these settings in the folder, or resumes it; its output goes to the log."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    process = context.Process(target=_work, args=(settings.absolute(), folder.absolute(), log.absolute()))
    process.start()
    return process


def _work(settings: Path, path: Path, log: Path) -> None:
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
