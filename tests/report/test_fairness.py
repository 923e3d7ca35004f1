"""Accuracy by budget class is of the right clients, called not private, refused where data may be real."""

from pathlib import Path

import numpy as np
import pytest

from discretion.errors import InputError
from discretion.report import write
from discretion.report.fairness import measure
from discretion.report.run_group import group
from discretion.runs import config
from discretion.runs.execute import execute
from discretion.runs.folder import RunFolder
from discretion.runs.prepare import prepare
from discretion.runs.read import read_runs
from support.run_folders import SMALL, trained


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("fairness") / "run", "data.partition=shards")


def test_classes_together_are_all_records(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = group(read_runs([run]))
    (found,) = measure(groups).values()
    each = np.array([estimate.mean for estimate in found])
    assert len(each) == 3 and len(set(each)) > 1 and all(estimate.std is None for estimate in found)
    first = groups[0].first
    sizes = np.bincount(first.classes[1], first.population.size)
    monkeypatch.setattr(type(groups[0].first), "classes", (("all",), np.zeros(12, dtype=np.int64)))
    (whole,) = measure(group(read_runs([run]))).values()
    assert float(each @ sizes / sizes.sum()) == pytest.approx(whole[0].mean)


def test_it_is_shown_only_when_asked_for_and_called_not_private(run: Path, tmp_path: Path) -> None:
    write([run], tmp_path / "plain.html")
    write([run], tmp_path / "asked.html", class_accuracy=True)
    plain, asked = ((tmp_path / f"{name}.html").read_text() for name in ("plain", "asked"))
    assert "Accuracy on its own records" not in plain and "--class-accuracy" in plain
    assert "Accuracy on its own records" in asked and "<b>Not private</b>" in asked


def test_real_data_is_not_looked_at(tmp_path: Path) -> None:
    run = trained(tmp_path / "real", "train.randomness=cryptographic")
    with pytest.raises(InputError, match="would leak what their budgets protect"):
        write([run], tmp_path / "report.html", class_accuracy=True)
    assert not RunFolder(run).profile.exists()  # time tells of who took part
    write([run], tmp_path / "report.html")
    assert "Where time went" not in (tmp_path / "report.html").read_text()


def test_time_is_added_up_over_resumes(tmp_path: Path) -> None:
    wanted = config.make(SMALL)
    folder = RunFolder(tmp_path / "run")
    task = prepare(wanted, folder)

    class Stop(Exception):
        pass

    def stop(now: object) -> None:
        if getattr(now, "round", 0) == 1:
            raise Stop

    with pytest.raises(Stop):
        execute(task, stop)
    execute(task)
    (run,) = read_runs([folder.path])
    assert run.profile and run.profile.rounds == 4 and run.profile.seconds["train"] > 0
    write([folder.path], folder.report)
    assert "Where time went" in folder.report.read_text()
