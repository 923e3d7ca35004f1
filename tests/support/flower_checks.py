"""What must hold after a run on Flower."""

from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from discretion.accounting import Certificate
from discretion.plan.plan import Plan
from discretion.plan.population import Population
from discretion.runs import config
from discretion.runs.build import load_data
from discretion.runs.folder import RunFolder
from discretion.runs.prepare import build_task
from support.network import Network
from support.on_record import epsilon_on_record


def flat(tensors: dict[str, np.ndarray]) -> np.ndarray:
    return np.concatenate([tensors[name].ravel() for name in sorted(tensors)])


def model_of(folder: Path) -> np.ndarray:
    return flat(safetensors.numpy.load_file(folder / "model.safetensors"))


def check_same_as_in_one_process(network: Network) -> None:
    """With seeds for tests: the model, and what every guard has on record."""
    network.complete("far")
    network.do("run", "config.toml", "--out", "near", "--no-report")
    far, near = (model_of(network.folder / name) for name in ("far", "near"))
    np.testing.assert_allclose(far, near, atol=1e-5)
    certificate = Certificate.from_json((network.folder / "far" / "certificate.json").read_text())
    for i, name in enumerate(certificate.clients):
        with network.ledger(name) as ledger:
            assert epsilon_on_record(ledger)[0] == pytest.approx(certificate.spent[i], rel=1e-9)
    heard = network.heard("far")
    assert [each["round"] for each in heard] == [1, 2, 3]
    assert all(each["asked"] == each["answered"] for each in heard)


def check_noise(network: Network, name: str, missing: str, rounds: int) -> None:
    for door in network.doors.values():
        door.lose = 0.2
    shares = ("plan.method=concert", "plan.options.average=0", "plan.rate=1.0", f"clients.missing={missing}")
    still = ("train.learning_rate=1e-30", "train.randomness=cryptographic", f"plan.rounds={rounds}")
    network.complete(name, *shares, *still)
    # a round that was interrupted moves nothing; when the run was resumed, nobody was asked in it again
    folder, heard = RunFolder(network.folder / name), [each for each in network.heard(name) if each["asked"]]
    assert heard and all(each["answered"] + each["lost"] == 5 for each in heard)
    moved = sum(missing == "top_up" or each["lost"] == 0 for each in heard)
    (phase,) = Plan.from_json(folder.plan.read_text()).phases
    settings = config.read(folder.config)
    start = build_task(settings, load_data(settings), Population.from_csv(folder.population)).clients
    step = model_of(folder.path) - flat(start.named(start.initial()))
    planned = phase.noise[0] * phase.weight[0] * moved**0.5
    assert step.std() == pytest.approx(planned, rel=5 / (2 * len(step)) ** 0.5, abs=1e-6)
