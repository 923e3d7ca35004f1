"""A study: every method with every seed, in processes of their own, from where it stopped."""

from pathlib import Path

import pytest

from discretion import experiments
from discretion.errors import ConfigError, DataError, DiscretionError
from discretion.tasks import datasets

STUDY = """
[study]
title = "small"
methods = ["fedavg", "dp_fedavg"]
seeds = 2
[population]
clients = 20
budgets = "groups:4,8,16"
[data]
name = "digits"
[model]
name = "linear"
[plan]
rounds = 2
rate = 0.5
[train]
threads = 1
accept_no_privacy = true
"""


def test_a_study_runs_everything_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    study = experiments.read_study(STUDY, ["plan.rounds=3"], print)
    seen: list[list[experiments.Running]] = []
    folders = experiments.run_study(study, tmp_path, 2, seen.append)
    assert [f.path.name for f in folders] == ["fedavg-0", "dp_fedavg-0", "fedavg-1", "dp_fedavg-1"]
    assert all(folder.model.exists() for folder in folders)
    assert {run.total for run in seen[-1]} == {3}
    assert [run.spent > 1 for run in seen[-1]] == [True, False, True, False]  # no privacy, and within budget
    same_data = {folder.population.read_text() for folder in folders[:2]}
    assert len(same_data) == 1  # methods are compared on the same clients
    assert folders[0].population.read_text() != folders[2].population.read_text()

    before = [folder.model.stat().st_mtime_ns for folder in folders]
    folders[1].model.unlink()
    folders[1].history.unlink()
    (folders[1].path / "ledger.sqlite").unlink()
    experiments.run_study(study, tmp_path, 1, seen.append)
    after = [folder.model.stat().st_mtime_ns for folder in folders]
    assert [a == b for a, b in zip(before, after, strict=True)] == [True, False, True, True]
    assert seen[-1][1].accuracy is not None


def test_a_run_that_fails_is_named_with_its_reason(tmp_path: Path) -> None:
    study = experiments.read_study(STUDY, [], print)
    folders = experiments.run_study(study, tmp_path, 2, lambda _: None)
    with pytest.raises(ConfigError, match="made with other settings"):
        other = experiments.read_study(STUDY, ["train.epochs=2"], print)
        experiments.run_study(other, tmp_path, 2, lambda _: None)
    folders[3].model.unlink()
    folders[3].plan.write_text("{}")
    with pytest.raises(DiscretionError, match=r"dp_fedavg-1: .*not a plan of Discretion"):
        experiments.run_study(study, tmp_path, 2, lambda _: None)


def test_without_the_data_the_fallback_is_used_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    load = datasets.load

    def no_network(name: str, **options: object) -> datasets.Dataset:
        if name == "fashion-mnist":
            raise DataError("fashion-mnist: tried the official source: no answer")
        return load(name)

    monkeypatch.setattr(datasets, "load", no_network)
    said: list[str] = []
    study = experiments.read_study(experiments.demo_text(), [], said.append)
    assert study.config("fedavg", 0).data.name == "digits"
    assert "Digits" in study.title
    assert "tried the official source" in said[0] and "scikit-learn" in said[0]
    with pytest.raises(DataError):
        experiments.read_study(STUDY.replace("digits", "fashion-mnist"), [], said.append)


@pytest.mark.parametrize("override", ["seed=3", "plan.method=fedavg"])
def test_a_study_has_methods_and_seeds_of_its_own(override: str) -> None:
    with pytest.raises(ConfigError, match="of its own"):
        experiments.read_study(STUDY, [override], print)
