"""The command line as people and machines use it: output, JSON, exit codes, errors that say what to do."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from discretion.cli import experiments
from discretion.cli.methods import protection
from discretion.ledger.ledger import Ledger
from discretion.methods import METHODS
from discretion.plan.phase import Phase
from discretion.plan.plan import Plan
from discretion.plan.population import Population
from discretion.runs.folder import RunFolder
from support.commands import Cli
from support.run_folders import seal


@pytest.fixture
def people(discretion: Cli, tmp_path: Path) -> Path:
    path = tmp_path / "population.csv"
    path.write_text(discretion("population", "groups:2,4,8", "--clients", "12").out)
    return path


def test_every_command_explains_itself(discretion: Cli) -> None:
    done = discretion("--help")
    assert done.code == 0
    for command in (
        "demo",
        "experiment",
        "init",
        "population",
        "plan",
        "check",
        "run",
        "compare",
        "report",
        "verify",
        "receipt",
        "ledger",
        "methods",
        "data",
    ):
        assert command in done.out
        helped = discretion(command, "--help")
        assert helped.code == 0 and "Usage: discretion " + command in helped.out
        assert all(len(line) <= 80 for line in helped.out.splitlines())
    assert discretion("--version").out.startswith("discretion ")


def test_a_population_is_printed_as_csv(discretion: Cli, people: Path) -> None:
    lines = people.read_text().splitlines()
    assert lines[0] == "client,epsilon,delta,size" and len(lines) == 13
    record = json.loads(discretion("population", "groups:2,inf", "--clients", "4", "--json").out)
    assert sorted(map(float, record["epsilon"])) == [2, 2, math.inf, math.inf]
    wrong = discretion("population", "gruops:1,2")
    assert wrong.code == 2 and "unknown budget mix" in wrong.err


def test_plan_then_check(discretion: Cli, people: Path) -> None:
    made = discretion("plan", "idp_fedavg", str(people), "--rounds", "5", "--rate", "0.5", "-o", "plan.json")
    assert made.code == 0 and "ε 2" in made.out and "yes" in made.out
    words = " ".join(made.out.split())
    assert "if the server is trusted: " in words and "against it epsilon is infinite." in words
    summed = " ".join(discretion("plan", "concert", str(people), "--rounds", "5").out.split())
    assert "from the server, " in summed and "if a secure sum shows the server sums only" in summed
    assert (
        "without one nothing is promised against the server" in summed and "the server (secure sum)" in summed
    )
    assert all(len(line) <= 80 for line in made.out.splitlines())
    checked = discretion("check", "plan.json", str(people), "--json")
    assert checked.code == 0
    record = json.loads(checked.out)
    assert record["within_budget"] and record["overspending"] == []
    assert 0.995 < record["largest_share_of_budget"] <= 1


def test_check_names_who_would_overspend(discretion: Cli, people: Path, tmp_path: Path) -> None:
    """The noise cut by a fifth: exit code 3, the names, the numbers and what to do."""
    discretion("plan", "idp_fedavg", str(people), "--rounds", "5", "--rate", "0.5", "-o", "plan.json")
    path = tmp_path / "plan.json"
    noise = repr(float(Plan.from_json(path.read_text()).phases[0].noise[0]))
    path.write_text(path.read_text().replace(noise, repr(0.8 * float(noise))))
    done = discretion("check", "plan.json", str(people))
    assert done.code == 3
    words = " ".join(done.err.split())
    assert "12 of 12 clients would overspend" in words and "worst is client c" in words
    assert "budget" in words and "Lower rounds" in words
    machine = discretion("check", "plan.json", str(people), "--json")
    assert machine.code == 3
    assert len(json.loads(machine.out)["overspending"]) == 12
    assert "overspend" in json.loads(machine.err)["error"]


def test_other_accountants_agree_or_find_more(discretion: Cli, people: Path) -> None:
    discretion("plan", "dp_fedavg", str(people), "--rounds", "5", "--rate", "0.5", "-o", "plan.json")
    tight, second, loose = (
        json.loads(discretion("check", "plan.json", str(people), "--accountant", name, "--json").out)
        for name in ("pld", "dp-accounting", "renyi")
    )
    assert second["largest_epsilon"] == pytest.approx(tight["largest_epsilon"], rel=1e-3)
    assert second["within_budget"] and not loose["within_budget"]
    assert tight["largest_epsilon"] < loose["largest_epsilon"] < 1.5 * tight["largest_epsilon"]
    assert discretion("check", "plan.json", str(people), "--accountant", "guess").code == 2


def test_a_run_is_told_where_to_train(discretion: Cli, small_config: Path, tmp_path: Path) -> None:
    words = ("--device", "cpu", "--threads", "1", "--workers", "2", "--no-report", "-c", "plan.rounds=1")
    done = discretion("run", str(small_config), "--out", "runs/one", *words)
    assert done.code == 0, done.err
    written = RunFolder(tmp_path / "runs" / "one").config.read_text()
    assert 'device = "cpu"' in written and "threads = 1" in written and "workers = 2" in written


def test_init_then_run_then_report(discretion: Cli, small_config: Path, tmp_path: Path) -> None:
    made = json.loads(discretion("init", "other.toml", "--json").out)
    assert made == {"config": "other.toml", "unit": "client"}
    assert discretion("init", "new.toml").code == 0
    again = discretion("init", "new.toml")
    assert again.code == 2 and "exists already" in again.err
    done = discretion("run", str(small_config), "--out", "runs/one", "-c", "plan.rounds=3")
    assert done.code == 0, done.err
    run = RunFolder(tmp_path / "runs" / "one")
    assert run.model.exists() and run.report.exists()
    assert "rounds = 3" in run.config.read_text()
    assert "report.html" in done.err.replace("\n", "")
    timed = discretion("run", str(small_config), "--out", "two", "-c", "plan.rounds=2", "--profile", "--json")
    profile = json.loads(timed.out)["profile"]
    assert profile["rounds"] == 2 and {"select", "train", "clip", "noise", "ledger"} <= set(
        profile["seconds"]
    )
    timed = discretion("run", str(small_config), "--out", "six", "-c", "plan.rounds=2", "--profile")
    assert "evaluate" in timed.err and "time without evaluation" in " ".join(timed.err.split())
    checked = discretion("check", "runs/one")
    assert checked.code == 0 and "yes" in checked.out
    assert discretion("run", "runs/one", "--resume", "--json").code == 0
    for words, message in (
        (("run", str(small_config), "--out", "runs/one"), "exists already"),
        (("run", "runs/one"), "--resume"),
        (("run", "runs/one", "--resume", "-c", "seed=3"), "keeps its settings"),
        (("compare", "nowhere"), "no run in"),
        (("check", "plan.json"), "give the population"),
        (("check", "nowhere.json", str(run.population)), "cannot read"),
        (("run", "nothing.toml"), "cannot read"),
        (("run", str(small_config), "-c", "plan.roundz=3"), "Did you mean 'plan.rounds'?"),
        (
            ("run", str(small_config), "--out", "runs/two", "--device", "tpu"),
            "no device 'tpu' on this machine: choose one of",
        ),
    ):
        refused = discretion(*words)
        assert refused.code == 2, words
        assert message in " ".join(refused.err.split()), refused.err
    assert discretion("report", "runs/one", "--out", "again.html").code == 0
    assert json.loads(discretion("report", "runs/one", "--json").out) == {"report": "runs/one/report.html"}
    assert (tmp_path / "again.html").stat().st_size > 10_000


def test_compare_shows_runs_side_by_side(discretion: Cli, small_config: Path) -> None:
    for method in ("dp_fedavg", "idp_fedavg"):
        changes = ["-c", "plan.rounds=2", "-c", f"plan.method={method}"]
        assert discretion("run", str(small_config), "--out", f"runs/{method}", *changes, "--json").code == 0
    shown = discretion("compare", "runs")
    assert shown.code == 0 and "DP-FedAvg" in shown.out and "IDP-FedAvg" in shown.out
    assert all(len(line) <= 80 for line in shown.out.splitlines())
    record = json.loads(discretion("compare", "runs/dp_fedavg", "runs/idp_fedavg", "--json").out)
    assert len(record["methods"]) == 2


def test_no_privacy_is_refused_and_said(discretion: Cli, small_config: Path, people: Path) -> None:
    done = discretion("run", str(small_config), "-c", "plan.method=fedavg", "--out", "runs/open")
    assert done.code == 3 and "accept_no_privacy" in done.err
    shown = discretion("plan", "fedavg", str(people))
    assert "protects nobody" in shown.out and "∞" in shown.out


def test_a_damaged_run_folder_is_told_from_a_good_one(
    discretion: Cli, small_config: Path, tmp_path: Path
) -> None:
    assert discretion("run", str(small_config), "--out", "r", "-c", "plan.rounds=2", "--json").code == 0
    run = RunFolder(tmp_path / "r")
    run.plan.write_text(run.plan.read_text().replace('"rounds": 2', '"rounds": 1'))
    for command in ("check", "report", "verify", "show", "compare", "export"):
        done = discretion(command, "r")
        said = done.err.replace("\n", " ")
        assert done.code == 4 and "plan.json" in said and "damaged or was changed" in said
    seal(run.path)
    done = discretion("check", "r")
    assert done.code == 2 and "changed after it was certified" in done.err.replace("\n", " ")


def test_a_ledger_is_shown_and_budgets_are_changed(discretion: Cli, tmp_path: Path) -> None:
    population = Population.of([2.0, 4.0, math.inf])
    plan = Plan("made", population.client, (Phase.one_pool(3, np.ones(3), np.ones(3), 5.0),))
    with Ledger(tmp_path / "ledger.sqlite", population) as ledger:
        ledger.admit("a", plan)
        ledger.reserve("a", 1)
        spent = ledger.spent().tolist()
    shown = discretion("ledger", "ledger.sqlite")
    assert shown.code == 0 and "planned" in shown.out and "∞" in shown.out
    assert all(name in shown.out for name in population.client)
    assert all(len(line) <= 80 for line in shown.out.splitlines())
    note = "asked by [mail]"
    changed = discretion("ledger", "ledger.sqlite", "--client", "c1", "--change", "-0.5", "--note", note)
    assert changed.code == 0 and "3.5" in changed.out and "-0.5" in changed.out and note in changed.out
    assert "c0" not in changed.out
    record = json.loads(discretion("ledger", ".", "--client", "c1", "--change", "+1", "--json").out)
    assert record["clients"] == [
        {"client": "c1", "delta": 1e-5, "budget": 4.5, "spent": spent[1], "left": 4.5 - spent[1], "runs": 1}
    ]
    assert [(change["by"], change["note"]) for change in record["changes"]] == [(-0.5, note), (1, "")]
    everything = json.loads(discretion("ledger", "ledger.sqlite", "--json").out)
    assert [client["budget"] for client in everything["clients"]] == [2.0, 4.5, "inf"]
    (run,) = everything["runs"]
    assert (run["id"], run["rounds"], run["reserved"], run["committed"], run["refusals"]) == ("a", 3, 1, 0, 0)
    for words, code, message in (
        (("--change", "1"), 2, "--client NAME"),
        (("--client", "c1", "--note", "why"), 2, "a note goes with a change"),
        (("--client", "c11"), 4, "Did you mean 'c1'?"),
        (("--client", "c1", "--change", "0"), 4, "by a finite number"),
        (("--client", "c2", "--change", "1"), 4, "has no limit"),
    ):
        refused = discretion("ledger", "ledger.sqlite", *words)
        assert refused.code == code and message in " ".join(refused.err.split()), refused
    missing = discretion("ledger", "nowhere.sqlite")
    assert missing.code == 4 and "there is no ledger" in missing.err
    assert not (tmp_path / "nowhere.sqlite").exists()


def test_a_ledger_of_many_is_shown_by_budget(discretion: Cli, tmp_path: Path) -> None:
    population = Population.of(np.repeat([2.0, 4.0], 15))
    some = replace(Population.of(np.full(2, 2.0)), client=("c0", "c1"))
    for run, clients in (("a", population), ("b", some)):
        everybody = np.ones(len(clients))
        with Ledger(tmp_path / "ledger.sqlite", clients) as ledger:
            ledger.admit(run, Plan("made", clients.client, (Phase.one_pool(1, everybody, everybody, 9.0),)))
            ledger.reserve(run, 1)
    shown = discretion("ledger", "ledger.sqlite")
    assert "ε 2" in shown.out and "ε 4" in shown.out and "c0" not in shown.out
    assert "1 to 2" in shown.out and "the most of any client" in shown.out


def test_the_rule_of_the_ledger_is_a_setting(discretion: Cli, small_config: Path) -> None:
    words = ("run", str(small_config), "-c", "plan.rounds=3", "-c", "ledger=shared.sqlite", "--json")
    assert discretion(*words, "--out", "runs/one", "-c", "rule=adaptive", "-c", "plan.share=0.5").code == 0
    record = json.loads(discretion("ledger", "shared.sqlite", "--json").out)
    assert record["rule"] == "adaptive" and record["runs"][0]["committed"] == 3
    assert all(client["spent"] <= client["budget"] for client in record["clients"])
    other = discretion(*words, "--out", "runs/two")
    assert other.code == 4 and "goes by the rule adaptive, not planned" in other.err
    own = discretion(*words[:4], "--out", "runs/three", "-c", "rule=adaptive", "--json")
    assert own.code == 0
    assert json.loads(discretion("ledger", "runs/three", "--json").out)["rule"] == "adaptive"
    assert discretion(*words, "--out", "runs/four", "-c", "rule=guess").code == 2


def test_methods_are_listed_and_explained(discretion: Cli) -> None:
    listed = discretion("methods")
    words = " ".join(listed.out.split())
    assert all(len(line) <= 80 for line in listed.out.splitlines())
    for method in METHODS.values():
        assert f"  {method.name} " in listed.out and method.paper in words
        assert method.idea in words and f"Decides by {method.reads}." in words
    assert (
        "Protects nobody as published, where epsilon is infinite; with read_share > 0 protects each record"
        in words
    )
    record = json.loads(discretion("methods", "dp_fedavg", "--json").out)["methods"][0]
    assert set(record["parameters"]) == {"rounds", "rate", "clip", "accounting"}
    assert record["parameters"]["accounting"] == {
        "default": "tight",
        "expected": "one of tight, paper",
        "meaning": "noise by exact accounting (tight) or by the paper's own formula (paper)",
    }
    assert record["modes"] == ["tight", "paper"] and "McMahan" in " ".join(record["about"])
    assert len(json.loads(discretion("methods", "--json").out)["methods"]) == len(METHODS)
    wrong = discretion("methods", "fedavgg")
    assert wrong.code == 2 and "Did you mean 'fedavg'?" in wrong.err


@pytest.mark.parametrize("name", METHODS)
def test_one_method_is_explained_with_its_parameters_and_modes(discretion: Cli, name: str) -> None:
    shown = discretion("methods", name)
    assert shown.code == 0 and all(len(line) <= 80 for line in shown.out.splitlines())
    words, method = " ".join(shown.out.split()), METHODS[name]
    assert method.idea in words and protection(method) in words
    for name, parameter in method.parameters.items():
        assert f"{parameter.meaning}; {parameter.expected}" in words and f"  {name} " in shown.out
    assert ("--accounting paper" in words) == ("accounting" in method.parameters)
    published = "docs/method.md" not in method.paper
    if published and name != "unbiased" and "read_share" not in method.parameters:
        assert "Departs from the paper" in words


def test_plan_takes_the_papers_accounting_and_warns(discretion: Cli, people: Path) -> None:
    words = ("plan", "gdpfed", str(people), "--rounds", "5", "--rate", "0.5")
    paper = discretion(*words, "--accounting", "paper")
    assert paper.code == 3 and "Paper mode: not the stated guarantee." in " ".join(paper.out.split())
    same = discretion(*words, "-p", "accounting=paper")
    assert same.out == paper.out
    tight = discretion(*words, "--accounting", "tight")
    assert "Paper mode" not in tight.out and tight.out == discretion(*words).out
    record = json.loads(discretion(*words, "--accounting", "paper", "--json").out)
    assert record["accounting"] == "paper" and not record["within_budget"]
    assert discretion(*words, "--accounting", "guess").code == 2
    assert discretion("plan", "fedavg", str(people), "--accounting", "paper").code == 2


def test_plan_advises_on_participation(discretion: Cli, people: Path) -> None:
    words = ("plan", "concert", str(people), "--rounds", "4", "--rate", "0.2", "--advise")
    shown = discretion(*words)
    text = " ".join(shown.out.split())
    assert shown.code == 0 and "Every row keeps every budget." in text and "It knows budgets" in text
    assert all(len(line) <= 80 for line in shown.out.splitlines() if "│" in line)
    record = json.loads(discretion(*words, "--json").out)
    assert {option["rounds"] for option in record["options"]} == {2, 4, 8}
    assert record["recommended"] in record["options"]
    assert discretion(*words, "-o", "plan.json").code == 2
    assert "no noise" in discretion("plan", "fedavg", str(people), "--advise").out


def test_every_adversary_is_shown_where_they_differ(discretion: Cli, people: Path) -> None:
    shown = discretion("plan", "spend_as_you_go", str(people), "--rounds", "5", "--rate", "0.5")
    assert "by who is looking" in shown.out and "not promised" in shown.out
    assert all(name in shown.out for name in ("whoever sees the models", "other clients", "the server"))
    assert all(len(line) <= 80 for line in shown.out.splitlines())
    same = discretion("plan", "privacy_aware", str(people), "--rounds", "5", "--rate", "0.5")
    assert "by who is looking" not in same.out


def test_public_turns_are_shown_as_turns(discretion: Cli, people: Path) -> None:
    shown = discretion("plan", "unbiased", str(people), "--rounds", "5", "--rate", "0.5")
    words = " ".join(shown.out.split())
    assert "turns" in words and " rate " not in words
    assert "a turn: 5 noisy steps, each record in a step with chance 0.1" in words
    asked = discretion("plan", "power_of_choice", str(people), "--rounds", "5", "--rate", "0.25")
    assert "3 train in each" in " ".join(asked.out.split()) and "read raw" in " ".join(asked.out.split())


def test_a_plan_is_drawn_beside_it(discretion: Cli, people: Path, tmp_path: Path) -> None:
    words = ("plan", "dp_fedavg", str(people), "--rounds", "3", "--rate", "0.5")
    drawn = discretion(*words, "--plot")
    assert drawn.code == 0 and "Open it with" in drawn.err and (tmp_path / "dp_fedavg-plan.html").exists()
    (tmp_path / "there").mkdir()
    discretion(*words, "--plot", "-o", "there/plan.json")
    assert (tmp_path / "there" / "dp_fedavg-plan.html").exists()
    record = json.loads(discretion(*words, "--plot-out", "my.html", "--json").out)
    assert record["plot"] == "my.html" and (tmp_path / "my.html").exists()
    assert record["details"] == {"rounds": {}, "chance": None, "numbers": {}}


def test_a_method_says_what_it_found_on_the_way(discretion: Cli, people: Path) -> None:
    words = ("plan", "fedpcs", str(people), "--rounds", "5", "--rate", "0.25", "--json")
    found = json.loads(discretion(*words).out)["details"]
    assert {len(curve) for curves in found["rounds"].values() for curve in curves.values()} == {6}
    assert found["numbers"]["price of anarchy (1: as good as planned for all)"] >= 1
    chances = json.loads(discretion("plan", "privacy_aware", *words[2:]).out)["details"]["chance"]
    assert len(chances) == 12 and sum(chances) == pytest.approx(1)


def test_data_is_listed_and_fetched(discretion: Cli) -> None:
    assert "fashion-mnist" in discretion("data").out
    assert {entry["name"] for entry in json.loads(discretion("data", "--json").out)["data"]} >= {
        "digits",
        "csv",
    }
    assert "1,438 training" in discretion("data", "digits").out.replace("\n", " ")
    assert json.loads(discretion("data", "digits", "--json").out)["train"] == 1438


def test_an_interrupt_says_what_is_kept(discretion: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(experiments, "read", interrupted)
    done = discretion("demo")
    assert done.code == 130 and "What is done is kept" in done.err


def test_what_the_papers_charge_stands_beside_what_is_true(discretion: Cli) -> None:
    shown = discretion("check", "--accounting", "paper")
    assert shown.code == 0 and "Kiani et al." in shown.out and "broken" in shown.out
    assert all(len(line) <= 80 for line in shown.out.splitlines())
    rows = json.loads(discretion("check", "--accounting", "paper", "--json").out)["papers"]
    assert len({row["paper"] for row in rows}) == 5
    assert {row["verdict"] for row in rows} == {"kept", "broken", "unproven"}
    for words in (["check"], ["check", "--accounting", "guess"]):
        assert discretion(*words).code == 2


def test_every_evaluated_round_is_in_the_log(discretion: Cli, small_config: Path) -> None:
    words = ("run", str(small_config), "--out", "runs/logged", "-c", "plan.rounds=30", "--no-report")
    done = discretion(*words, "-c", "train.evaluate_every=10")
    for number in (10, 20, 30):
        assert re.search(rf"round {number} of 30: +\d+\.\d%  spent", done.err)
    assert re.search(r"round 3 of 30: +spent", done.err)
