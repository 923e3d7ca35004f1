"""A run in Flower's simulation is the run in one process, and its guards keep ledgers of their own."""

from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from discretion.accounting import Certificate
from discretion.ledger.ledger import Ledger
from support.network import SETTINGS, Command
from support.on_record import epsilon_on_record

pytest.importorskip("ray", reason="Flower's simulation is an extra: make test-deployment")


def test_a_simulation_on_flower_is_the_run_in_one_process(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(SETTINGS.partition("[clients]")[0])
    Command.discretion(tmp_path, "run", "config.toml", "--on", "flower-sim", "--out", "far").require()
    Command.discretion(tmp_path, "run", "config.toml", "--out", "near", "--no-report").require()
    far, near = (safetensors.numpy.load_file(tmp_path / run / "model.safetensors") for run in ("far", "near"))
    for name in near:
        np.testing.assert_allclose(far[name], near[name], atol=1e-5)
    certificate = Certificate.from_json((tmp_path / "far" / "certificate.json").read_text())
    for i, name in enumerate(certificate.clients):
        with Ledger.existing(tmp_path / "far" / "guards" / name / "guard" / "ledger.sqlite") as ledger:
            assert epsilon_on_record(ledger)[0] == pytest.approx(certificate.spent[i], rel=1e-9)
