"""Other tools get a run's public history, each round once, and nothing else; tested with these tools."""

import builtins
import csv
import json
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from commands import Cli
from discretion.config import TrackConfig, make, read
from discretion.errors import InputError
from discretion.report.reading import read_run
from discretion.runs import RunFolder, load_data, name_of, prepare, read_history
from discretion.track import Facts, Feed, open_tracker, tracking
from discretion.track.facts import facts_of, plain
from stepping import Stepping

ROUNDS = 8


@pytest.fixture
def run(small_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(small_run, tmp_path / "run"))


class Kept:
    """A tracker that keeps what it gets."""

    def __init__(self) -> None:
        self.facts: list[Facts] = []
        self.rounds: list[tuple[int, dict[str, float]]] = []
        self.ends: list[bool] = []

    def start(self, facts: Facts) -> int:
        self.facts.append(facts)
        return self.rounds[-1][0] if self.rounds else 0

    def log(self, round_: int, values: Mapping[str, float]) -> None:
        self.rounds.append((round_, dict(values)))

    def finish(self, finished: bool) -> str:
        self.ends.append(finished)
        return "here"


def test_what_goes_out_is_the_history_and_what_the_certificate_says(run: Path) -> None:
    kept = Kept()
    assert Feed(run, kept).finish() == "here" and kept.ends == [True]
    history = read_history(RunFolder(run))
    curve = read_run(run).certificate.spending
    assert [number for number, _ in kept.rounds] == list(range(1, ROUNDS + 1))
    for (number, values), line in zip(kept.rounds, history, strict=True):
        assert (values["accuracy"], values["loss"]) == (line["accuracy"], line["loss"])
        at = curve.rounds.index(number)
        for k, name in enumerate(curve.classes):
            assert values[f"spent/{plain(name)}"] == curve.epsilon[k, at]
            assert values[f"share of budget/{plain(name)}"] == curve.epsilon[k, at] / curve.budget[k]


def test_nothing_else_goes_out(run: Path) -> None:
    """Neither the seed, which would take the noise off, nor names of clients, nor paths."""
    folder = RunFolder(run)
    folder.config.write_text(folder.config.read_text().replace("seed = 3", "seed = 918273645"))
    heard = {"round": 1, "asked": 3, "answered": 2, "refused": {"c17": "secret reason"}, "lost": 0}
    folder.answers.write_text(json.dumps(heard) + "\n")
    kept = Kept()
    Feed(run, kept).finish()
    said = repr(kept.facts) + repr(kept.rounds)
    for secret in ("918273645", "c17", "secret reason", str(run), str(run.parent)):
        assert secret not in said
    assert {name for _, values in kept.rounds for name in values} == {
        *("accuracy", "loss"),
        *(f"{what}/epsilon {e}" for what in ("spent", "share of budget") for e in (4, 8, 16)),
    }


def test_no_privacy_is_said_and_infinite_epsilons_are_not_sent(small_config: Path, tmp_path: Path) -> None:
    config = read(small_config, ["plan.method=fedavg", "train.accept_no_privacy=true"])
    folder = RunFolder(tmp_path / "bare")
    prepare(config, folder, load_data(config))
    folder.history.write_text('{"round": 1, "accuracy": 0.5, "loss": NaN}\n{"round": 2}\n')
    kept = Kept()
    Feed(folder.path, kept).finish()
    assert kept.rounds == [(1, {"accuracy": 0.5, "loss": float("inf")}), (2, {})] and kept.ends == [False]
    assert "protects nobody" in str(kept.facts[0].values["protection"])


def test_figures_that_are_not_private_are_called_so(run: Path) -> None:
    folder = RunFolder(run)
    assert "belong to no client" in str(facts_of(read_run(run)).values["accuracy on"])
    folder.config.write_text(folder.config.read_text().replace('"iid"', '"natural"'))
    assert "not private" in str(facts_of(read_run(run)).values["accuracy on"])


def test_each_round_goes_out_once_however_often_it_is_resumed(run: Path) -> None:
    history = RunFolder(run).history
    lines = history.read_text().splitlines(keepends=True)
    kept = Kept()
    for done in (3, 5, 4, 6, ROUNDS):  # a resumed run may drop a line, and write it again
        history.write_text("".join(lines[:done]))
        feed = Feed(run, kept)
        feed.step()
        feed.step()
    assert [number for number, _ in kept.rounds] == list(range(1, ROUNDS + 1))


# tables


def test_csv(discretion: Cli, run: Path, tmp_path: Path) -> None:
    assert discretion("export", str(run)).code == 0
    rows = list(csv.DictReader((tmp_path / "run.csv").read_text(encoding="utf-8").splitlines()))
    history = read_history(RunFolder(run))
    assert [(int(row["round"]), float(row["accuracy"])) for row in rows] == [
        (line["round"], line["accuracy"]) for line in history
    ]
    assert {row["run"] for row in rows} == {"run"} and rows[0]["method"] == "idp_fedavg"
    assert float(rows[-1]["share of budget/epsilon 4"]) <= 1


def test_several_runs_in_one_parquet(discretion: Cli, run: Path, tmp_path: Path) -> None:
    import pyarrow.parquet

    other = Path(shutil.copytree(run, tmp_path / "other"))
    refused = discretion("export", str(run), str(other), "--to", "parquet")
    assert refused.code == 2 and "--out NAME.parquet" in refused.err
    done = discretion("export", str(run), str(other), "--to", "parquet", "-o", "both.parquet", "--json")
    assert json.loads(done.out) == {"to": "parquet", "out": ["both.parquet"]}
    table = pyarrow.parquet.read_table(tmp_path / "both.parquet")
    assert table.num_rows == 2 * ROUNDS and set(table["run"].to_pylist()) == {"run", "other"}
    assert table["spent/epsilon 4"].to_pylist()[:ROUNDS] == pytest.approx(
        read_run(run).certificate.spending.epsilon[0, 1:]
    )
    facts = json.loads(table.schema.metadata[b"discretion"])
    assert [each["run"] for each in facts] == ["run", "other"] and facts[0]["budget of epsilon 8"] == 8


# TensorBoard


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder))
    found.Reload()
    tags = found.Tags()
    assert tags["tensors"] == ["facts"]
    return {tag: [(each.step, each.value) for each in found.Scalars(tag)] for tag in tags["scalars"]}


def test_tensorboard(discretion: Cli, run: Path, tmp_path: Path) -> None:
    assert discretion("export", str(run), "--to", "tensorboard").code == 0
    history = read_history(RunFolder(run))
    expected = [(line["round"], pytest.approx(line["accuracy"])) for line in history]
    assert scalars(run / "tensorboard")["accuracy"] == expected
    for _ in range(2):  # what is there already is not written again
        discretion("export", str(run), "--to", "tensorboard", "--out", "board")
    assert scalars(tmp_path / "board" / "run")["accuracy"] == expected


def test_a_run_that_is_killed_and_resumed_is_tracked_once(small_config: Path, tmp_path: Path) -> None:
    """Rounds that were done without being tracked are made up for."""
    folder, said = RunFolder(tmp_path / "run"), []
    config = read(small_config, ["track.to=tensorboard", f"track.out={tmp_path / 'board'}"])
    prepare(config, folder, load_data(config))
    how = read(folder.config).track
    with Stepping(folder.path) as process:
        with tracking(folder.path, how, said.append) as hand_on:
            process.until(2)
            hand_on()
            process.until(3)
        process.until(4)
        process.kill()
    with Stepping(folder.path) as process, tracking(folder.path, how, said.append) as hand_on:
        process.until(6)
        hand_on()
        process.to_the_end()
    history = read_history(folder)
    expected = [(line["round"], pytest.approx(line["accuracy"])) for line in history]
    assert len(expected) == ROUNDS and said == []
    assert scalars(tmp_path / "board" / "run")["accuracy"] == expected


# MLflow


def test_mlflow(discretion: Cli, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    nowhere = discretion("export", str(run), "--to", "mlflow")
    assert nowhere.code == 2 and "say where MLflow is" in nowhere.err
    for _ in range(2):  # the same run again is the same run
        assert discretion("export", str(run), "--to", "mlflow", "--out", "mlruns").code == 0
    from mlflow import MlflowClient

    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"
    client = MlflowClient((tmp_path / "mlruns").as_uri())
    experiment = client.get_experiment_by_name("discretion")
    assert experiment
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.status == "FINISHED" and found.info.run_name == "run"
    assert found.data.tags["discretion.run"] == name_of(RunFolder(run))
    assert found.data.params["budget of epsilon 16"] == "16.0"
    logged = client.get_metric_history(found.info.run_id, "accuracy")
    history = read_history(RunFolder(run))
    assert [(m.step, m.value) for m in logged] == [(line["round"], line["accuracy"]) for line in history]


# settings and failures


def test_where_the_history_goes_is_no_part_of_what_a_run_is(tmp_path: Path) -> None:
    plain_, tracked = make({}), make({}, ["track.to=mlflow", "track.out=mlruns"])
    assert plain_.identity() == tracked.identity()
    assert Path(tracked.anchored().track.out).is_absolute()
    server = make({}, ["track.out=http://127.0.0.1:5000"])
    assert server.anchored().track.out == "http://127.0.0.1:5000"
    with pytest.raises(InputError, match="track.to"):
        make({}, ["track.to=wandb"])


def test_a_package_that_is_missing_is_named(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    genuine = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.split(".")[0] in ("tensorboard", "mlflow", "pyarrow"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name.split(".")[0])
        return genuine(name, *rest, **more)

    for name in ("discretion.track.tensorboard", "discretion.track.mlflow"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(builtins, "__import__", without)
    for to, package in (("tensorboard", "tensorboard"), ("mlflow", "mlflow"), ("parquet", "pyarrow")):
        with pytest.raises(
            InputError, match=rf"needs the package {package}.*pip install 'discretion\[track\]'"
        ):
            open_tracker(to, "somewhere", run)  # type: ignore[arg-type]
    open_tracker("csv", "", run)


def test_a_tracker_that_fails_does_not_stop_the_training(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(Kept):
        def log(self, round_: int, values: Mapping[str, float]) -> None:
            raise InputError("the server is gone")

    said: list[str] = []
    monkeypatch.setattr("discretion.track.open_tracker", lambda *_: Failing())
    with tracking(run, TrackConfig(to="mlflow"), said.append) as hand_on:
        hand_on()
        hand_on()
    assert len(said) == 1 and "Training goes on" in said[0] and "discretion export" in said[0]


def test_a_run_is_tracked_from_the_command_line(discretion: Cli, small_config: Path, tmp_path: Path) -> None:
    done = discretion(
        "run", str(small_config), "--out", "new", "--track", "tensorboard", "--no-report", "--json"
    )
    assert done.code == 0
    history = read_history(RunFolder(tmp_path / "new"))
    logged = scalars(tmp_path / "new" / "tensorboard")["accuracy"]
    assert logged == [(line["round"], pytest.approx(line["accuracy"])) for line in history]
