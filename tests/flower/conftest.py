"""One network for all tests: starting it takes longer than most of them. Without Flower there are none."""

import signal
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from support.network import Network

collect_ignore_glob = [] if find_spec("flwr") else ["test_*.py"]


@pytest.fixture(scope="session")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    signal.signal(signal.SIGTERM, lambda *_: pytest.exit("told to end", 1))  # and leave nothing behind
    made = Network(tmp_path_factory.mktemp("f"))
    try:
        made.up()
        yield made
    finally:
        made.close()
