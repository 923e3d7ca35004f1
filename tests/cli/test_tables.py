"""From one table to guards: each client gets its own rows, a policy for them, and counts as many records."""

import json
import random
import re
import stat
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from discretion.cli import output
from discretion.guard import policy
from discretion.guard.data import own_records
from discretion.guard.guard import Guard
from discretion.runs import config
from discretion.runs.build import load_data
from discretion.tasks.own_table import read_table
from support.commands import discretion
from support.guard_process import Process

SETTINGS = """
[population]
csv = "people.csv"
[data]
name = "csv"
path = "table.csv"
partition = "natural"
client_column = "hospital"
label_column = "finding"
[model]
name = "linear"
[plan]
method = "spend_as_you_go"
rounds = 3
rate = 1.0
[train]
threads = 1
[clients]
where = "guards"
addresses = "guards/addresses.toml"
key = "guards/operator.key"
"""
COLUMNS = ("--client-column", "hospital", "--label-column", "finding")
ROWS = {"Basel": 40, "Zürich": 25, "Genève": 8}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three hospitals, in files as a German spreadsheet saves them, without sizes."""
    monkeypatch.chdir(tmp_path)
    rng = random.Random(0)
    lines = ["hospital;age;finding"]
    for name, count in ROWS.items():
        ages = [rng.uniform(-1, 1) for _ in range(count)]
        lines += [f"{name};{age:.3f};{'ill' if age > 0 else 'well'}".replace(".", ",") for age in ages]
    (tmp_path / "table.csv").write_text("\n".join(lines), encoding="utf-16")
    people = "client;epsilon;delta\nGenève;8;0,001\nBasel;2,5;0,001\nZürich;8;0,001\n"
    (tmp_path / "people.csv").write_text(people, encoding="utf-8")
    (tmp_path / "config.toml").write_text(SETTINGS)
    return tmp_path


def cells(path: Path) -> list[float]:
    return [float(age) for age in read_table(path).features[:, 0]]


def test_what_is_to_be_done_with_the_guards_is_a_command(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert discretion("guards", "config.toml", "--out", "net") == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "policies of 3 clients" in said and "discretion guard 'net/Genève/GUARD.toml' and so on" in said
    assert "run config.toml --on guards -c clients.addresses=net/addresses.toml -c clients.key=net/op" in said


def test_columns_that_are_not_scaled_are_named_before_anything_is_charged(
    here: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """The operator is told of a table that is read, and a guard's owner in the guard's own log."""
    rows = [f"{name};{130 + i};{i % 2}" for name in ROWS for i in range(9)]
    table = "\n".join(["hospital;pressure;finding", *rows])
    (here / "table.csv").write_text(table)
    told = "Numbers of pressure are far from a size of 1"
    assert discretion("guards", "config.toml") == 0
    said = " ".join(capsys.readouterr().err.split())
    assert f"Warning: {told}" in said and "data.scales, such as scales = { pressure = NUMBER }" in said
    Guard(policy.read(here / "guards" / "Basel" / "GUARD.toml")).close()
    logged = caplog.records[0].getMessage()
    assert told in logged and set(re.findall(r"\d+", logged)) == {"1", "10"}  # and no number of the records
    caplog.clear()
    assert discretion("guards", "config.toml", "-o", "net", "-c", "data.scales={ pressure = 100 }") == 0
    assert "Numbers of" not in capsys.readouterr().err
    Guard(policy.read(here / "net" / "Basel" / "GUARD.toml")).close()
    assert "Numbers of" not in caplog.text
    assert discretion("run", "config.toml", "--on", "here", "--out", "run") == 0
    assert capsys.readouterr().err.index("Warning: Numbers of") < 5
    (here / "test.csv").write_text(table)  # a server without clients' records has this table alone
    alone = ["data.path=", "data.test=test.csv"]
    load_data(config.read(here / "config.toml", alone).anchored(), output.say)
    assert f"Warning: {told}" in " ".join(capsys.readouterr().err.split())


def test_each_client_gets_its_own_rows(here: Path) -> None:
    assert discretion("guards", "config.toml", "--hold-out", "0.25", "--json") == 0
    text = (here / "table.csv").read_text(encoding="utf-16").replace(",", ".")
    for name, kept in (("Basel", 10), ("Zürich", 6), ("Genève", 2)):
        home = here / "guards" / name
        mine = [float(np.float32(line.split(";")[1])) for line in text.splitlines() if line.startswith(name)]
        train, held_out = cells(home / "records.csv"), cells(home / "held-out.csv")
        assert sorted(train + held_out) == sorted(mine) and len(held_out) == kept
        assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in home.glob("*.csv"))
        said = policy.read(home / "GUARD.toml")
        assert (said.client, said.size) == (name, ROWS[name] - kept)
        assert (said.data.labels, said.data.features) == (("ill", "well"), ("age",))
        assert own_records(said.data).train.inputs[:, 0].tolist() == train


@pytest.mark.parametrize("declared", ["", 'labels = ["well", "ill"]\nscales = { age = 3 }\n'])
def test_a_run_behind_guards_is_the_simulation(here: Path, declared: str) -> None:
    """Also with labels and scales of its own: guards' tables keep their numbers, and are divided once."""
    (here / "config.toml").write_text(SETTINGS.replace("[model]", f"{declared}[model]"))
    assert discretion("guards", "config.toml", "--json") == 0
    said = policy.read(here / "guards" / "Basel" / "GUARD.toml").data
    assert (said.labels, said.scales) == (
        (("well", "ill"), {"age": 3}) if declared else (("ill", "well"), {})
    )
    assert np.abs(cells(here / "guards" / "Basel" / "records.csv")).max() > 0.5
    guards = [Process(here / "guards" / name / "GUARD.toml") for name in ROWS]
    try:
        for guard in guards:
            guard.ready()
        assert discretion("doctor", "config.toml", "--json") == 0
        assert discretion("run", "config.toml", "--out", "far", "--json") == 0
    finally:
        for guard in guards:
            guard.end()
    assert discretion("run", "config.toml", "--on", "here", "--out", "near", "--json") == 0
    far, near = (safetensors.numpy.load_file(here / name / "model.safetensors") for name in ("far", "near"))
    for name in near:
        assert far[name] == pytest.approx(near[name], abs=1e-5)
    for name in ("far", "near"):  # sizes were counted, and are on record
        assert (here / name / "population.csv").read_text(encoding="utf-8").splitlines()[1:] == [
            *("Genève,8.0,0.001,6", "Basel,2.5,0.001,32", "Zürich,8.0,0.001,20")
        ]
        assert (
            "records of the clients that were kept for testing" in (here / name / "report.html").read_text()
        )


def test_a_server_without_records_tests_on_a_table_of_its_own(here: Path) -> None:
    assert discretion("guards", "config.toml", "--json") == 0
    (here / "test.csv").write_text("age,finding\n0.5,ill\n-0.5,well\n")
    (here / "sizes.csv").write_text("client,epsilon,delta,size\nBasel,2.5,0.001,32\nZürich,8,0.001,20\n")
    own = ("data.path=", "data.test=test.csv", "population.csv=sizes.csv", "data.partition=iid")
    words = [word for change in own for word in ("-c", change)]
    guards = [Process(here / "guards" / name / "GUARD.toml") for name in ("Basel", "Zürich")]
    try:
        for guard in guards:
            guard.ready()
        assert discretion("run", "config.toml", "--out", "far", *words, "--json") == 0
    finally:
        for guard in guards:
            guard.end()
    assert "from a table of their own" in (here / "far" / "report.html").read_text()


@pytest.mark.parametrize("command", [("guards",), ("flower", "init"), ("run",)])
def test_what_is_missing_or_wrong_leaves_no_trace(
    command: tuple[str, ...], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(here.iterdir())
    words = ("config.toml", "--out", "made/out")
    assert discretion(*command, *words, "-c", "data.path=no.csv", "-c", "population.csv=none.csv") == 2
    said = capsys.readouterr().err
    assert "no file none.csv" in said and "no file no.csv" in said
    assert ("no file guards/operator.key" in said) is (command == ("run",))
    (here / "sizes.csv").write_text(
        "client,epsilon,delta,size\nBasel,2,1e-3,40\nZürich,8,1e-3,25\nGenève,8,1e-3,6\n"
    )
    assert discretion(*command, *words, "-c", "population.csv=sizes.csv", "-c", "clients.where=here") == 2
    said = capsys.readouterr().err
    assert (
        "Basel: declares 40 records, and has 32" in said and "Zürich: declares 25 records, and has 20" in said
    )
    assert "Genève" not in said
    (here / "sizes.csv").unlink()
    assert sorted(here.iterdir()) == before


def test_sizes_are_counted(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert discretion("population", "--from", "table.csv", *COLUMNS) == 0
    assert capsys.readouterr().out.splitlines() == [
        *("client,epsilon,delta,size", "Basel,,1e-05,32", "Genève,,1e-05,6", "Zürich,,1e-05,20")
    ]
    assert discretion("population", "groups:2", "--from", "config.toml", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["size"] == [32, 6, 20] and found["epsilon"] == [2, 2, 2]
    whole = (
        "--from",
        "table.csv",
        "--client-column",
        "hospital",
        "--label-column",
        "finding",
        "--hold-out",
        "0",
        "--json",
    )
    assert discretion("population", *whole) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["size"] == [40, 8, 25] and found["epsilon"] == [None] * 3
    assert discretion("population") == 2 and "give a budget mix" in capsys.readouterr().err
    (here / "digits.toml").write_text('[data]\nname = "digits"\n')
    assert discretion("population", "--from", "digits.toml") == 2


def test_a_table_with_another_column_of_clients_is_told_the_option(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert discretion("population", "--from", "table.csv") == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "expected a column `client` and a column `label`, at least one column of numbers" in said
    assert "say what columns are called with --label-column and --client-column" in said


def test_a_budget_is_never_made_up(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert discretion("population", "--from", "table.csv", *COLUMNS) == 0
    (here / "people.csv").write_text(capsys.readouterr().out, encoding="utf-8")
    assert discretion("run", "config.toml", "--on", "here") == 2
    assert capsys.readouterr().err.count("epsilon is missing") == 3
