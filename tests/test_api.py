"""The public interface is what `discretion.__all__` lists, no more and no less."""

import inspect
from pathlib import Path

import numpy as np

import discretion as dn

PUBLIC = {
    "plan": {
        *("METHODS", "Phase", "Plan", "Population", "Steps", "draw_budgets", "make_plan"),
    },
    "prove": {
        *("Certificate", "Pld", "Reference", "Renyi", "certify", "spent"),
        *("clip_bound", "most_rounds", "noise_multiplier", "noise_scale", "sampling_rate"),
    },
    "train": {"Clients", "Ledger", "Order", "Server", "State", "Updates", "train"},
    "run": {
        *("Config", "Progress", "Run", "Verification"),
        *("execute", "prepare", "read_run", "verify", "write_report"),
    },
    "errors": {
        *("BudgetError", "ConfigError", "DataError", "DiscretionError", "InputError", "LedgerError"),
        *("ModelError", "PlanError", "PopulationError"),
    },
}


def test_the_public_interface_is_pinned() -> None:
    assert set(dn.__all__) == set().union(*PUBLIC.values())
    assert list(dn.__all__) == sorted(
        dn.__all__, key=lambda name: (not name.isupper(), name[0].islower(), name)
    )
    extra = {
        name
        for name, value in vars(dn).items()
        if not name.startswith("_") and not inspect.ismodule(value) and name not in dn.__all__
    }
    assert extra == {"version"}


def test_everything_public_says_what_it_is() -> None:
    for name in dn.__all__:
        value = getattr(dn, name)
        if inspect.isfunction(value) or (inspect.isclass(value) and not issubclass(value, Exception)):
            assert inspect.getdoc(value), name


def test_a_run_is_prepared_executed_read_and_verified_by_the_api(tmp_path: Path) -> None:
    settings = {
        "population": {"clients": 12, "budgets": "groups:4,8,16"},
        "data": {"name": "digits"},
        "plan": {"rounds": 4, "rate": 0.5, "clip": 0.5},
        "train": {"threads": 1, "evaluate_every": 2},
    }
    place = str(tmp_path / "run")
    seen: list[dn.Progress] = []
    run = dn.execute(dn.prepare(settings, place), seen.append)
    assert [now.round for now in seen] == [1, 2, 3, 4] and run.finished
    again = dn.read_run(place)
    assert again.plan.digest() == run.plan.digest() and again.history.done == 4
    assert repr(again) == "<Run run: idp_fedavg, 12 clients, finished>"
    assert "idp_fedavg" in again._repr_html_()
    found = dn.verify(place)
    assert found.kept and found.whole
    dn.write_report([again], tmp_path / "report.html")
    assert (tmp_path / "report.html").exists()
    assert dn.execute(place).finished  # nothing is left to do


def test_settings_come_from_a_file_a_dictionary_or_a_config(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(
        '[population]\nclients = 12\n[data]\nname = "digits"\n[plan]\nrounds = 2\n'
    )
    record = {"population": {"clients": 12}, "data": {"name": "digits"}, "plan": {"rounds": 2}}
    runs = (
        dn.prepare(tmp_path / "config.toml", tmp_path / "file"),
        dn.prepare(record, tmp_path / "dictionary"),
        dn.prepare(dn.Config.model_validate(record), tmp_path / "config"),
    )
    assert len({run.about.id for run in runs}) == 1


def test_numbers_and_paths_are_taken_as_people_give_them(tmp_path: Path) -> None:
    multiplier = dn.noise_multiplier(1.0, 1e-5, 0.1, 100)
    assert isinstance(multiplier, float)
    np.testing.assert_allclose(dn.noise_multiplier(np.array([1.0]), 1e-5, 0.1, 100), [multiplier])
    population = dn.Population.of([1.0, 2.0])
    (tmp_path / "people.csv").write_text(population.to_csv())
    assert len(dn.Population.from_csv(str(tmp_path / "people.csv"))) == 2
    plan = dn.make_plan("dp_fedavg", population, rounds=3, rate=0.5, clip=0.5)
    with dn.Ledger(str(tmp_path / "ledger.sqlite"), population) as ledger:
        ledger.consider(plan)
