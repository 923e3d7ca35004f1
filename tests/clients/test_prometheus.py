"""Metrics: text that another reader understands, on this machine only, whatever goes wrong."""

import math
import socket

import pytest

from discretion.clients.prometheus import (
    Metric,
    MetricsServer,
    Sample,
    counter,
    gauge,
    histogram,
    port_of,
    text_of,
)
from discretion.errors import InputError
from support.exposition import parse, scrape

HOSTILE = 'a\\b"c\nd} 1 {x="y"'


def test_another_reader_understands_the_text() -> None:
    metrics = [
        Metric("a_total", "counter", "Back\\slash and\nline.", (Sample(3, {"why": HOSTILE}), Sample(1))),
        gauge("b", "Help.", math.inf),
        gauge("c", "Help.", 1e-30),
        gauge("d", "Help.", -math.inf),
        histogram("e", "Help.", {0.1: 2, 10.0: 2, math.inf: 5}, 61.5),
    ]
    found = parse(text_of(metrics))
    assert found.of("a_total", why=HOSTILE) == 3 and found.of("a_total") == 1
    assert (found.of("b"), found.of("c"), found.of("d")) == (math.inf, 1e-30, -math.inf)
    assert found.of("e_bucket", le="10.0") == 2 and found.of("e_sum") == 61.5 and found.of("e_count") == 5


@pytest.mark.parametrize(
    "address",
    [
        *("0.0.0.0:9464", "localhost:9464", "192.168.0.1:9464", "127.0.0.2:9464", ":9464", "9464"),
        *("127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:9464/x", "[::1]:9464", "127.0.0.1:٣"),
    ],
)
def test_other_addresses_are_refused(address: str) -> None:
    with pytest.raises(InputError, match="on this machine"):
        port_of(address)


def test_metrics_are_served_on_this_machine_only() -> None:
    assert port_of("127.0.0.1:0") == 0
    with MetricsServer(0, lambda: [counter("a_total", "Help.", 1)]) as server:
        assert server.server_address[0] == "127.0.0.1"
        status, kind, text = scrape(server.address)
        assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
        assert parse(text).of("a_total") == 1
        assert scrape(server.address + "/x")[0] == 404
        assert scrape(server.address, Host="elsewhere.example")[0] == 403  # DNS rebinding
        assert scrape(server.address, **{"Sec-Fetch-Site": "cross-site"})[0] == 403
        with socket.create_connection(("127.0.0.1", server.server_port)):  # says nothing, and goes
            pass
        assert scrape(server.address)[0] == 200
        with pytest.raises(InputError, match="another port"):
            MetricsServer(server.server_port, list)


def test_what_goes_wrong_ends_nothing_and_tells_nothing(caplog: pytest.LogCaptureFixture) -> None:
    times = iter(range(2))

    def collect() -> list[Metric]:
        if next(times) == 0:
            raise OSError("a secret path")
        return []

    with MetricsServer(0, collect) as server:
        status, _, text = scrape(server.address)
        assert status == 500 and "secret" not in text and "a secret path" in caplog.text
        assert scrape(server.address)[0] == 200
