"""HTTP servers that only this machine can reach: for the live page of a run, and for metrics.

The standard library's server is enough for few readers and fixed addresses; a framework would add more code
to trust than it saves.
"""

import socketserver
import sys
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer

from discretion.errors import InputError

HOST = "127.0.0.1"
HTTP_PORT = 80  # which browsers leave out
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


class LoopbackServer(HTTPServer):
    """A server on 127.0.0.1.

    Guarantees:
        It listens on 127.0.0.1 only, and answers GET and HEAD only, at fixed addresses: no part of an address
        is ever used as the name of a file.
        A request that names another host is refused, so that a page elsewhere whose name was made to point
        here (DNS rebinding) reads nothing; so is one that a browser says another page made.
    """

    def __init__(self, port: int, handler: "type[LoopbackHandler]") -> None:
        try:
            super().__init__((HOST, port), handler)
        except OSError as problem:
            raise InputError(
                f"cannot listen on port {port}: {problem.strerror}. Give another port."
            ) from None

    def server_bind(self) -> None:
        """Bind without a name lookup."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = HOST, self.server_address[1]

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore connections that the other side cut."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            raise

    def allows(self, host: str | None) -> bool:
        names = [f"{name}:{self.server_port}" for name in (HOST, "localhost")]
        return host in names + ([HOST, "localhost"] if self.server_port == HTTP_PORT else [])


class LoopbackHandler(BaseHTTPRequestHandler):
    server: LoopbackServer
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "discretion", ""

    def is_allowed(self, first_visit: bool) -> bool:
        """Return whether the request may be answered; refuse it otherwise.

        On a first visit a browser may come from another page's link, and is shown no more than the page.
        """
        if not self.server.allows(self.headers.get("Host")):
            self.refuse(HTTPStatus.FORBIDDEN, f"this server answers to {HOST} only")
        elif not first_visit and self.headers.get("Sec-Fetch-Site") in FOREIGN:
            self.refuse(HTTPStatus.FORBIDDEN, "another page may not read this one")
        else:
            return True
        return False

    def send(self, kind: str, text: str, status: HTTPStatus = HTTPStatus.OK) -> None:
        content = text.encode()
        self.begin(kind, status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def refuse(self, status: HTTPStatus, why: str) -> None:
        self.send("text/plain", f"{status.phrase}: {why}.\n", status)

    def begin(self, kind: str, status: HTTPStatus) -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        for name, value in HEADERS.items():
            self.send_header(name, value)
        if status != HTTPStatus.OK:
            self.send_header("Connection", "close")

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer requests that the standard library refuses, such as POST, in the same form."""
        if code == HTTPStatus.NOT_IMPLEMENTED:
            code, message = HTTPStatus.METHOD_NOT_ALLOWED, "only GET is answered: nothing is changed here"
        self.refuse(HTTPStatus(code), message or "request not understood")

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""
