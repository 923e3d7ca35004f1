"""One cell in a process of its own, forked from a server that has everything imported already."""

import json
import multiprocessing
import os
import sys
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from discretion import config
from discretion.errors import DiscretionError
from discretion.materials import load_data
from discretion.runs import Progress, RunFolder, execute, prepare

# imported by the server, where there is a torch, and not by whoever starts it
PRELOADED = [__name__, "discretion.clients.local"]


def start(settings: Path, folder: Path, log: Path) -> ForkServerProcess:
    """Run these settings in that folder, or go on with it; what is said goes to the log."""
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
        folder, task = RunFolder(path), None
        if not folder.about.exists():
            wanted = config.read(settings)
            task = prepare(wanted, folder, load_data(wanted))
        execute(folder, task, _go_on)
    except (DiscretionError, OSError) as problem:
        print(json.dumps({"error": str(problem)}), file=sys.stderr)
        sys.exit(1)


def _go_on(_: Progress) -> None:
    """After each round: nobody waits for the result any more if the experiment was killed."""
    parent = multiprocessing.parent_process()
    if parent is not None and not parent.is_alive():
        sys.exit(1)
