"""Metrics in Prometheus's text format, served on 127.0.0.1."""

import logging
import math
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Literal, Self

from discretion.clients.loopback import HOST, LoopbackHandler, LoopbackServer
from discretion.errors import InputError

log = logging.getLogger("discretion.metrics")

FORMAT = "text/plain; version=0.0.4"
PATH = "/metrics"
LARGEST_PORT = 65535
ENDING = 0.2  # seconds until a server that is told to end does


@dataclass(frozen=True)
class Sample:
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)
    suffix: str = ""  # of the name: _bucket, _sum and _count of a histogram


@dataclass(frozen=True)
class Metric:
    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    samples: tuple[Sample, ...]


def gauge(name: str, help: str, value: float) -> Metric:
    return Metric(name, "gauge", help, (Sample(value),))


def counter(name: str, help: str, value: float) -> Metric:
    return Metric(name, "counter", help, (Sample(value),))


def by_label(
    name: str, kind: Literal["counter", "gauge"], help: str, label: str, values: Mapping[str, float]
) -> Metric:
    """Return a metric with a sample for each value of one label."""
    return Metric(name, kind, help, tuple(Sample(value, {label: of}) for of, value in values.items()))


def histogram(name: str, help: str, buckets: Mapping[float, int], total: float) -> Metric:
    """Return a histogram from the counts of values up to each bound, the last of which is infinite."""
    samples = [Sample(count, {"le": _number(bound)}, "_bucket") for bound, count in buckets.items()]
    ends = (Sample(total, suffix="_sum"), Sample(buckets[math.inf], suffix="_count"))
    return Metric(name, "histogram", help, (*samples, *ends))


def text_of(metrics: Iterable[Metric]) -> str:
    """Return the metrics as text, as Prometheus reads it."""
    lines = []
    for metric in metrics:
        lines.append(f"# HELP {metric.name} {_escaped(metric.help)}")
        lines.append(f"# TYPE {metric.name} {metric.kind}")
        lines += [f"{metric.name}{_labelled(sample)} {_number(sample.value)}" for sample in metric.samples]
    return "\n".join(lines) + "\n"


def _labelled(sample: Sample) -> str:
    pairs = ",".join(f'{name}="{_quoted(value)}"' for name, value in sample.labels.items())
    return sample.suffix + (f"{{{pairs}}}" if pairs else "")


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', '\\"')


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return f"{value:d}" if isinstance(value, int) else repr(float(value))


def port_of(address: str) -> int:
    """Return the port of an address on this machine, such as 127.0.0.1:9464; all others are refused."""
    found = re.fullmatch(rf"{re.escape(HOST)}:([0-9]{{1,5}})", address)
    if found is None or int(found[1]) > LARGEST_PORT:
        raise InputError(
            f"found {address!r}, expected an address on this machine, such as {HOST}:9464: metrics are for "
            "this machine only"
        )
    return int(found[1])


class MetricsServer(LoopbackServer):
    """Serves metrics at /metrics, in a thread of its own, as long as it is entered.

    Guarantees:
        What goes wrong while metrics are collected is logged and answered with an error; it ends nothing.
        Requests are answered one after the other: however many come, they take one thread.
    """

    def __init__(self, port: int, collect: Callable[[], Sequence[Metric]]) -> None:
        super().__init__(port, MetricsHandler)
        self.collect = collect
        self._thread = threading.Thread(
            target=self.serve_forever, args=(ENDING,), name="metrics", daemon=True
        )

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.server_port}{PATH}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()


class MetricsHandler(LoopbackHandler):
    server: MetricsServer
    protocol_version = "HTTP/1.0"  # a connection that is kept open would hold up the next one
    timeout = 5  # seconds, to get a request

    def do_GET(self) -> None:
        if not self.is_allowed(first_visit=False):
            return
        if self.path != PATH:
            return self.refuse(HTTPStatus.NOT_FOUND, f"metrics are at {PATH}")
        try:
            text = text_of(self.server.collect())
        except Exception:
            log.exception("metrics cannot be collected")
            return self.refuse(HTTPStatus.INTERNAL_SERVER_ERROR, "the log has the details")
        self.send(FORMAT, text)

    do_HEAD = do_GET
