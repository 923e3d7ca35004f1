"""HTTP server of the live page: a page, its events and its numbers, for reading on this machine only.

The standard library's server is enough for one reader and three addresses; a framework would add more code
to trust than it saves.
"""

import json
import secrets
import socketserver
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from discretion.errors import InputError
from discretion.jsonfile import dump
from discretion.watch.follow import Follow, Seen
from discretion.watch.live_page import PageView, page, view_of
from discretion.watch.state import record_of

HOST = "127.0.0.1"
HTTP_PORT = 80  # which browsers leave out
EVERY = 0.5  # seconds between two looks at the folder
ALIVE = 15.0  # seconds after which silence is broken, so that a closed page is noticed
RETRY = 1000  # milliseconds after which a page asks again
FOREIGN = {"cross-site", "same-site"}  # what a browser says of requests that other pages make
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",  # the rest is in the page itself
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


@dataclass(frozen=True)
class Now:
    seen: Seen
    view: PageView


class Watch(ThreadingHTTPServer):
    """Serves one run's live page; all open pages share one look at the folder.

    Guarantees:
        It listens on 127.0.0.1 only, and answers GET and HEAD only, at three fixed addresses: no part of an
        address is ever used as the name of a file.
        A request that names another host is refused, so that a page elsewhere whose name was made to point
        here (DNS rebinding) reads nothing; so is one that a browser says another page made.
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
        self._now: Now | None = None
        self._closed = threading.Event()
        self.home = f"/{secrets.token_urlsafe(16)}/"
        try:
            super().__init__((HOST, port), Handler)
        except OSError as problem:
            raise InputError(
                f"cannot listen on port {port}: {problem.strerror}. Give another --port."
            ) from None

    def server_bind(self) -> None:
        """Bind without a name lookup."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = HOST, self.server_address[1]

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore connections that a closed page cut."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            raise

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

    def allows(self, host: str | None) -> bool:
        names = [f"{name}:{self.server_port}" for name in (HOST, "localhost")]
        return host in names + ([HOST, "localhost"] if self.server_port == HTTP_PORT else [])

    def goes_on(self) -> bool:
        """Wait for the next look; return whether the server is still open."""
        return not self._closed.wait(self._every)

    def server_close(self) -> None:
        self._closed.set()
        super().server_close()


class Handler(BaseHTTPRequestHandler):
    server: Watch
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "discretion", ""
    timeout = 60  # seconds, to get a request

    def do_GET(self) -> None:
        place = self.server.place(self.path)
        if not self._allowed(place):
            return
        if place == "":
            self._send("text/html", page(self.server.look().view))
        elif place == "state":
            self._send("application/json", dump(record_of(self.server.look().seen)))
        elif place == "events":
            self._stream()
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "expected the address that discretion watch printed")

    do_HEAD = do_GET

    def _allowed(self, place: str | None) -> bool:
        if not self.server.allows(self.headers.get("Host")):
            self._refuse(HTTPStatus.FORBIDDEN, f"this server answers to {HOST} only")
        elif place and self.headers.get("Sec-Fetch-Site") in FOREIGN:
            self._refuse(HTTPStatus.FORBIDDEN, "another page may not read this one")
        else:
            return True
        return False

    def _send(self, kind: str, text: str, status: HTTPStatus = HTTPStatus.OK) -> None:
        content = text.encode()
        self._head(kind, status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        self._send("text/plain", f"{status.phrase}: {why}.\n", status)

    def _head(self, kind: str, status: HTTPStatus) -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        for name, value in HEADERS.items():
            self.send_header(name, value)
        if status != HTTPStatus.OK:
            self.send_header("Connection", "close")

    def _stream(self) -> None:
        """Send the whole view, and then each change when it comes."""
        self._head("text/event-stream", HTTPStatus.OK)
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

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer requests that the standard library refuses, such as POST, in the same form."""
        if code == HTTPStatus.NOT_IMPLEMENTED:
            code, message = HTTPStatus.METHOD_NOT_ALLOWED, "only GET is answered: a run can only be read here"
        self._refuse(HTTPStatus(code), message or "request not understood")

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""
