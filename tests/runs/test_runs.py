"""Run folders: all or nothing, and after a crash at any moment the same model and an honest ledger."""

import json
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from discretion.accounting import Certificate, certify
from discretion.errors import BudgetError, ConfigError, DataError, InputError, PlanError
from discretion.ledger.ledger import Ledger
from discretion.plan.phase import Clipping, Quantile
from discretion.plan.plan import Plan
from discretion.plan.population import Population
from discretion.runs import build, config
from discretion.runs.build import divide, fitted, load_data
from discretion.runs.execute import Progress, execute
from discretion.runs.folder import RunFolder, read_checkpoint, write_checkpoint
from discretion.runs.history import Journal, read_history
from discretion.runs.manifest import compare, write_manifest
from discretion.runs.prepare import prepare
from discretion.training.loop import State

FILES = {
    "config.toml",
    "population.csv",
    "plan.json",
    "certificate.json",
    "run.json",
    "ledger.sqlite",
    "history.jsonl",
    "model.safetensors",
}


def make_run(settings: Path, folder: Path, *changes: str) -> RunFolder:
    made = config.read(settings, changes)
    run = RunFolder(folder)
    prepare(made, run)
    return run


@pytest.fixture(scope="module")
def whole(small_run: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run that was never interrupted."""
    run = make_run(small_run.parent / "config.toml", tmp_path_factory.mktemp("whole") / "run")
    execute(run)
    return run


def same_end(run: RunFolder, whole: RunFolder, rounds: int = 8) -> None:
    """The same model bit for bit, the same history, and a ledger that says what was certified."""
    assert run.model.read_bytes() == whole.model.read_bytes()
    assert not run.checkpoint.exists()
    ours, theirs = (read_history(r.history) for r in (run, whole))
    assert ours == theirs
    with Ledger(run.path / "ledger.sqlite", Population.from_csv(run.population)) as ledger:
        identity = json.loads(run.about.read_text())["id"]
        assert ledger.states(identity) == [(t, "committed") for t in range(1, rounds + 1)]
        certificate = Certificate.from_json(run.certificate.read_text())
        np.testing.assert_array_equal(ledger.spent(), certificate.spent)


def test_a_run_folder_has_every_part(whole: RunFolder) -> None:
    assert {path.name for path in whole.path.iterdir()} >= FILES
    found = read_history(whole.history)
    assert found.rounds.tolist() == list(range(1, 9))
    assert found.accuracy[-1] > 0.3  # it learns: guessing is right one time in ten
    assert config.read(whole.config).plan.rounds == 8
    assert not list(whole.path.parent.glob(".*"))  # no drafts left behind


def test_nothing_says_who_took_part(whole: RunFolder) -> None:
    assert set(json.loads(whole.history.read_text().splitlines()[0])) == {"round", "accuracy", "loss"}
    assert "participants" not in (whole.path / "ledger.sqlite").read_bytes().decode("latin1")


def test_the_same_seed_gives_the_same_run_and_another_seed_another(
    small_config: Path, tmp_path: Path, whole: RunFolder
) -> None:
    again, other = (
        make_run(small_config, tmp_path / "again"),
        make_run(small_config, tmp_path / "o", "seed=4"),
    )
    for run in (again, other):
        execute(run)
    same_end(again, whole)
    assert other.model.read_bytes() != whole.model.read_bytes()


def test_executing_a_finished_run_changes_nothing(whole: RunFolder) -> None:
    before = {path: path.stat().st_mtime_ns for path in whole.path.glob("*.s*")}
    execute(whole)
    assert {path: path.stat().st_mtime_ns for path in whole.path.glob("*.s*")} == before


# where a process can die: the name of a function of runs, journal or ledger, and whether before or after it
POINTS = [
    ("ledger.ledger.Ledger.reserve", "before", 4),
    ("ledger.ledger.Ledger.reserve", "after", 4),
    ("runs.history.Journal.add", "before", 4),
    ("runs.history.Journal.add", "after", 4),
    ("runs.execute.write_checkpoint", "after", 4),
    ("ledger.ledger.Ledger._commit", "after", 4),
    ("ledger.ledger.Ledger.finish", "before", 1),
    ("runs.execute._add_profile", "after", 1),
    ("runs.execute.write_manifest", "after", 1),
    ("runs.execute.write_safely", "before", 2),  # of the model
    ("runs.execute.write_safely", "after", 2),
]

CRASH = """
import functools, os, sys
from pathlib import Path
import discretion.runs.history, discretion.ledger.ledger, discretion.runs.execute
folder, target, when, turn = sys.argv[1:]
owner = eval("discretion." + target.rpartition(".")[0])
name = target.rpartition(".")[2]
original, calls = getattr(owner, name), 0

@functools.wraps(original)
def dying(*arguments, **named):
    global calls
    calls += 1
    if calls == int(turn) and when == "before":
        os._exit(9)
    result = original(*arguments, **named)
    if calls == int(turn) and when == "after":
        os._exit(9)
    return result

setattr(owner, name, dying)
discretion.runs.execute.execute(folder)
"""


@pytest.mark.parametrize(("target", "when", "turn"), POINTS)
def test_a_crash_at_each_point_is_survived(
    target: str, when: str, turn: int, small_config: Path, tmp_path: Path, whole: RunFolder
) -> None:
    run = make_run(small_config, tmp_path / "run")
    died = subprocess.run([sys.executable, "-c", CRASH, str(run.path), target, when, str(turn)])
    assert died.returncode == 9
    never_under_counts(run)
    compare(run)
    execute(run)
    run.checkpoint.unlink(missing_ok=True)  # stays after a crash between the model and its end
    same_end(run, whole)


def never_under_counts(run: RunFolder) -> None:
    """Every round whose model or history exists is on record."""
    with Ledger(run.path / "ledger.sqlite", Population.from_csv(run.population)) as ledger:
        recorded = len(ledger.states(json.loads(run.about.read_text())["id"]))
    assert recorded >= len(read_history(run.history).lines)


def test_killed_ten_times_at_random_moments_it_ends_as_if_never_killed(
    small_config: Path, tmp_path: Path
) -> None:
    """By signal 9, through the command line, from before the folder exists until the end.

    A run that ends before it was killed ten times is followed by another: speed changes nothing.
    """
    small_config.write_text(small_config.read_text().replace("rounds = 8", "rounds = 60"))
    whole = make_run(small_config, tmp_path / "whole")
    execute(whole)
    chance = random.Random(0)
    kills = number = 0
    while kills < 10:
        run = RunFolder(tmp_path / f"killed-{number}")
        kills += end_with_kills(run, small_config, chance, 10 - kills)
        same_end(run, whole, rounds=60)
        number += 1
    assert kills == 10


def end_with_kills(run: RunFolder, config: Path, chance: random.Random, most: int) -> int:
    """How often it was killed, at most `most` times, until it ended."""
    command = [sys.executable, "-m", "discretion", "run", str(config), "--out", str(run.path)]
    kills = 0
    while True:
        process = subprocess.Popen([*command, "--resume", "--json"], stdout=subprocess.DEVNULL)
        if kills < most:
            seen = read_history(run.history).lines if run.about.exists() else ()
            end = time.monotonic() + chance.uniform(0.5, 30)
            # wait for one more round than before, or for a while, then strike within a round's time
            while time.monotonic() < end and process.poll() is None:
                if len(read_history(run.history).lines) > len(seen):
                    break
                time.sleep(0.002)
            time.sleep(chance.uniform(0, 0.05))
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                kills += 1
        code = process.wait()
        if run.about.exists():
            never_under_counts(run)
        assert code in (0, -signal.SIGKILL)
        if code == 0:
            return kills


def test_only_one_process_may_run_it(small_config: Path, tmp_path: Path) -> None:
    run = make_run(small_config, tmp_path / "run")

    def meanwhile(progress: Progress) -> None:
        if progress.round == 1:
            with pytest.raises(InputError, match="another process"):
                execute(run)

    execute(run, on_round=meanwhile)


def test_progress_tells_rounds_accuracy_and_the_tightest_budget(small_config: Path, tmp_path: Path) -> None:
    seen: list[Progress] = []
    execute(make_run(small_config, tmp_path / "run", "train.evaluate_every=3"), on_round=seen.append)
    assert [p.round for p in seen] == list(range(1, 9))
    assert [p.accuracy is not None for p in seen] == [False, False, True, False, False, True, False, True]
    assert 0 < seen[0].spent < seen[-1].spent <= 1
    assert seen[-1].spent > 0.995


def test_a_changed_plan_is_refused(small_config: Path, tmp_path: Path) -> None:
    run = make_run(small_config, tmp_path / "run")
    plan = Plan.from_json(run.plan.read_text())
    text = run.plan.read_text()
    noise = repr(float(plan.phases[0].noise[0]))
    run.plan.write_text(text.replace(noise, repr(float(noise) * 0.8)))
    write_manifest(run)
    with pytest.raises(InputError, match="the certificate is of another plan"):
        execute(run)
    assert read_history(run.history).lines == ()
    run = make_run(small_config, tmp_path / "other")
    run.population.write_text(run.population.read_text().replace(",4.0,", ",40.0,"))
    write_manifest(run)
    with pytest.raises(InputError, match="the certificate is of another population"):
        execute(run)
    assert read_history(run.history).lines == ()


def test_a_folder_in_use_is_left_alone(small_config: Path, tmp_path: Path, whole: RunFolder) -> None:
    with pytest.raises(ConfigError, match="exists already"):
        make_run(small_config, whole.path)
    (tmp_path / "empty").mkdir()
    make_run(small_config, tmp_path / "empty")


def test_a_plan_without_privacy_leaves_no_folder_unless_accepted(small_config: Path, tmp_path: Path) -> None:
    with pytest.raises(BudgetError, match="accept_no_privacy"):
        make_run(small_config, tmp_path / "run", "plan.method=fedavg")
    assert not (tmp_path / "run").exists()
    run = make_run(small_config, tmp_path / "run", "plan.method=fedavg", "train.accept_no_privacy=true")
    execute(run)
    assert run.model.exists()


def test_a_shared_ledger_adds_up_over_runs(small_config: Path, tmp_path: Path) -> None:
    shared = f"ledger={tmp_path / 'shared.sqlite'}"
    execute(make_run(small_config, tmp_path / "first", shared))
    for clip in ("0.5", "0.6"):  # the same run once more, and another one
        with pytest.raises(BudgetError, match="spent or promised already"):
            make_run(small_config, tmp_path / "second", shared, f"plan.clip={clip}")
    assert not (tmp_path / "second").exists()


def test_two_runs_share_the_budgets_of_one_ledger(small_config: Path, tmp_path: Path) -> None:
    shared = f"ledger={tmp_path / 'shared.sqlite'}"
    for name, clip in (("first", "0.5"), ("second", "0.6")):
        run = make_run(small_config, tmp_path / name, shared, "plan.share=0.5", f"plan.clip={clip}")
        execute(run)
    population = Population.from_csv(run.population)
    with Ledger(tmp_path / "shared.sqlite", population) as ledger:
        spent = ledger.spent()
    half = Certificate.from_json(run.certificate.read_text()).spent
    assert (half <= population.epsilon / 2).all() and (half > 0.49 * population.epsilon).all()
    assert (half < spent).all() and (spent <= population.epsilon).all()


def test_there_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no run in"):
        execute(RunFolder(tmp_path))


def test_a_population_from_csv_decides_the_sizes(small_config: Path, tmp_path: Path) -> None:
    people = tmp_path / "people.csv"
    people.write_text("client,epsilon,delta,size\nann,2,1e-5,30\nbob,8,1e-5,100\n")
    settings = config.read(small_config, [f"population.csv={people}"])
    population, partition = divide(settings, load_data(settings))
    assert population.client == ("ann", "bob")
    assert partition.sizes.tolist() == [30, 100]


def test_sizes_varied_and_fixed(small_config: Path) -> None:
    varied = config.read(small_config, ["data.sizes=varied"])
    sizes = divide(varied, load_data(varied))[1].sizes
    assert sizes.sum() == 1438 and sizes.max() > 1.5 * sizes.min()
    fixed = config.read(small_config, ["data.records=10"])
    assert divide(fixed, load_data(fixed))[1].sizes.tolist() == [10] * 20


def test_natural_clients_are_those_of_the_table(tmp_path: Path, small_config: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [f"{i % 2},{'abac'[i % 4]},{rng.random():.3f},{rng.random():.3f}" for i in range(90)]
    table = tmp_path / "own.csv"
    table.write_text("label,client,x,y\n" + "\n".join(rows) + "\n")
    changes = ["data.name=csv", f"data.path={table}", "data.partition=natural", "model.name=linear"]
    settings = config.read(small_config, changes)
    dataset = load_data(settings)
    population, partition = divide(settings, dataset)
    assert population.client == ("a", "b", "c")
    assert population.size.tolist() == partition.sizes.tolist()
    execute(make_run(small_config, tmp_path / "run", *changes, "plan.rounds=2"))

    people = tmp_path / "people.csv"
    sizes = dict(zip("abc", partition.sizes, strict=True))
    rows = [f"{name},{epsilon},1e-5,{sizes[name]}" for name, epsilon in (("c", 2), ("a", 4), ("b", 8))]
    people.write_text("client,epsilon,delta,size\n" + "\n".join(rows) + "\n")
    declared = config.read(small_config, [*changes, f"population.csv={people}"])
    population, reordered = divide(declared, dataset)
    assert population.client == ("c", "a", "b")
    for new, old in enumerate((2, 0, 1)):
        np.testing.assert_array_equal(reordered.of(new), partition.of(old))
    people.write_text(people.read_text().replace(f"c,2,1e-5,{sizes['c']}", "c,2,1e-5,99"))
    with pytest.raises(DataError, match=f"client c: declares 99 records, and has {sizes['c']} for"):
        divide(declared, dataset)
    most = max(sizes.values())
    assert sorted(sizes.values())[-2] < most
    few = [*changes, f"data.records={most}"]
    population, alone = divide(config.read(small_config, few), dataset)
    assert population.client == tuple(name for name in "abc" if sizes[name] == most)  # others are left out
    again, same = divide(config.read(small_config, few), dataset, population)
    assert again.client == population.client
    np.testing.assert_array_equal(alone.index, partition.of("abc".index(population.client[0])))
    np.testing.assert_array_equal(same.index, alone.index)
    people.write_text("client,epsilon,delta,size\nann,2,1e-5,30\n")
    with pytest.raises(
        DataError, match="(?s)different clients.*client ann: no records.*a: not in.*b: not in.*c: not in"
    ):
        divide(declared, dataset)
    nobody = config.read(small_config, ["data.partition=natural"])
    with pytest.raises(DataError, match="does not say who owns"):
        divide(nobody, load_data(nobody))
    with pytest.raises(DataError, match="data.path is empty: records of clients in this process"):
        load_data(config.make({}, ["data.name=csv", "data.test=held-out"]))


def test_training_without_torch_says_how_to_get_it(
    small_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(InputError, match=r"pip install 'discretion\[torch\]'"):
        make_run(small_config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("change", ["seed = 3", "learning_rate = 0.1", "clients = 20"])
def test_a_run_keeps_its_settings(change: str, small_config: Path, tmp_path: Path) -> None:
    """A round that is done again must be the same release, not another under the same noise."""
    run = make_run(small_config, tmp_path / "run")
    before = run.config.read_text()
    assert change in before
    run.config.write_text(before.replace(change, change[:-1] + "7"))
    write_manifest(run)
    with pytest.raises(InputError, match="made from other settings"):
        execute(run)
    run.config.write_text(before)
    write_manifest(run)
    execute(run)


def test_a_run_keeps_its_clients_and_data(small_config: Path, tmp_path: Path) -> None:
    """What it was made from may change afterwards: the run has its own copy, or says no."""
    table, people = tmp_path / "own.csv", tmp_path / "people.csv"
    rows = [f"{i % 2},{'ab'[i % 2]},{i / 40}" for i in range(40)]
    table.write_text("label,client,x\n" + "\n".join(rows) + "\n")
    changes = ["data.name=csv", f"data.path={table}", "data.partition=natural", "model.name=linear"]
    settings = config.read(small_config, changes)
    sizes = divide(settings, load_data(settings))[1].sizes
    lines = [f"a,1,1e-5,{sizes[0]}", f"b,50,1e-5,{sizes[1]}"]
    people.write_text("client,epsilon,delta,size\n" + "\n".join(lines) + "\n")
    changes += [f"population.csv={people}", "plan.rounds=2"]
    swapped = make_run(small_config, tmp_path / "swapped", *changes)
    plain = make_run(small_config, tmp_path / "plain", *changes)
    execute(plain)
    people.write_text("client,epsilon,delta,size\n" + "\n".join(reversed(lines)) + "\n")
    execute(swapped)
    assert swapped.model.read_bytes() == plain.model.read_bytes()
    people.unlink()

    people.write_text("client,epsilon,delta,size\n" + "\n".join(lines) + "\n")
    other = make_run(small_config, tmp_path / "other", *changes)
    table.write_text("label,client,x\n" + "\n".join(rows).replace("0.5", "0.75") + "\n")
    with pytest.raises(InputError, match="made from other settings, clients, data"):
        execute(other)


def test_a_relative_ledger_is_found_from_everywhere(
    small_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = make_run(small_config, tmp_path / "run", "ledger=shared.sqlite", "plan.rounds=2")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    execute(run)
    assert (tmp_path / "shared.sqlite").exists() and not (tmp_path / "elsewhere" / "shared.sqlite").exists()


OWN = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self, dataset):
        super().__init__()
        self.norm = nn.LayerNorm(64)
        self.last = nn.Linear(64, dataset.classes)
    def forward(self, inputs):
        return self.last(self.norm(inputs.flatten(1)))
"""


def test_a_run_can_go_on_with_other_workers_and_threads_but_on_no_other_device(
    small_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_net.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    models = []
    for name, first, then in (("one", "1", "1"), ("other", "2", "3")):
        run = make_run(
            *(small_config, tmp_path / name, "model.name=own_net:Net", f"train.workers={first}"),
            *("plan.rounds=4", "train.schedule=cosine", "train.steps=3", "train.order=sequential"),
        )
        assert json.loads(run.about.read_text())["device"] == "cpu"
        with pytest.raises(Interrupted):
            execute(run, on_round=stop_after_two)
        with pytest.raises(InputError, match="no device 'tpu' on this machine: choose one of auto, cpu"):
            execute(run, overrides=["train.device=tpu"])
        with pytest.raises(InputError, match="made from other settings"):
            execute(run, overrides=["train.steps=4"])
        execute(run, overrides=[f"train.workers={then}", "train.threads=2", "train.device=cpu"])
        models.append(run.model.read_bytes())
    assert models[0] == models[1]


def test_another_device_is_another_run(
    small_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rounding differs, and a round that is done again must be the same release."""
    from discretion.clients.local_clients import LocalClients

    run = make_run(small_config, tmp_path / "run")
    plain = LocalClients.__init__

    def elsewhere(self: LocalClients, *parts: object, **named: object) -> None:
        plain(self, *parts, **named)  # type: ignore[arg-type]
        self.device = "cuda:0"  # type: ignore[assignment]

    monkeypatch.setattr(LocalClients, "__init__", elsewhere)
    with pytest.raises(InputError, match="device"):
        execute(run)


class Interrupted(Exception):
    pass


def stop_after_two(progress: Progress) -> None:
    if progress.round == 2:
        raise Interrupted


def test_cryptographic_noise_is_not_repeatable_but_can_be_resumed(small_config: Path, tmp_path: Path) -> None:
    models = []
    for name in ("one", "other"):
        run = make_run(small_config, tmp_path / name, "train.randomness=cryptographic", "plan.rounds=4")
        with pytest.raises(Interrupted):
            execute(run, on_round=stop_after_two)
        execute(run)
        assert [line.round for line in read_history(run.history).lines] == [1, 2, 3, 4]
        assert json.loads(run.about.read_text())["randomness"] == "cryptographic"
        models.append(run.model.read_bytes())
    assert models[0] != models[1]


def plan_and_certificate(run: RunFolder) -> tuple[Plan, Certificate]:
    return Plan.from_json(run.plan.read_text()), Certificate.from_json(run.certificate.read_text())


def test_integers_through_the_whole_run(small_config: Path, tmp_path: Path) -> None:
    run = make_run(small_config, tmp_path / "run", "plan.integers=true", "plan.rounds=3")
    plan, certificate = plan_and_certificate(run)
    plain, _ = plan_and_certificate(make_run(small_config, tmp_path / "plain", "plan.rounds=3"))
    (phase,), (before,) = plan.phases, plain.phases
    least = before.clip.min()
    assert plan.grid is not None
    assert 2**20 <= least / plan.grid.step < 2**21
    assert plan.grid.size == 64 * 64 + 64 + 64 * 10 + 10
    assert 1 < phase.noise[0] / before.noise[0] < 1.001  # what rounding costs
    assert (plan.release(phase)[1] >= plain.release(before)[1]).all()
    assert (certificate.spent <= certificate.budget).all()
    assert (certificate.share > 0.98).all()
    assert certificate.grid
    execute(run)
    assert json.loads(run.about.read_text())["randomness"] == certificate.randomness
    assert read_history(run.history).accuracy[-1] > 0.1


def test_shares_on_a_grid_through_the_whole_run(small_config: Path, tmp_path: Path) -> None:
    options = ["plan.method=concert", "plan.integers=true", "plan.rounds=3"]
    run = make_run(small_config, tmp_path / "run", *options)
    plan, certificate = plan_and_certificate(run)
    assert plan.grid is not None and plan.noise_at == certificate.noise_at == "secure_sum"
    assert plan.own_noise(plan.phases[0]).min() / plan.grid.step > 2**20
    assert (certificate.spent <= certificate.budget).all() and (certificate.share > 0.98).all()
    execute(run)
    assert read_history(run.history).accuracy[-1] > 0.1


def test_layers_through_the_whole_run(small_config: Path, tmp_path: Path) -> None:
    run = make_run(small_config, tmp_path / "run", "plan.clipping=per_layer", "plan.rounds=2")
    plan, certificate = plan_and_certificate(run)
    assert plan.clipping.layers == (64 * 64, 64, 64 * 10, 10)
    assert (certificate.spent <= certificate.budget).all()
    assert not certificate.grid
    execute(run)
    flat = make_run(small_config, tmp_path / "flat", "plan.rounds=2")
    execute(flat)
    assert run.model.read_bytes() != flat.model.read_bytes()


def test_integers_need_clips_and_no_layers(small_config: Path, tmp_path: Path) -> None:
    no_clip = ["plan.method=fedavg", "plan.integers=true", "train.accept_no_privacy=true"]
    with pytest.raises(ConfigError, match="plan.integers needs updates that are clipped"):
        make_run(small_config, tmp_path / "run", *no_clip)
    with pytest.raises(PlanError, match="a grid needs noise in sums of updates .* flat clipping"):
        make_run(small_config, tmp_path / "run", "plan.integers=true", "plan.clipping=per_layer")
    assert not (tmp_path / "run").exists()


def test_a_grid_is_as_fine_as_the_smallest_clip_of_all_phases(small_config: Path, tmp_path: Path) -> None:
    settings = config.read(small_config, ["plan.integers=true"])
    plan, _ = plan_and_certificate(make_run(small_config, tmp_path / "run"))
    (phase,) = plan.phases
    silent = replace(phase, clip=np.where(np.arange(20) == 3, 0.0, 4.0))
    grid = fitted(replace(plan, phases=(silent, replace(phase, clip=np.full(20, 1.5)))), settings, (9,)).grid
    assert grid is not None
    assert (grid.step, grid.size) == (2.0**-20, 9)


def test_a_resumed_run_keeps_the_scale_of_its_clips(
    small_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit the model of a run that was never interrupted: a scale of 1 again would not give it."""
    planned = build.plan_of

    def following(*arguments: object) -> Plan:
        clipping = Clipping(quantile=Quantile(0.2, 0.5, noise=40.0))
        return replace(planned(*arguments), clipping=clipping)  # type: ignore[arg-type]

    monkeypatch.setattr("discretion.runs.prepare.plan_of", following)
    changes = ("plan.rounds=4", "plan.share=0.8")
    models = []
    for name in ("whole", "resumed"):
        run = make_run(small_config, tmp_path / name, *changes)
        plan, certificate = plan_and_certificate(run)
        assert plan.clipping.quantile is not None and (certificate.spent <= certificate.budget).all()
        if name == "resumed":
            with pytest.raises(Interrupted):
                execute(run, on_round=stop_after_two)
            state = read_checkpoint(run)
            assert state is not None and state.round == 2
            assert state.scale != 1.0
        execute(run)
        models.append(run.model.read_bytes())
    assert models[0] == models[1]


def test_a_checkpoint_holds_the_whole_state(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert read_checkpoint(folder) is None
    rng = np.random.default_rng(0)
    one, other, step, square, mean = rng.standard_normal((5, 50)).astype(np.float32)
    memory = rng.standard_normal((4, 50)).astype(np.float32)
    write_checkpoint(folder, State(7, one, other, step, memory, 1 / 3, square, mean), {})
    back = read_checkpoint(folder)
    assert back is not None
    assert (back.round, back.scale) == (7, 1 / 3)
    pairs = [(back.model, one), (back.velocity, other), (back.step, step), (back.memory, memory)]
    for kept, array in [*pairs, (back.square, square), (back.mean, mean)]:
        assert kept.dtype == np.float32
        np.testing.assert_array_equal(kept, array)


def test_the_name_of_a_deployed_run_tells_nothing_of_the_data(small_config: Path, tmp_path: Path) -> None:
    """It is keyed by a secret of the folder: equal runs on equal data have other names."""
    names = []
    for name in ("one", "two"):
        run = make_run(small_config, tmp_path / name, "train.randomness=cryptographic", "plan.rounds=1")
        names.append(json.loads(run.about.read_text())["id"])
        assert run.key.stat().st_mode & 0o077 == 0 and len(run.key.read_bytes()) == 32
        execute(run)
    assert names[0] != names[1]


def test_answers_of_rounds_that_the_model_has_not_are_dropped_when_it_goes_on(tmp_path: Path) -> None:
    """And what a killed process left of a line, at the end or, by an earlier version, before others."""
    folder = RunFolder(tmp_path)
    first, second, third = (json.dumps({"round": k, "refused": {}}) + "\n" for k in (1, 2, 3))
    folder.answers.write_text(first + second[:9] + second + second + third + third[:9])
    Journal(folder.answers, 2)
    assert folder.answers.read_text() == first + second
    Journal(folder.answers, 0)
    assert folder.answers.read_text() == ""


def test_overrides_change_only_how_a_run_is_executed(small_config: Path, tmp_path: Path) -> None:
    """Also of a run in memory, whose task is built already."""
    made = prepare(config.read(small_config), tmp_path / "run")
    for change in (
        "train.server_learning_rate=3",
        "seed=4",
        "plan.rounds=99",
        "ledger=other.sqlite",
        "rule=adaptive",
    ):
        with pytest.raises(ConfigError, match="made from other settings"):
            execute(made, overrides=[change])
    assert not made.files.history.exists()


def test_a_run_in_memory_must_be_the_one_in_its_folder(small_config: Path, tmp_path: Path) -> None:
    made = prepare(config.read(small_config), tmp_path / "run")
    looser = replace(made.population, epsilon=100 * made.population.epsilon)
    other = replace(
        made.plan, phases=tuple(replace(phase, noise=phase.noise / 2) for phase in made.plan.phases)
    )
    for changed in (
        replace(made, config=made.config.model_copy(update={"seed": 9})),
        replace(made, population=looser, certificate=certify(made.plan, looser)),
        replace(made, plan=other, certificate=certify(other, made.population)),
        replace(made, about=made.about.model_copy(update={"id": "another"})),
        replace(made, plan=other),
    ):
        with pytest.raises(InputError, match="holds another run"):
            execute(changed)
    assert not made.files.history.exists() and execute(made).finished
