"""Who is ready for a run, who is not and why, before anything is written or charged; and true exit codes."""

import json
import tomllib
from pathlib import Path

import pytest
import tomli_w

from discretion.cli.doctor import table
from discretion.clients.readiness import Readiness
from discretion.errors import UnverifiedError
from discretion.ledger.ledger import Ledger
from discretion.runs import preflight
from discretion.runs.folder import RunFolder
from discretion.runs.read import read_run
from support.commands import Cli
from support.hospitals import NAMES, guarded, write_hospitals

DECLARED = ("-c", 'data.labels=["well","ill"]')


def change(name: str, **more: object) -> None:
    path = Path(name) / "GUARD.toml"
    path.write_text(tomli_w.dumps(tomllib.loads(path.read_text()) | more))


def nothing_charged() -> bool:
    found = []
    for name in NAMES:
        path = Path(name) / "guard" / "ledger.sqlite"
        if path.exists():
            with Ledger.existing(path) as ledger:
                found += ledger.runs
    return not found


def test_labels_in_another_order_stop_a_run_before_anything_is_written_or_charged(discretion: Cli) -> None:
    """The server sorts labels, the guards had them as declared: the model learned that the ill are well."""
    write_hospitals(Path(), ["well", "ill"])
    with guarded(Path(), *NAMES):
        done = discretion("run", "config.toml", "--out", "run")
        assert done.code == 2 and "4 of 4 clients differ in what all must share, first h0" in done.err
        assert "found labels well, ill, the server expects ill, well" in done.err
        assert not Path("run").exists() and nothing_charged()
        looked = discretion("doctor", "config.toml")
        assert looked.code == 2 and "labels: found labels" in looked.out and nothing_charged()
        assert discretion("doctor", "config.toml", *DECLARED).code == 0
        assert nothing_charged() and not Path("run").exists()
        done = discretion("run", "config.toml", "--out", "run", *DECLARED)
        assert done.code == 0 and "ready" not in done.err  # the table is shown where somebody is not
    assert read_run("run").history.accuracy[-1] > 0.6
    assert not nothing_charged()


def test_the_exit_code_says_whether_all_some_or_too_few_are_ready(discretion: Cli) -> None:
    write_hospitals(Path(), ["ill", "well"])
    with guarded(Path(), "h0"):
        few = discretion("doctor", "config.toml")
        assert few.code == 5 and "1 of 4 clients are ready, and 3 must be" in few.err
        assert few.out.index("h3") < few.out.index("h0")  # those that are not ready come first
        done = discretion("run", "config.toml", "--out", "run")
        assert done.code == 5 and "away: did not answer" in done.err and not Path("run").exists()
    change("h2", epsilon=4.0)
    with guarded(Path(), *NAMES):
        some = discretion("doctor", "config.toml", "--json")
        assert some.code == 7 and "3 of 4 clients are ready: a run would begin without" in some.err
        record = json.loads(some.out)
        assert [each["holds"] for each in record["here"]] == [True] * 5
        assert [each["ready"] for each in record["guards"]["clients"]] == [True, True, False, True]
        (what, said), *_ = record["guards"]["clients"][2]["differs"]
        assert what == "budget" and "this guard allows 4" in said
    assert nothing_charged()


def test_all_that_is_wrong_here_is_listed_before_anybody_is_asked(discretion: Cli) -> None:
    write_hospitals(Path(), ["ill", "well"])
    for name in ("operator.key", "people.csv", "test.csv", "addresses.toml"):
        Path(name).unlink()
    done = discretion("doctor", "config.toml")
    assert done.code == 2 and "4 things to mend here" in done.err
    for what in ("data.path: ", "population.csv: ", "clients.key: ", "clients.addresses: "):
        assert f"settings: {what}there is no file" in done.err


def test_a_client_without_an_address_and_a_ledger_that_refuses_are_named(discretion: Cli) -> None:
    write_hospitals(Path(), ["ill", "well"])
    addresses = Path("addresses.toml")
    addresses.write_text("\n".join(addresses.read_text().splitlines()[:3]))
    here = ("-c", "clients.where=here", "-c", "population.csv=", "-c", "population.clients=2")
    assert discretion("run", "config.toml", "--out", "a", "-c", "ledger=all.sqlite", *here).code == 0
    before = Path("all.sqlite").read_bytes()
    again = discretion("doctor", "config.toml", "-c", "ledger=all.sqlite", *here)
    assert again.code == 2 and "ledger: 2 of 2 clients refuse this plan" in again.err
    assert Path("all.sqlite").read_bytes() == before
    new = discretion("doctor", "config.toml", "-c", "ledger=new.sqlite")
    assert (
        new.code == 2
        and "no address of 1 of 4 clients" in new.err
        and "h3" in new.err
        and not Path("new.sqlite").exists()
    )
    hopeless = discretion("doctor", "config.toml", *here, "-c", "plan.method=fedavg")
    assert hopeless.code == 2 and "plan: " in hopeless.err


def test_without_guards_there_is_nobody_to_ask(discretion: Cli, small_config: Path) -> None:
    done = discretion("doctor", str(small_config))
    assert done.code == 0 and "Nobody was asked: clients run on this machine" in done.err
    assert "simulation" in done.err
    assert json.loads(discretion("doctor", str(small_config), "--json").out)["guards"] is None
    real = discretion("doctor", str(small_config), "-c", "train.randomness=cryptographic")
    assert real.code == 0 and "simulation" not in real.err and "noise is cryptographic" in real.err


@pytest.mark.parametrize("setting", ["clients.addresses=addresses.toml", "clients.home=flower"])
def test_guards_in_the_settings_that_nobody_asked_are_not_taken_for_ready(
    discretion: Cli, small_config: Path, setting: str
) -> None:
    done = discretion("doctor", str(small_config), "-c", setting)
    assert done.code == 7 and "no guard was asked. Ask them with --on guards" in done.err


def test_doctor_takes_where_clients_are_as_run_does(discretion: Cli) -> None:
    write_hospitals(Path(), ["ill", "well"])
    with guarded(Path(), *NAMES):
        done = discretion("doctor", "config.toml", "--on", "guards", "-c", "clients.where=here")
    assert done.code == 0 and "4 of 4 clients are ready." in done.err


def said_of(*turns: tuple[int, int] | None, planned: int = 0, charged: int = 0) -> preflight.Preflight:
    rows = (Readiness(f"h{i}", True, (), each) for i, each in enumerate(turns))
    return preflight.Preflight(tuple(rows), 0.51, planned, charged)


def test_a_budget_that_does_not_allow_all_turns_is_told() -> None:
    found = said_of((10, 10), (3, 10), None)
    assert found.words == "3 of 3 clients are ready, 1 of them not for all of their turns"
    with pytest.raises(UnverifiedError, match="a run would end without them. Nothing was joined or charged"):
        found.require_all()
    cells = [list(column.cells) for column in table(found).columns]
    assert cells[0] == ["h1", "h0", "h2"] and "yes[/], for 3 of 10 turns" in str(cells[1][0])
    found.require()
    said_of((10, 10)).require_all()


def test_clients_that_the_plan_never_asks_are_not_left_out_of_the_words() -> None:
    said = "1 of 1 clients are ready (the plan never asks 5 of its 6)"
    assert said_of((1, 1), planned=6).words == said


def test_a_resumed_run_does_not_say_that_nothing_was_charged() -> None:
    assert said_of(charged=2).nothing == (
        "Nothing more was joined or charged; 2 rounds of the run are charged already"
    )
    assert "1 round of the run is charged already" in said_of(charged=1).nothing


def test_a_resumed_run_asks_again(discretion: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    write_hospitals(Path(), ["ill", "well"])
    with monkeypatch.context() as patch:
        patch.setattr(preflight.Preflight, "require", lambda found: None)
        assert discretion("run", "config.toml", "--out", "run").code == 5  # nobody is there
    change("h1", data={"path": "records.csv", "labels": ["well", "ill"]})
    with guarded(Path(), *NAMES):
        done = discretion("run", "run", "--resume")
        assert done.code == 2 and "labels: found labels well, ill" in done.err and nothing_charged()
    with guarded(Path(), "h0", "h2", "h3"):
        done = discretion("run", "run", "--resume")
        assert done.code == 0 and "3 of 4 clients are ready" in done.err


def test_what_a_process_on_flower_heard_is_read_as_it_was_written(discretion: Cli, tmp_path: Path) -> None:
    write_hospitals(Path(), ["well", "ill"])
    with guarded(Path(), "h0"), pytest.MonkeyPatch.context() as patch:
        heard: list[preflight.Preflight] = []
        patch.setattr(preflight.Preflight, "require", lambda found: heard.append(found))
        discretion("run", "config.toml", "--out", "run")
    folder = RunFolder(tmp_path / "run")
    assert preflight.read(folder) is None
    preflight.write(folder, heard[0])
    assert preflight.read(folder) == heard[0]
