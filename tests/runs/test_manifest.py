"""A file of a run folder that is not what was written there is refused, and named; honest folders are not."""

import json
import random
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from discretion.cli import main
from discretion.errors import FolderError, InputError
from discretion.runs import config, manifest
from discretion.runs.execute import Progress, execute
from discretion.runs.folder import RunFolder, read_checkpoint, read_sealed, write_checkpoint
from discretion.runs.history import RoundRecord, parse_answers
from discretion.runs.manifest import audit_of, compare, write_audit, write_manifest
from discretion.runs.prepare import prepare
from discretion.runs.read import read_run
from discretion.training.loop import State
from support.commands import Cli

FLIPS = 40  # of each file


class Interrupted(Exception):
    pass


def stop(progress: Progress) -> None:
    if progress.round == 3:
        raise Interrupted


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory, small_run: Path) -> Path:
    """A deployed run that stopped after three of eight rounds."""
    settings = config.read(small_run.parent / "config.toml", ["train.randomness=cryptographic"])
    made = prepare(settings, tmp_path_factory.mktemp("stopped") / "run")
    with pytest.raises(Interrupted):
        execute(made, on_round=stop)
    return made.folder


def copied(run: Path, to: Path) -> RunFolder:
    return RunFolder(Path(shutil.copytree(run, to / "run")))


def damaged(content: bytes, chance: random.Random) -> bytes:
    """One bit flipped, or the end cut off."""
    at = chance.randrange(len(content))
    flipped = bytes([content[at] ^ 1 << chance.randrange(8)])
    return content[:at] if chance.random() < 0.1 else content[:at] + flipped + content[at + 1 :]


MADE = ("config.toml", "population.csv", "plan.json", "certificate.json", "run.json", "manifest.json")
STOPPED = (*MADE, ".key", "history.jsonl", "checkpoint.safetensors", "audit.json")
FINISHED = (*MADE, "history.jsonl", "profile.json", "model.safetensors", "audit.json")


@pytest.mark.parametrize("name", STOPPED)
def test_a_stopped_run_with_a_damaged_file_is_refused(name: str, stopped: Path, tmp_path: Path) -> None:
    run = copied(stopped, tmp_path)
    write_audit(run, b"no audit, but listed")
    every_damage_is_named(run.path / name, run)


def test_a_run_that_ends_while_it_is_looked_at_is_not_a_damaged_one(
    stopped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = copied(stopped, tmp_path)

    def ended_meanwhile(folder: RunFolder) -> None:
        monkeypatch.undo()
        execute(folder)

    monkeypatch.setattr("discretion.runs.manifest.read_sealed", ended_meanwhile)
    compare(run)
    run.model.write_bytes(b"damaged")
    with pytest.raises(FolderError, match="model.safetensors"):
        compare(run)


@pytest.mark.parametrize("name", FINISHED)
def test_a_finished_run_with_a_damaged_file_is_refused(name: str, small_run: Path, tmp_path: Path) -> None:
    run = copied(small_run, tmp_path)
    write_audit(run, b"no audit, but listed")
    every_damage_is_named(run.path / name, run)


def every_damage_is_named(path: Path, run: RunFolder) -> None:
    compare(run)
    whole, chance = path.read_bytes(), random.Random(path.name)
    for _ in range(FLIPS):
        path.write_bytes(damaged(whole, chance))
        with pytest.raises(FolderError) as problem:
            execute(run)
        said = str(problem.value)
        assert f"{path} is damaged or was changed" in said or f"cannot read {path}" in said
    path.unlink()
    with pytest.raises((FolderError, InputError), match=path.name):
        execute(run)
    path.write_bytes(whole)
    read_run(run)


def test_every_command_refuses_a_damaged_folder_by_code_4(
    discretion: Cli, stopped: Path, small_run: Path, tmp_path: Path
) -> None:
    run = copied(small_run, tmp_path)
    run.model.write_bytes(damaged(run.model.read_bytes(), random.Random(0)))
    for command in ("check", "report", "verify", "show", "compare", "export"):
        done = discretion(command, "run")
        assert done.code == 4 and "model.safetensors" in done.err, command
    shutil.rmtree(run.path)
    run = copied(stopped, tmp_path)
    run.checkpoint.write_bytes(damaged(run.checkpoint.read_bytes(), random.Random(1)))
    done = discretion("run", "run", "--resume")
    said = " ".join(done.err.split())
    assert done.code == 4 and "checkpoint.safetensors is damaged or was changed" in said
    assert "Restore the folder from a copy, or start a new run" in said
    assert main.app.info.help and "4 a ledger said no or a file is damaged" in main.app.info.help


def test_check_compares_single_files_of_a_run(discretion: Cli, small_run: Path, tmp_path: Path) -> None:
    run = copied(small_run, tmp_path)
    elsewhere = shutil.copy(run.population, tmp_path / "population.csv")
    assert discretion("check", str(run.plan), str(run.population)).code == 0
    text = run.population.read_text()
    changed = text.replace(text.splitlines()[1], text.splitlines()[1].replace(",", ",9", 1))
    run.population.write_text(changed)
    done = discretion("check", str(run.plan), str(run.population))
    assert done.code == 4 and "population.csv is damaged or was changed" in " ".join(done.err.split())
    assert discretion("check", str(run.plan), str(elsewhere)).code == 0
    run.plan.write_text(run.plan.read_text() + "\n")
    done = discretion("check", str(run.plan), str(elsewhere))
    assert done.code == 4 and "plan.json is damaged or was changed" in " ".join(done.err.split())


def test_a_folder_without_a_manifest_is_of_another_version(small_run: Path, tmp_path: Path) -> None:
    run = copied(small_run, tmp_path)
    run.manifest.unlink()
    with pytest.raises(FolderError, match="earlier version of Discretion. Versions before 1.0 do not read"):
        read_run(run)


def test_files_that_the_manifest_does_not_list_are_refused(small_run: Path, tmp_path: Path) -> None:
    run = copied(small_run, tmp_path)
    run.answers.write_text("")
    with pytest.raises(FolderError, match=r"answers\.jsonl, which manifest\.json does not list"):
        read_run(run)
    run.answers.unlink()
    run.audit.write_text("{}")
    with pytest.raises(
        FolderError, match=r"audit\.json, which manifest\.json does not list\. Restore it .* or"
    ):
        read_run(run)
    run.audit.unlink()
    listed = json.loads(run.manifest.read_text())["files"]
    manifest._write(run, listed | {"../other": "0" * 64})
    with pytest.raises(FolderError, match=r"wrong are '\.\./other'"):
        read_run(run)


def test_a_model_that_is_gone_is_missed(small_run: Path, tmp_path: Path) -> None:
    """A run without a model is one that is not finished, which would begin anew."""
    run = copied(small_run, tmp_path)
    run.model.unlink()
    with pytest.raises(FolderError, match=r"model\.safetensors is missing"):
        execute(run)


def test_later_lines_and_half_lines_are_no_damage(stopped: Path, tmp_path: Path) -> None:
    """A crash leaves them: they are dropped when the run goes on."""
    run = copied(stopped, tmp_path)
    with run.history.open("a") as file:
        file.write('{"round": 4, "accuracy": 0.5, "loss": 1.0}\n{"round": 5, "acc')
    run.answers.touch()
    assert read_run(run).history.done == 4
    assert execute(run).history.done == 8
    compare(run)


ODD = {
    "another type": {"model": np.zeros(9, np.float64)},
    "another shape": {"velocity": np.zeros(8, np.float32)},
    "a shape too many": {"memory": np.zeros((2, 3, 9), np.float32)},
    "no round": {"round": np.array([0])},
    "a scale that is none": {"scale": np.array([np.nan])},
    "a stranger": {"other": np.zeros(1, np.float32)},
    "a number that is none": {"model": np.full(9, np.nan, np.float32)},
    "an infinite number": {"memory": np.full((1, 9), np.inf, np.float32)},
}


@pytest.mark.parametrize("what", ODD)
def test_a_checkpoint_is_a_state(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunFolder(tmp_path)
    state = replace(State.start(np.zeros(9, np.float32)), round=2)
    write_checkpoint(run, state, {})
    assert read_checkpoint(run) is not None
    plain = safetensors.numpy.save
    monkeypatch.setattr(safetensors.numpy, "save", lambda tensors, about: plain(tensors | ODD[what], about))
    write_checkpoint(run, state, {})
    with pytest.raises(FolderError, match="is no checkpoint of a run: found odd"):
        read_sealed(run)


def test_a_checkpoint_of_another_model_is_refused(stopped: Path, tmp_path: Path) -> None:
    run = copied(stopped, tmp_path)
    sealed = read_sealed(run)
    assert sealed
    small = replace(State.start(np.zeros(9, np.float32)), round=3)
    write_checkpoint(run, small, {name: sealed.digests[name] for name in ("history.jsonl", "answers.jsonl")})
    with pytest.raises(FolderError, match="of 9 parameters after 3 rounds, expected 4810 after at most 8"):
        execute(run)


@pytest.mark.parametrize(
    "line",
    [
        '{"round": 1, "round": 2}',
        '{"round": true}',
        '{"round": "1"}',
        '{"round": 1.0}',
        '{"round": 1, "accuracy": "0.5"}',
        '{"round": 1, "loss": NaN}',
        '{"round": 1, "loss": 1e999}',
        '{"round": 0}',
        '{"round": 1, "who": "c1"}',
        "[" * 100_000,
    ],
)
def test_a_line_of_history_is_strict(line: str) -> None:
    with pytest.raises(ValueError, match=r"found|expected|should"):
        RoundRecord.parse(line)


def test_a_line_of_answers_is_strict() -> None:
    said = '{"round": 1, "asked": 2, "answered": 1, "refused": {"c1": "no"}, "lost": 0, "missing": 0.5}'
    assert parse_answers(said).refused == {"c1": "no"}
    for old, new in (('"no"', "5"), ("2,", "true,"), ("0.5", '"0.5"'), ('"lost": 0', '"lost": -1')):
        with pytest.raises(ValueError, match="should|expected"):
            parse_answers(said.replace(old, new))


def test_a_damaged_profile_is_found_before_a_round_is_done(small_config: Path, tmp_path: Path) -> None:
    run = prepare(config.read(small_config), tmp_path / "run").files
    with pytest.raises(Interrupted):
        execute(run, on_round=stop)
    run.profile.write_text('{"rounds": true, "seconds": {}}')
    with pytest.raises(InputError, match=r"cannot read .*profile\.json.*rounds: expected a whole number"):
        execute(run)
    assert read_run(run).history.done == 3


def test_a_manifest_lists_what_is_there_and_what_is_coming(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.config.write_bytes(b"")
    write_manifest(run, {run.model: b""})
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    found = json.loads(run.manifest.read_text())
    assert found["format"] == "discretion-manifest/1"
    assert found["files"] == {"config.toml": empty, "model.safetensors": empty}


def test_a_manifest_with_another_digest_is_not_taken_for_another_file(
    small_run: Path, tmp_path: Path
) -> None:
    run = copied(small_run, tmp_path)
    listed = json.loads(run.manifest.read_text())["files"]["certificate.json"]
    other = listed[:-1] + ("0" if listed[-1] != "0" else "1")
    run.manifest.write_text(run.manifest.read_text().replace(listed, other))
    with pytest.raises(FolderError, match=r"manifest\.json is damaged .* not the SHA-256 that is in it"):
        read_run(run)


STEPS = ("write_safely", "_write", "_put_in_place")


@pytest.mark.parametrize("before", [None, b"first"])
@pytest.mark.parametrize("after", [False, True], ids=["before it", "after it"])
@pytest.mark.parametrize("step", STEPS)
def test_a_crash_while_an_audit_is_kept_loses_none(
    step: str,
    after: bool,
    before: bytes | None,
    small_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = copied(small_run, tmp_path)
    if before:
        write_audit(run, before)
    listed = json.loads(run.manifest.read_text())["files"]

    def crash_at(step: str, content: bytes) -> None:
        whole = getattr(manifest, step)

        def crash(*arguments: object) -> None:
            if after:
                whole(*arguments)
            raise Interrupted

        with monkeypatch.context() as patched, pytest.raises(Interrupted):
            patched.setattr(manifest, step, crash)
            write_audit(run, content)

    crash_at(step, b"second")
    compare(run)
    new = (STEPS.index(step), after) >= (1, True)
    assert audit_of(run) == ("second" if new else before.decode() if before else None)
    crash_at("_write", b"third")
    compare(run)
    assert audit_of(run) == ("third" if after else "second" if new else before.decode() if before else None)
    write_audit(run, b"fourth")
    compare(run)
    assert run.audit.read_text() == audit_of(run) == "fourth" and not run.next_audit.exists()
    now = json.loads(run.manifest.read_text())["files"]
    assert {name: now[name] for name in listed if name != "audit.json"} == {
        name: digest for name, digest in listed.items() if name != "audit.json"
    }


def test_an_audit_stays_when_the_run_goes_on_and_is_not_kept_meanwhile(stopped: Path, tmp_path: Path) -> None:
    run = copied(stopped, tmp_path)
    write_audit(run, b"kept")

    def meanwhile(progress: Progress) -> None:
        with pytest.raises(InputError, match="is being run by another process"):
            write_audit(run, b"other")

    assert execute(run, on_round=meanwhile).finished
    compare(run)
    assert audit_of(run) == "kept"
