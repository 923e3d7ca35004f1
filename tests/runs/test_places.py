"""What settings name and is not there is listed, all at once, before anything is planned or written."""

import re
from pathlib import Path

import pytest

from discretion.clients.messages import write_key
from discretion.errors import ConfigError
from discretion.plan.population import Population
from discretion.runs import config
from discretion.runs.places import require_addresses, require_places


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "table.csv").touch()
    return tmp_path


def problems(*settings: str) -> list[str]:
    try:
        require_places(config.make({}, settings))
    except ConfigError as problem:
        return str(problem).splitlines()[1:]
    return []


def test_all_that_is_missing_is_listed_at_once() -> None:
    names = ("population.csv=people.csv", "data.path=a.csv", "data.test=b.csv", "data.name=csv")
    found = problems(*names, "ledger=no/ledger.sqlite", "after=runs/first", "clients.where=guards")
    assert [line.split(":")[0].split(" is ")[0].strip() for line in found] == [
        *("population.csv", "data.path", "data.test", "ledger", "after", "clients.key", "clients.addresses")
    ]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["data.name=csv"], "data.path is empty"),
        (["data.name=csv", "clients.where=flower-sim"], "data.path is empty"),
        (
            ["data.name=csv", "data.path=table.csv", "data.hold_out=0"],
            "no test records.*data.hold_out be above 0",
        ),
        (["data.path=table.csv"], "fashion-mnist has records of its own"),
        (["data.test=held-out"], "fashion-mnist has records of its own"),
        (["ledger=."], "is a folder"),
    ],
)
def test_what_cannot_be(settings: list[str], message: str) -> None:
    (found,) = problems(*settings)
    assert re.search(message, found)


def test_clients_elsewhere_need_a_key_and_test_records(here: Path) -> None:
    write_key(here / "operator.key")
    flower = ("clients.where=flower", "data.name=csv", "clients.key=operator.key")
    (found,) = problems(*flower)
    assert "there are no test records" in found
    assert problems(*flower, "data.test=table.csv") == []
    (found,) = problems(*flower, "data.test=table.csv", "clients.home=net")
    assert "no config.toml in net" in found
    (found,) = problems(*flower[:2], "data.test=table.csv", "clients.key=table.csv")
    assert "no operator's key" in found


def test_every_client_has_an_address(here: Path) -> None:
    (here / "addresses.toml").write_text('c1 = "c1.sock"')
    settings = config.make({}, ["clients.where=guards", "clients.addresses=addresses.toml"])
    people = Population.of([1.0, 1.0, 1.0])
    with pytest.raises(ConfigError, match="(?s)no address of 2 of 3 clients.*c0.*c2"):
        require_addresses(settings, people)
    (here / "addresses.toml").write_text('c0 = "a"\nc1 = "b"\nc2 = "c"')
    require_addresses(settings, people)
