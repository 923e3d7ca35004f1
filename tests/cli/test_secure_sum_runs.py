"""Runs whose guards sum securely, by commands and over sockets: the model of one process, bit for bit."""

import json
import stat
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from discretion.runs.folder import RunFolder
from discretion.runs.read import read_run
from support.commands import Cli, discretion, runner
from support.guard_process import Process

SETTINGS = """
seed = 5
[population]
clients = 6
budgets = "groups:8,16"
[data]
name = "digits"
records = 20
[model]
name = "linear"
[plan]
method = "concert"
rounds = 3
rate = 0.6
clip = 0.5
[train]
threads = 1
[clients]
where = "guards"
addresses = "guards/addresses.toml"
key = "guards/operator.key"
[secure_sum]
roster = "guards/roster.json"
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.toml").write_text(SETTINGS)
    return tmp_path


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    return runner(monkeypatch, capsys)


@pytest.mark.parametrize("method", ["concert", "gdpfed", "gdpfed_plus"])
def test_over_sockets_the_model_is_that_of_one_process(method: str, here: Path, cli: Cli) -> None:
    words = ["-c", f"plan.method={method}", "-c", "plan.integers=true"]
    made = cli("guards", "config.toml", *words)
    assert made.code == 0 and "secure sums: run with -c secure_sum.roster=guards/roster.json" in made.err
    guards = [Process(here / "guards" / f"c{i}" / "GUARD.toml") for i in range(6)]
    try:
        for guard in guards:
            guard.ready()
        far = cli("run", "config.toml", "--out", "far", *words)
        assert far.code == 0, far.err
    finally:
        for guard in guards:
            guard.end()
    assert discretion("run", "config.toml", "--out", "near", "--on", "here", *words) == 0
    near, there = read_run(here / "near"), read_run(here / "far")
    assert near.plan.digest() == there.plan.digest() and there.plan.summed
    models = [safetensors.numpy.load_file(RunFolder(here / name).model) for name in ("near", "far")]
    for name, value in models[0].items():
        np.testing.assert_array_equal(value, models[1][name])
    assert all(not each.masked and each.answered == 6 for each in there.answers)


def test_doctor_names_guards_without_the_operators_roster(here: Path, cli: Cli) -> None:
    assert cli("guards", "config.toml").code == 0
    home = here / "guards"
    contacts = []
    for i in range(6):
        told = cli("guard", f"guards/c{i}/GUARD.toml", "--contact")
        assert told.code == 0 and json.loads(told.out)["clients"].keys() == {f"c{i}"}
        (here / f"c{i}.json").write_text(told.out)
        contacts.append(f"c{i}.json")
    kept = [home / "c0" / "guard" / name for name in ("identity.key", "agreement.key")]
    assert [stat.S_IMODE(path.stat().st_mode) for path in kept] == [0o600, 0o600]
    made = cli("roster", *contacts[:5], "--out", "five.json")
    assert made.code == 0 and [line.split()[0] for line in made.err.splitlines()] == [
        f"c{i}" for i in range(5)
    ]
    assert "exists already" in cli("roster", *contacts, "--out", "five.json").err
    assert "came before" in cli("roster", "c0.json", "five.json").err
    (here / "odd.json").write_text("{}")
    assert "odd.json: not a roster" in cli("roster", "odd.json").err
    text = (home / "c3" / "GUARD.toml").read_text()
    (home / "c3" / "GUARD.toml").write_text(text[: text.index("[secure_sum]")])
    guards = [Process(home / f"c{i}" / "GUARD.toml") for i in range(6)]
    try:
        for guard in guards:
            guard.ready()
        found = cli("doctor", "config.toml", "--json")
        clients = {each["client"]: each for each in json.loads(found.out)["guards"]["clients"]}
        assert [each["ready"] for each in clients.values()] == [True] * 3 + [False] + [True] * 2
        assert "has no [secure_sum]" in clients["c3"]["differs"][0][1]
        few = cli("doctor", "config.toml", "-c", "secure_sum.roster=five.json", "--json")
        assert "the roster has 5 of the clients of pool 0, expected 6" in few.err + few.out
        some = ["-c", "secure_sum.roster=five.json", "-c", "plan.options.dropout=0.3"]
        other = json.loads(cli("doctor", "config.toml", *some, "--json").out)["guards"]["clients"]
        assert all(
            "other clients of this plan" in str(each["differs"]) for each in other if each["client"] != "c3"
        )
    finally:
        for guard in guards:
            guard.end()
    (here / "five.json").write_text("{}")
    assert "five.json: not a roster" in cli("doctor", "config.toml", *some).err
    none = cli("doctor", "config.toml", "-c", "secure_sum.roster=none.json")
    assert none.code == 2 and "secure_sum.roster: there is no file" in none.err


def test_where_no_secure_sum_is_possible_policies_trust_the_server(here: Path, cli: Cli) -> None:
    made = cli("guards", "config.toml", "-c", "population.clients=2", "--json")
    assert made.code == 0 and not (here / "guards" / "roster.json").exists()
    assert "No secure sum is possible, so the policies trust the server: pool 0 has 2 clients" in made.err
    assert "trust_server = true" in (here / "guards" / "c0" / "GUARD.toml").read_text()
    layers = cli("guards", "config.toml", "--out", "other", "-c", "plan.clipping=per_layer")
    assert layers.code == 0 and "a grid needs" in layers.err
