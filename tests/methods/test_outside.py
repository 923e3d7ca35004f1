"""Methods, data sets and models from a folder outside the package, used by command line and API."""

import contextlib
import inspect
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
import pytest
from annotated_types import Interval
from pydantic import conint

from discretion import make_plan, methods, outside
from discretion.accounting import certify
from discretion.clients.remote import RemoteClients
from discretion.errors import ConfigError, DataError, DiscretionError
from discretion.methods import METHODS, find, registry
from discretion.methods.parameters import MethodParameter
from discretion.plan.plan import Plan
from discretion.plan.population import Population
from discretion.runs import config
from discretion.tasks import datasets, models
from discretion.testing import check_method
from support import guarding
from support.commands import Cli

GUIDE = (Path(__file__).parents[2] / "docs" / "adding-a-method.md").read_text(encoding="utf-8")
PEOPLE = Population.of([1.0, 1.0, 3.0, 6.0, 6.0], 1e-4, 10)
SETTINGS = {"rounds": 6, "rate": 0.2, "clip": 0.8}
FILES = re.findall(r"`(\w+\.(?:py|toml))`[^`]*?\n\n```(?:python|toml)\n(.*?)```", GUIDE, re.S)
PLAIN = '''
from discretion.methods import make_plan


def plain(population, rounds: int, rate: float, clip: float = 1.0):
    """Plan as DP-FedAvg does.

    And more."""
    return make_plan("dp_fedavg", population, rounds=rounds, rate=rate, clip=clip)


def untyped(population, rounds, *rest):
    pass


def number(population, rounds: int):
    return rounds


THING = 3
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The guide's files and some others in the current folder; nothing of them stays imported."""
    assert [name for name, _ in FILES] == ["fade.py", "waves.py", "waves.toml"]
    for name, text in (*FILES, ("others.py", PLAIN)):
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    for name in ("fade", "waves", "others", "intruder"):
        sys.modules.pop(name, None)


def commands() -> list[str]:
    blocks = re.findall(r"<!-- not run: tests/methods/test_outside.py.*?```sh\n(.*?)```", GUIDE, re.S)
    return "".join(blocks).splitlines()


def run(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own, which does not put the current folder on its path by itself."""
    command = [sys.executable, "-P", "-m", "discretion", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


# the guide


def test_every_command_of_the_guide_works(folder: Path, discretion: Cli) -> None:
    found = commands()
    assert len(found) == 6
    for command in found:
        words, _, target = command.removeprefix("discretion ").partition(" > ")
        done = discretion(*words.split())
        assert done.code == 0, f"{command}\n{done.err}"
        if target:
            Path(target).write_text(done.out)
        if words == "methods fade:fade":
            assert (
                "One noise that falls half-way" in done.out
                and "from whoever sees the released models" in " ".join(done.out.split())
            )
    plan = Plan.from_json((folder / "runs" / "waves" / "plan.json").read_text(encoding="utf-8"))
    assert plan.method == "fade:fade" and plan.parameters["early"] == 2.0
    history = (folder / "runs" / "waves" / "history.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(history[-1])["round"] == 6


def test_the_example_keeps_the_contract_and_does_what_it_says(folder: Path) -> None:
    check_method("fade:fade", PEOPLE)
    check_method(outside.load("fade:fade", ConfigError))
    plan = make_plan("fade:fade", PEOPLE, rounds=6, rate=0.2, clip=0.8)
    first, second = plan.phases
    assert first.rounds == second.rounds == 3
    assert first.noise == pytest.approx(2 * second.noise)
    assert first.clip.mean() == pytest.approx(0.8)
    assert (np.diff(first.clip) >= 0).all() and first.clip[-1] > first.clip[0]
    assert certify(plan, PEOPLE).share.min() > 0.995


def test_the_guide_explains_every_argument_of_the_decorator() -> None:
    table = re.search(r"\| argument \|.*?\n\n", GUIDE, re.S)
    assert table
    rows = [row.split("|")[1] for row in table[0].strip().splitlines()[2:]]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert named == set(inspect.signature(registry.method).parameters) - {"name"}  # for variants by a factory


# in a process of its own


def test_a_process_of_its_own_finds_the_current_folder(folder: Path) -> None:
    (folder / "population.csv").write_text(PEOPLE.to_csv(), encoding="utf-8")
    words = ["plan", "fade:fade", "population.csv", "--rounds", "6", "--plot", "-o", "plan.json", "--json"]
    done = run(words, folder)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["method"] == "fade:fade" and (folder / "fade.fade-plan.html").exists()
    assert Plan.from_json((folder / "plan.json").read_text(encoding="utf-8")).method == "fade:fade"


def test_a_run_is_read_without_its_method(folder: Path, discretion: Cli) -> None:
    done = discretion("run", "waves.toml", "--out", "runs/one", "--no-report", "-c", "plan.rounds=2")
    assert done.code == 0, done.err
    for name in ("fade.py", "waves.py"):
        (folder / name).unlink()
    (folder / "fade.py").write_text("raise RuntimeError('imported')", encoding="utf-8")
    for words in (
        ["verify", "runs/one"],
        ["report", "runs/one"],
        ["show", "runs/one"],
        ["compare", "runs/one"],
    ):
        found = run(words, folder)
        assert found.returncode == 0, f"{words}\n{found.stdout}{found.stderr}"
    assert "fade:fade" in (folder / "runs" / "one" / "report.html").read_text(encoding="utf-8")


# what is accepted and what is refused


def test_a_function_without_the_decorator_gets_its_name_and_docstring(folder: Path, discretion: Cli) -> None:
    found = find("others:plain")
    assert (found.name, found.title, found.idea) == ("others:plain", "plain", "Plan as DP-FedAvg does.")
    assert found.unit == "undeclared" and list(found.parameters) == ["rounds", "rate", "clip"]
    plan = make_plan("others:plain", PEOPLE, {"rounds": 3}, rate=0.5)
    assert plan.method == "others:plain" and plan.parameters == {"rounds": 3, "rate": 0.5, "clip": 1.0}
    shown = " ".join(discretion("methods", "others:plain").out.split())
    assert "Not declared: the certificate of each plan" in shown
    with pytest.raises(AssertionError, match="others:plain: parameter rounds has no meaning"):
        check_method("others:plain")


def test_what_cannot_be_a_method_is_refused(folder: Path) -> None:
    for name, message in {
        "nowhere:plan": "'nowhere:plan' cannot be imported: ModuleNotFoundError",
        "others:nothing": "has no attribute 'nothing'",
        "others:THING": "others:THING is a int; expected a function",
        "others:untyped": "parameter rounds has no type",
        "others:number": "others:number returned 3; expected a discretion.Plan",
    }.items():
        with pytest.raises(ConfigError, match=re.escape(message)):
            make_plan(name, PEOPLE, rounds=3)
    with pytest.raises(ConfigError, match="fade:fade: early is -1; expected a number, above 0"):
        make_plan("fade:fade", PEOPLE, {**SETTINGS, "early": -1})


def test_each_problem_says_found_expected_method_and_parameter() -> None:
    for name, change, message in (
        (
            "dp_fedavg",
            {"rounds": 2.5},
            "dp_fedavg: rounds is 2.5; expected a whole number, at least 1 and at most 1,000,000",
        ),
        ("dp_fedavg", {"rate": "x"}, "dp_fedavg: rate is 'x'; expected a number, above 0 and at most 1"),
        ("dp_fedavg", {"accounting": "x"}, "dp_fedavg: accounting is 'x'; expected one of tight, paper"),
        ("fedpcs", {"weighted": "no"}, "fedpcs: weighted is 'no'; expected true or false"),
        ("concert", {"dropout": True}, "concert: dropout is True; expected a number, at least 0 and below 1"),
    ):
        with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
            make_plan(name, PEOPLE, {**SETTINGS, **change})


def test_accepted_values_are_kept_as_given() -> None:
    plan = make_plan("concert", PEOPLE, rounds=np.int64(3), rate=1, clip=1, average=0)
    assert json.dumps(dict(plan.parameters)) == (
        '{"rounds": 3, "rate": 1, "clip": 1, "average": 0, "dropout": 0.0}'
    )


def test_one_file_in_the_folder_of_methods_is_all_that_a_method_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = dict(registry._registered)
    monkeypatch.setattr(registry, "_registered", before)
    text = dict(FILES)["fade.py"]
    (tmp_path / "fade.py").write_text(text, encoding="utf-8")
    monkeypatch.setattr(methods, "__path__", [*methods.__path__, str(tmp_path)])
    try:
        found = registry.discover(methods.__path__)
    finally:
        sys.modules.pop("discretion.methods.fade", None)
        vars(methods).pop("fade", None)
    assert list(found) == [*METHODS, "fade"]
    assert found["fade"].make(PEOPLE, SETTINGS).method == "fade"
    with pytest.raises(ImportError, match="several called fade"):
        twice = found["fade"].plan
        before[lambda population: twice(population)] = found["fade"]
        registry.discover(())


def test_a_data_set_that_cannot_be_used_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = datasets.load("waves:load")
    assert good.name == "waves:load" and models.build("waves:network", good, seed=0)
    wrong: dict[str, tuple[Callable[[], object], str]] = {
        "raises": (lambda: 1 / 0, "fails when called: ZeroDivisionError"),
        "number": (lambda: 3, "returned a int; expected a Dataset"),
        "floats": (
            lambda: replace(good, train=replace(good.train, labels=good.train.labels.astype(float))),
            "train has 600 inputs and 600 labels of type float64; expected an int64 label from 0 to 1",
        ),
        "short": (lambda: replace(good, test=replace(good.test, labels=good.test.labels[:-1])), "199 labels"),
        "classes": (lambda: replace(good, classes=1), "from 0 to 0"),
    }
    for name, (make, message) in wrong.items():
        monkeypatch.setattr(sys.modules["waves"], name, make, raising=False)
        with pytest.raises(DataError, match=message):
            datasets.load(f"waves:{name}")
    with pytest.raises(DataError, match="cannot be imported"):
        datasets.load("waves:nothing")
    with pytest.raises(DataError, match="is no data set"):
        datasets.load("waves")


def test_settings_name_code_from_outside_by_config_and_api_alike(folder: Path) -> None:
    settings = config.make(tomllib.loads(dict(FILES)["waves.toml"]), [], "the guide")
    assert (settings.plan.method, settings.data.name) == ("fade:fade", "waves:load")


# security


def test_a_guard_imports_nothing_because_a_message_names_it(folder: Path) -> None:
    """Neither the model of an order nor the method of its plan; not even if the code is there."""
    (folder / "intruder.py").write_text("raise SystemExit('imported')", encoding="utf-8")
    guard = guarding.guard_of(folder, 0)
    named = replace(guarding.plan_of(guarding.own_pools(2)), method="intruder:plan")
    for model, refused in (("intruder:build", True), ("linear", False)):
        transport, run = guarding.Direct({"c0": guard}), model[:3]
        clients = RemoteClients(
            *(transport, guarding.KEY, named, guarding.PEOPLE, run),
            model=model,
            shapes=guarding.SHAPES,
            records=guarding.RECORDS,
            local=guarding.LOCAL,
            timeout=60.0,
        )
        with contextlib.suppress(DiscretionError):
            guarding.trained(named, clients, folder / run, run=run)
        answers = [guard.answer(order) for client, order in transport.sent if client == "c0"]
        assert (b"not listed in this guard" in answers[0]) == refused
        assert "intruder" not in sys.modules


def test_guards_have_no_way_to_the_loader_but_models_and_data_sets() -> None:
    source = Path(outside.__file__).parent
    importing = {
        path.relative_to(source).as_posix()
        for path in source.rglob("*.py")
        if re.search(r"import outside\b|discretion\.outside|import_module", path.read_text(encoding="utf-8"))
    }
    assert importing == {
        *("outside.py", "methods/__init__.py", "methods/registry.py", "tasks/datasets.py", "tasks/models.py")
    }


def test_a_unit_that_does_not_exist_is_refused_where_the_method_is_declared() -> None:
    facts = {"title": "T", "idea": "I.", "paper": "P", "reads": "nothing", "noise_at": None, "promise": None}
    with pytest.raises(ConfigError, match="found unit 'person', expected client, record or none"):
        registry.method(unit="person", **facts)(lambda population: None)  # type: ignore[arg-type, type-var]


def test_bounds_of_every_kind_of_annotation_are_worded() -> None:
    whole, share = conint(ge=1), Annotated[float, Interval(gt=0, le=1)]
    assert MethodParameter("rounds", whole, 1).expected == "a whole number, at least 1"
    assert MethodParameter("rate", share, 0.1).expected == "a number, above 0 and at most 1"


def test_what_is_no_population_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"found \[1, 2\] as the population; expected a discretion.Population"
    ):
        make_plan("dp_fedavg", [1, 2], SETTINGS)  # type: ignore[arg-type]
