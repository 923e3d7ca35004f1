"""HTTP server of the live page: a page, its events, its numbers and all budgets, on this machine only."""

import json
import secrets
import socketserver
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

from discretion.clients.loopback import HOST, LoopbackHandler, LoopbackServer
from discretion.errors import DiscretionError, InputError
from discretion.jsonfile import dump
from discretion.ledger.lifetime import read_lifetime
from discretion.report import budgets_page, officer
from discretion.report.budget_tables import Source
from discretion.watch.follow import Follow, Seen
from discretion.watch.live_page import PageView, page, view_of
from discretion.watch.state import record_of

EVERY = 0.5  # seconds between two looks at the folder
ALIVE = 15.0  # seconds after which silence is broken, so that a closed page is noticed
RETRY = 1000  # milliseconds after which a page asks again


@dataclass(frozen=True)
class Now:
    seen: Seen
    view: PageView


class Watch(socketserver.ThreadingMixIn, LoopbackServer):
    """Serves one run's live page; all open pages share one look at the folder.

    Guarantees:
        A request without the secret that is the first part of the address is told nothing: other accounts on
        this machine do not know it.
        Nothing is written.
    """

    daemon_threads = True

    def __init__(
        self, folder: Path, port: int = 0, every: float = EVERY, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._follow, self._clock, self._every = Follow(folder, clock), clock, every
        self._lock, self._at = threading.Lock(), 0.0
        self._reading = threading.Lock()  # of a whole ledger, which is not read twice at a time
        self._now: Now | None = None
        self._closed = threading.Event()
        self.home = f"/{secrets.token_urlsafe(16)}/"
        super().__init__(port, Handler)

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.server_port}{self.home}"

    def place(self, path: str) -> str | None:
        """Return the path after the secret; None where the request does not know the secret."""
        told = path.encode()[: len(self.home)]
        known = secrets.compare_digest(told, self.home.encode())
        return path[len(self.home) :] if known else None

    def look(self) -> Now:
        """Return the state now, or as it was looked at less than `every` seconds ago."""
        with self._lock:
            if self._now is None or self._clock() - self._at >= self._every:
                seen = self._follow.look()
                self._now, self._at = Now(seen, view_of(seen)), self._clock()
            return self._now

    def budgets(self) -> str:
        """Return the page on lifetime budgets, read now."""
        run = self.look().seen.run
        if run is None:
            raise InputError("there is no run yet, and so no ledger")
        with self._reading:
            path = run.files.ledger(run.config)
            return budgets_page.render([Source(path.name, read_lifetime(path), about=officer.about([run]))])

    def goes_on(self) -> bool:
        """Wait for the next look; return whether the server is still open."""
        return not self._closed.wait(self._every)

    def server_close(self) -> None:
        self._closed.set()
        super().server_close()


class Handler(LoopbackHandler):
    server: Watch
    timeout = 60  # seconds, to get a request

    def do_GET(self) -> None:
        place = self.server.place(self.path)
        if not self.is_allowed(first_visit=not place):
            return
        if place == "":
            self.send("text/html", page(self.server.look().view))
        elif place == "state":
            self.send("application/json", dump(record_of(self.server.look().seen)))
        elif place == "budgets":
            self._budgets()
        elif place == "events":
            self._stream()
        else:
            self.refuse(HTTPStatus.NOT_FOUND, "expected the address that discretion watch printed")

    do_HEAD = do_GET

    def _budgets(self) -> None:
        """Send the page on all runs of the ledger that the run spends from."""
        try:
            self.send("text/html", self.server.budgets())
        except DiscretionError as problem:
            self.refuse(HTTPStatus.SERVICE_UNAVAILABLE, str(problem))

    def _stream(self) -> None:
        """Send the whole view, and then each change when it comes."""
        self.begin("text/event-stream", HTTPStatus.OK)
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command == "HEAD":
            return
        sent, at = PageView(), time.monotonic()
        self.wfile.write(f"retry: {RETRY}\n\n".encode())
        more = True
        while more:
            view = self.server.look().view
            if news := view.since(sent):
                self.wfile.write(f"event: view\ndata: {json.dumps(news)}\n\n".encode())
                sent, at = view, time.monotonic()
            elif time.monotonic() - at > ALIVE:
                self.wfile.write(b": still here\n\n")
                at = time.monotonic()
            more = self.server.goes_on()
