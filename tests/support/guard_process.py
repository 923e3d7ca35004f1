"""Guards in processes of their own, forked from one that has imported everything and done nothing."""

import multiprocessing
import os
import signal
from multiprocessing.connection import Connection
from pathlib import Path

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["discretion.guard.serve"])


def _serve(path: Path, script: str, ready: Connection) -> None:
    from discretion.guard import policy, serve

    exec(script, {})
    serve.serve(policy.read(path), lambda: ready.send("ready"))


class Process:
    """A guard; `script` is run in it before it starts."""

    def __init__(self, path: Path, script: str = "") -> None:
        self._ready, theirs = _SERVER.Pipe(duplex=False)
        self._process = _SERVER.Process(target=_serve, args=(path, script, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def ready(self) -> "Process":
        assert self._ready.recv() == "ready"
        return self

    def kill(self) -> None:
        """As kill -9 does."""
        if self._process.is_alive():
            assert self._process.pid is not None
            os.kill(self._process.pid, signal.SIGKILL)
        self._process.join(60)

    def end(self) -> int | None:
        self._process.terminate()
        return self.wait()

    def wait(self) -> int | None:
        self._process.join(60)
        return self._process.exitcode
