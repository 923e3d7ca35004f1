"""One network for all tests of a module: starting it takes longer than most of them."""

from collections.abc import Iterator

import pytest

pytest.importorskip("flwr", reason="Flower is an extra: make test-deployment")

from network import Network


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    made = Network(tmp_path_factory.mktemp("f"))
    try:
        yield made
    finally:
        made.close()
