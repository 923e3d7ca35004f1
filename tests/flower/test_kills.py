"""kill -9 of each part of a network, 20 times at random moments: no ledger counts too little, runs end."""

import pytest

from support.kills import VICTIMS, killed_run
from support.network import Network

TIMES = 20


@pytest.mark.parametrize("victim", VICTIMS)
def test_killed_20_times_at_random_moments(victim: str, network: Network) -> None:
    network.renew(None)
    killed, runs = 0, list[str]()
    while killed < TIMES:
        runs.append(f"{victim.replace(' ', '-')}-{len(runs)}")
        killed += killed_run(network, runs[-1], [victim] * (TIMES - killed))
    assert network.check_ledgers(*runs) > 0
