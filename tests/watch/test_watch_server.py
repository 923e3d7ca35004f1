"""The server of the live page: what it tells whom, and that it does nothing else."""

import http.client
import json
import re
import shutil
import socket
import threading
from collections.abc import Generator, Iterator
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from discretion.clients.loopback import HOST
from discretion.errors import InputError
from discretion.runs.config import read
from discretion.runs.folder import RunFolder
from discretion.runs.prepare import prepare
from discretion.runs.read import read_run
from discretion.watch.server import Watch
from support.small_run import ROUNDS, contents
from support.stepping import Stepping


@pytest.fixture
def copy(small_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(small_run, tmp_path / "run"))


@pytest.fixture
def served(copy: Path) -> Iterator[Watch]:
    yield from serving(copy)


def serving(folder: Path) -> Iterator[Watch]:
    with Watch(folder, every=0.01) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


Answer = tuple[int, dict[str, str], bytes]


def ask(server: Watch, method: str, path: str, headers: dict[str, str] | None = None) -> Answer:
    """`path` is what follows the secret."""
    return ask_at(server, method, server.home.rstrip("/") + path, headers)


def ask_at(server: Watch, method: str, path: str, headers: dict[str, str] | None = None) -> Answer:
    connection = http.client.HTTPConnection(HOST, server.server_port, timeout=30)
    connection.putrequest(method, path, skip_host=bool(headers and "Host" in headers))
    for name, value in (headers or {}).items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    found = answer.status, dict(answer.getheaders()), answer.read()
    connection.close()
    return found


def test_the_page_is_whole_before_any_script_runs(served: Watch) -> None:
    status, headers, body = ask(served, "GET", "/")
    text = unescape(body.decode())
    assert status == 200 and headers["Content-Type"] == "text/html; charset=utf-8"
    assert f"All {ROUNDS} rounds are done" in text and text.count('class="chart"') == 2
    assert "connect-src 'self'" in text and not re.search(r"(src|href)=\"(?!#|data:|budgets\")", text)
    assert headers["Cache-Control"] == "no-store" and headers["X-Frame-Options"] == "DENY"
    assert "Access-Control-Allow-Origin" not in headers


def test_the_budgets_of_all_runs_on_the_ledger(served: Watch, copy: Path) -> None:
    before = contents(copy)
    status, headers, body = ask(served, "GET", "/budgets")
    text = unescape(body.decode())
    assert status == 200 and headers["Content-Type"] == "text/html; charset=utf-8"
    assert "Every client" in text and read_run(copy).about.id in text
    assert contents(copy) == before
    RunFolder(copy).ledger(read_run(copy).config).write_bytes(b"damaged")
    status, _, body = ask(served, "GET", "/budgets")
    assert status == 503 and b"ledger" in body


def test_without_a_run_there_are_no_budgets(tmp_path: Path) -> None:
    for server in serving(tmp_path / "later"):
        status, _, body = ask(server, "GET", "/budgets")
        assert status == 503 and b"there is no run yet" in body


def test_numbers_for_machines(served: Watch) -> None:
    status, headers, body = ask(served, "GET", "/state")
    found = json.loads(body)
    assert status == 200 and headers["Content-Type"] == "application/json; charset=utf-8"
    assert found["status"] == "finished" and found["done"] == ROUNDS and len(found["accuracy"]) == ROUNDS
    assert [row["budget"] for row in found["classes"]] == [4, 8, 16]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "BREW"])
def test_only_reading_is_answered(served: Watch, copy: Path, method: str) -> None:
    before = contents(copy)
    for path in ("/", "/events", "/state"):
        status, headers, body = ask(served, method, path)
        assert status == 405 and headers["Connection"] == "close" and b"only GET" in body
    assert contents(copy) == before


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1:1", "localhost", "0.0.0.0:{port}", ""]
)
def test_a_name_that_was_made_to_point_here_reads_nothing(served: Watch, host: str) -> None:
    for path in ("/", "/events", "/state"):
        status, _, body = ask(served, "GET", path, {"Host": host.format(port=served.server_port)})
        assert status == 403 and len(body) < 200
    assert ask(served, "GET", "/state", {"Host": f"localhost:{served.server_port}"})[0] == 200


def test_other_pages_may_not_read(served: Watch) -> None:
    for site, status in (("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200)):
        assert ask(served, "GET", "/state", {"Sec-Fetch-Site": site})[0] == status
    assert ask(served, "GET", "/", {"Sec-Fetch-Site": "cross-site"})[0] == 200  # a link to the page


@pytest.mark.parametrize(
    "path",
    ["/../config.toml", "/..%2fconfig.toml", "/config.toml", "/run.json", "//etc/passwd", "/state/", "/.key",
     "/events/../../x", "/%00", "/?../config.toml", "http://127.0.0.1/../config.toml"],
)  # fmt: skip
def test_no_address_is_the_name_of_a_file(served: Watch, path: str) -> None:
    for asking in (ask, ask_at):
        status, _, body = asking(served, "GET", path)
        assert status in (403, 404) and len(body) < 200


def test_who_does_not_know_the_secret_reads_nothing(served: Watch, copy: Path) -> None:
    secret = served.home.strip("/")
    assert len(secret) >= 22 and served.address.endswith(f"/{secret}/")
    wrong = secret[:-1] + ("a" if secret[-1] != "a" else "b")
    for start in ("", f"/{wrong}", f"/{secret[:-1]}", f"/é{secret}"):
        for path in ("/", "/events", "/state"):
            status, _, body = ask_at(served, "GET", quote(start) + path)
            assert status == 404 and secret.encode() not in body
    assert ask_at(served, "GET", f"/{secret}")[0] == 404
    assert ask_at(served, "GET", f"/{secret}/state")[0] == 200
    body = ask_at(served, "GET", "/", {"Host": "evil.example"})[2]
    assert secret.encode() not in body
    with Watch(copy) as other:
        assert other.home != served.home


def test_browsers_leave_out_port_80(served: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not served.allows("localhost") and not served.allows(HOST)
    monkeypatch.setattr(served, "server_port", 80)
    assert all(map(served.allows, ("localhost", HOST, "localhost:80", f"{HOST}:80")))
    assert not served.allows("evil.example") and not served.allows("evil.example:80")


def test_head_is_like_get_without_the_body(served: Watch) -> None:
    for path in ("/", "/state", "/events"):
        status, headers, body = ask(served, "HEAD", path)
        assert status == 200 and body == b"" and headers["X-Content-Type-Options"] == "nosniff"


def test_requests_that_are_none_are_refused(served: Watch) -> None:
    for sent in (
        b"GARBAGE\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET " + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n",
    ):
        with socket.create_connection((HOST, served.server_port), timeout=30) as line:
            line.sendall(sent)
            assert b" 200 " not in line.recv(100)
    assert ask(served, "GET", "/state")[0] == 200


def test_it_is_on_this_machine_only(served: Watch) -> None:
    assert served.server_address[0] == "127.0.0.1" and served.address.startswith("http://127.0.0.1:")


def events(server: Watch) -> Generator[dict[str, Any], None, None]:
    connection = http.client.HTTPConnection(HOST, server.server_port, timeout=60)
    connection.request("GET", f"{server.home}events")
    answer = connection.getresponse()
    assert answer.status == 200 and answer.getheader("Content-Type") == "text/event-stream; charset=utf-8"
    try:
        for line in answer:
            if line.startswith(b"data: "):
                yield json.loads(line[6:])
    finally:
        connection.close()


class Shown:
    """What a page shows that takes in what comes."""

    def __init__(self, server: Watch) -> None:
        self.stream, self.status = events(server), ""
        self.parts: dict[str, str] = {}
        self.charts: dict[str, str] = {}

    def until(self, status: str, lead: str) -> None:
        while not (self.status == status and lead in self.parts.get("lead", "")):
            news = next(self.stream)
            assert news
            self.parts |= news.get("parts", {})
            self.charts |= news.get("charts", {})
            self.status = news.get("status", self.status)


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[Watch]:
    yield from serving(tmp_path / "run")


def test_events_follow_a_run_that_is_killed_and_resumed(
    waiting: Watch, small_config: Path, tmp_path: Path
) -> None:
    """From before its folder is there until it is finished, on one connection."""
    folder, config, shown = RunFolder(tmp_path / "run"), read(small_config), Shown(waiting)
    shown.until("waiting", "There is no run")
    prepare(config, folder)
    shown.until("ready", "Training has not begun")
    with Stepping(folder.path) as run:
        run.until(2)
        shown.until("running", f"Round 2 of {ROUNDS}")
        early = shown.charts["chart-accuracy"]
        run.kill()
        shown.until("stopped", "--resume")
    with Stepping(folder.path) as run:
        run.until(4)
        shown.until("running", f"Round 4 of {ROUNDS}")
        assert shown.charts["chart-accuracy"] != early
        run.to_the_end()
    shown.until("finished", f"All {ROUNDS} rounds are done")
    assert shown.parts["classes"] == waiting.look().view.parts["classes"]
    shown.stream.close()


def test_a_port_that_is_taken_is_said(served: Watch, copy: Path) -> None:
    with pytest.raises(InputError, match=f"port {served.server_port}.*another port"):
        Watch(copy, served.server_port)
