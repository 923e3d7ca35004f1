"""Runs on Flower that say little more than quicker ones, for `make test-deployment`."""

from pathlib import Path

from support.flower_checks import check_noise, check_same_as_in_one_process
from support.network import SETTINGS, Network


def test_a_run_on_fashion_mnist_is_the_run_in_one_process(tmp_path: Path) -> None:
    network = Network(tmp_path, SETTINGS.replace("digits", "fashion-mnist").replace("mlp", "cnn_small"))
    try:
        network.up()
        check_same_as_in_one_process(network)
    finally:
        network.close()


def test_rounds_that_lost_a_reply_are_discarded(network: Network) -> None:
    network.renew(None)
    check_noise(network, "discarded", "discard", 8)
