"""Other tools get a run's public history, each round once, and nothing else; tested with these tools."""

import builtins
import csv
import json
import os
import shutil
import sys
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from discretion.errors import InputError
from discretion.export.facts import Facts, ascii_name, facts_of
from discretion.export.feed import Feed, open_tracker, tracking
from discretion.runs.config import TrackConfig, make, read
from discretion.runs.folder import RunFolder
from discretion.runs.history import read_history
from discretion.runs.prepare import prepare
from discretion.runs.read import read_run
from support.commands import Cli
from support.run_folders import keep_secret, seal
from support.small_run import ROUNDS
from support.stepping import Stepping


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
    history = read_history(RunFolder(run).history).lines
    curve = read_run(run).certificate.spending
    assert [number for number, _ in kept.rounds] == list(range(1, ROUNDS + 1))
    for (number, values), line in zip(kept.rounds, history, strict=True):
        assert (values["accuracy"], values["loss"]) == (line.accuracy, line.loss)
        at = curve.rounds.index(number)
        for k, name in enumerate(curve.classes):
            assert values[f"spent/{ascii_name(name)}"] == curve.epsilon[k, at]
            assert values[f"share of budget/{ascii_name(name)}"] == curve.epsilon[k, at] / curve.budget[k]


def test_nothing_else_goes_out(run: Path) -> None:
    """Neither the seed, which would take the noise off, nor names of clients, nor paths."""
    folder = RunFolder(run)
    folder.config.write_text(folder.config.read_text().replace("seed = 3", "seed = 918273645"))
    heard = {"round": 1, "asked": 3, "answered": 2, "refused": {"c17": "secret reason"}, "lost": 0}
    folder.answers.write_text(json.dumps(heard) + "\n")
    seal(run)
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
    prepare(config, folder)
    folder.history.write_text('{"round": 1, "accuracy": 0.5, "loss": "inf"}\n{"round": 2}\n')
    kept = Kept()
    Feed(folder.path, kept).finish()
    assert kept.rounds == [(1, {"accuracy": 0.5, "loss": float("inf")}), (2, {})] and kept.ends == [False]
    assert "protects nobody" in str(kept.facts[0].values["protection"])


def test_figures_that_are_not_private_are_called_so(run: Path) -> None:
    folder = RunFolder(run)
    assert "belong to no client" in str(facts_of(read_run(run)).values["accuracy on"])
    folder.config.write_text(folder.config.read_text().replace('"iid"', '"natural"'))
    seal(run)
    assert "not private" in str(facts_of(read_run(run)).values["accuracy on"])


def test_each_round_goes_out_once_however_often_it_is_resumed(run: Path) -> None:
    history = RunFolder(run).history
    lines = history.read_text().splitlines(keepends=True)
    kept = Kept()
    for done in (3, 5, 4, 6, ROUNDS):  # a resumed run may drop a line, and write it again
        history.write_text("".join(lines[:done]))
        seal(run)
        feed = Feed(run, kept)
        feed.step()
        feed.step()
    assert [number for number, _ in kept.rounds] == list(range(1, ROUNDS + 1))


# tables


def test_csv(discretion: Cli, run: Path, tmp_path: Path) -> None:
    assert discretion("export", str(run)).code == 0
    rows = list(csv.DictReader((tmp_path / "run.csv").read_text(encoding="utf-8").splitlines()))
    history = read_history(RunFolder(run).history).lines
    assert [(int(row["round"]), float(row["accuracy"])) for row in rows] == [
        (line.round, line.accuracy) for line in history
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


@pytest.mark.parametrize("start", list("=+-@\t\r\n"))
def test_no_cell_is_a_formula(run: Path, tmp_path: Path, start: str) -> None:
    folder = RunFolder(run)
    about = json.loads(folder.about.read_text())
    folder.about.write_text(json.dumps(about | {"data": f"{start}cmd"}))
    seal(run)
    Feed(run, open_tracker("csv", str(tmp_path / "out.csv"), run)).finish()
    with (tmp_path / "out.csv").open(newline="") as file:
        assert {row["data"] for row in csv.DictReader(file)} == {
            "'" + start.replace("\r", " ").replace("\n", " ") + "cmd"
        }


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
    history = read_history(RunFolder(run).history).lines
    expected: list[Any] = [(line.round, pytest.approx(line.accuracy)) for line in history]
    assert scalars(run / "tensorboard")["accuracy"] == expected
    for _ in range(2):  # what is there already is not written again
        discretion("export", str(run), "--to", "tensorboard", "--out", "board")
    assert scalars(tmp_path / "board" / f"run-{read_run(RunFolder(run)).about.id}")["accuracy"] == expected


def test_a_run_that_is_killed_and_resumed_is_tracked_once(small_config: Path, tmp_path: Path) -> None:
    """Rounds that were done without being tracked are made up for."""
    folder, said = RunFolder(tmp_path / "run"), list[str]()
    config = read(small_config, ["track.to=tensorboard", f"track.out={tmp_path / 'board'}"])
    prepare(config, folder)
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
    history = read_history(folder.history).lines
    expected: list[Any] = [(line.round, pytest.approx(line.accuracy)) for line in history]
    assert len(expected) == ROUNDS and said == []
    assert scalars(tmp_path / "board" / f"run-{read_run(folder).about.id}")["accuracy"] == expected


def test_runs_whose_folders_have_one_name_are_kept_apart(discretion: Cli, run: Path, tmp_path: Path) -> None:
    other = RunFolder(Path(shutil.copytree(run, tmp_path / "else" / "run")))
    about = json.loads(other.about.read_text())
    other.about.write_text(json.dumps(about | {"id": "another"}))
    seal(other.path)
    assert discretion("export", str(run), str(other.path), "--to", "tensorboard", "--out", "board").code == 0
    for name in (about["id"], "another"):
        assert len(scalars(tmp_path / "board" / f"run-{name}")["accuracy"]) == ROUNDS


def wall_times(folder: Path) -> list[float]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder))
    found.Reload()
    return [each.wall_time for each in found.Scalars("accuracy")]


def test_when_a_round_was_done_goes_out_only_where_it_tells_nothing(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that runs unevenly: rounds of a run with secret coins are a second apart all the same."""
    from mlflow import MlflowClient

    from discretion.export.mlflow import MLflow
    from discretion.export.tensorboard import TensorBoard

    now = [2e9]

    def clock() -> float:
        now[0] += now[0] % 7 + 1.5
        return now[0]

    monkeypatch.setattr("discretion.export.facts.time.time", clock)
    found: dict[str, list[list[float]]] = {}
    for name in ("open", "secret"):
        if name == "secret":
            keep_secret(run)
        Feed(run, TensorBoard(tmp_path / name, False)).finish()
        Feed(run, MLflow(str(tmp_path / f"{name}-mlruns"))).finish()
        client = MlflowClient((tmp_path / f"{name}-mlruns").as_uri())
        experiment = client.get_experiment_by_name("discretion")
        assert experiment
        (logged,) = client.search_runs([experiment.experiment_id])
        metrics = client.get_metric_history(logged.info.run_id, "accuracy")
        stamps = [each.timestamp / 1000 for each in metrics]
        found[name] = [[logged.info.start_time / 1000, *stamps], wall_times(tmp_path / name)]
    began = datetime.fromisoformat(read_run(run).about.created).timestamp()
    assert all(times[-1] > 2e9 for times in found["open"])
    expected = [began + number for number in range(ROUNDS + 1)]
    assert found["secret"] == [pytest.approx(expected, abs=0.01), pytest.approx(expected[1:], abs=0.01)]


def test_rounds_with_secret_coins_go_out_when_training_ends(run: Path) -> None:
    """When they come would tell what their stamps do not."""
    kept = Kept()
    feed = Feed(keep_secret(run), kept)
    feed.step()
    assert kept.rounds == []
    feed.finish()
    assert [number for number, _ in kept.rounds] == list(range(1, ROUNDS + 1))


# MLflow


def test_passwords_of_mlflow_are_not_said(monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow.exceptions import MlflowException

    from discretion.export.mlflow import MLflow

    address = "http://ann:hunter2@127.0.0.1:1"
    tracker = MLflow(address)

    def fail(*_: object, **__: object) -> None:
        raise MlflowException(f"API request to {address}/api failed")

    monkeypatch.setattr(tracker._client, "get_experiment_by_name", fail)
    with pytest.raises(InputError, match=r"cannot use MLflow at http://127\.0\.0\.1:1:") as problem:
        tracker.start(Facts("run", "id", {}))
    assert "hunter2" not in str(problem.value) and "ann:" not in str(problem.value)


def test_mlflow_that_fails_at_the_end_is_an_error_of_ours(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.exceptions import MlflowException

    from discretion.export.mlflow import MLflow

    tracker = MLflow(str(tmp_path / "mlruns"))
    feed = Feed(run, tracker)

    def fail(*_: object, **__: object) -> None:
        raise MlflowException("gone")

    monkeypatch.setattr(tracker._client, "update_run", fail)
    with pytest.raises(InputError, match="cannot use MLflow at .*: gone"):
        feed.finish()


def test_mlflow(discretion: Cli, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    nowhere = discretion("export", str(run), "--to", "mlflow")
    assert nowhere.code == 2 and "no address for MLflow" in nowhere.err
    for _ in range(2):  # the same run again is the same run
        assert discretion("export", str(run), "--to", "mlflow", "--out", "mlruns").code == 0
    from mlflow import MlflowClient

    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"
    client = MlflowClient((tmp_path / "mlruns").as_uri())
    experiment = client.get_experiment_by_name("discretion")
    assert experiment
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.status == "FINISHED" and found.info.run_name == "run"
    assert found.data.tags["discretion.run"] == read_run(RunFolder(run)).about.id
    assert found.data.params["budget of epsilon 16"] == "16.0"
    logged = client.get_metric_history(found.info.run_id, "accuracy")
    history = read_history(RunFolder(run).history).lines
    assert [(m.step, m.value) for m in logged] == [(line.round, line.accuracy) for line in history]


# settings and failures


def test_where_the_history_goes_is_no_part_of_what_a_run_is(tmp_path: Path) -> None:
    plain_, tracked = make({}), make({}, ["track.to=mlflow", "track.out=mlruns"])
    assert plain_.identity() == tracked.identity()
    assert Path(tracked.anchored().track.out).is_absolute()
    server = make({}, ["track.out=http://127.0.0.1:5000"])
    assert server.anchored().track.out == "http://127.0.0.1:5000"
    with pytest.raises(InputError, match="MLFLOW_TRACKING_PASSWORD"):  # a run's folder must not hold it
        make({}, ["track.out=http://ann:hunter2@127.0.0.1:5000"]).anchored()
    with pytest.raises(InputError, match="track.to"):
        make({}, ["track.to=wandb"])


def test_a_package_that_is_missing_is_named(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    genuine = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.split(".")[0] in ("tensorboard", "mlflow", "pyarrow"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name.split(".")[0])
        return genuine(name, *rest, **more)

    for name in ("discretion.export.tensorboard", "discretion.export.mlflow"):
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
    monkeypatch.setattr("discretion.export.feed.open_tracker", lambda *_: Failing())
    with tracking(run, TrackConfig(to="mlflow"), said.append) as hand_on:
        hand_on()
        hand_on()
    assert len(said) == 1 and "Training goes on" in said[0] and "discretion export" in said[0]


def test_a_run_is_tracked_from_the_command_line(discretion: Cli, small_config: Path, tmp_path: Path) -> None:
    done = discretion(
        "run", str(small_config), "--out", "new", "--track", "tensorboard", "--no-report", "--json"
    )
    assert done.code == 0
    history = read_history(RunFolder(tmp_path / "new").history).lines
    logged: list[Any] = scalars(tmp_path / "new" / "tensorboard")["accuracy"]
    assert logged == [(line.round, pytest.approx(line.accuracy)) for line in history]
