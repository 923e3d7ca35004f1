"""Names of clients and runs: which are allowed, and that every door refuses the others."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from discretion.clients.messages import Finish
from discretion.clients.transport import read_addresses
from discretion.errors import ConfigError, PlanError, PopulationError
from discretion.guard import policy
from discretion.plan.names import allowed, bad_names, expected_of, same_files
from discretion.plan.phase import Phase
from discretion.plan.plan import Plan
from discretion.plan.population import Population
from support.guarding import policy_of

BAD = {
    "": "not empty",
    "../x": "no slash",
    "/abs": "no slash",
    "a/b": "no slash",
    "..\\x": "no slash and no backslash",
    ".": "no dot",
    "..": "no dot",
    ".hidden": "no dot",
    "-o": "no dash",
    " a": "no space",
    "a\u00a0": "no space",
    "a\nb": "printable",
    "a\0": "printable",
    "a\u202eb": "printable",  # turns the direction of what follows
    "a\u200bb": "printable",  # has no width
    "a\ud800": "printable",  # no character
    "e\u0301": "NFC",
    "a" * 101: "at most 100 characters",
    "\U0001f600" * 51: "200 bytes",
}
GOOD = ("c0", "_", "a.b", "a-b", "hospital a", "Ünal", "O'Brien", 'a"b', "#1", "~", "a" * 100, "é" * 100)


@pytest.mark.parametrize(("name", "expected"), BAD.items())
def test_bad_names_are_refused_with_the_rule_that_they_break(name: str, expected: str) -> None:
    assert expected in expected_of(name)
    with pytest.raises(ValueError, match="found name"):
        allowed(name)


@pytest.mark.parametrize("name", [None, 1, b"a", ["a"]])
def test_what_is_no_text_is_no_name(name: object) -> None:
    assert "text" in expected_of(name)


@pytest.mark.parametrize("name", GOOD)
def test_good_names_are_allowed(name: str) -> None:
    assert expected_of(name) == "" and allowed(name) == name


@given(name=st.text(max_size=8) | st.text("./\\-a ", max_size=8))
def test_an_allowed_name_is_a_file_of_its_folder_and_no_option(name: str) -> None:
    if not expected_of(name):
        inside = Path("/folder") / name
        assert inside.parent == Path("/folder") and inside.name == name
        assert inside.resolve().parent == Path("/folder").resolve()
        assert not name.startswith("-")


def test_a_population_lists_all_bad_names_at_once() -> None:
    ones = np.ones(3)
    with pytest.raises(PopulationError) as error:
        Population(("../x", "fine", "/abs"), ones, ones / 10, ones.astype(int))
    assert "'../x'" in str(error.value) and "'/abs'" in str(error.value) and "fine" not in str(error.value)


def test_bad_names_in_a_csv_are_reported_with_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "people.csv"
    path.write_text("client,epsilon,delta,size\n../x,1,1e-5,1\nfine,1,1e-5,1\n-o,1,1e-5,1\n")
    with pytest.raises(PopulationError) as error:
        Population.from_csv(path)
    assert "line 2: found client name '../x'" in str(error.value)
    assert "line 4: found client name '-o'" in str(error.value)


def test_a_plan_lists_bad_names_and_says_how_many_more() -> None:
    names = tuple(f"../{i}" for i in range(25))
    phase = Phase.one_pool(1, np.ones(25), np.ones(25), 1.0)
    with pytest.raises(PlanError, match=r"invalid plan: found client name '\.\./0'.*and 5 more"):
        Plan("test", names, (phase,))


@pytest.mark.parametrize("field", ["client", "run"])
def test_an_order_with_a_bad_name_is_no_order(field: str) -> None:
    good = {"client": "c0", "run": "r", "plan": "0" * 64}
    assert Finish(**good, rounds=1)
    with pytest.raises(ValidationError, match="no slash"):
        Finish(**good | {field: "../x"}, rounds=1)


def test_a_policy_for_a_bad_name_is_refused(tmp_path: Path) -> None:
    path = policy_of(tmp_path, 1)
    path.write_text(path.read_text().replace('client = "c1"', 'client = "../c1"'))
    with pytest.raises(ConfigError, match=r"client: .*no slash"):
        policy.read(path)


def test_addresses_of_bad_names_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "addresses.toml"
    path.write_text('"../a" = "a.sock"\nb = "b.sock"\n"/c" = "c.sock"\n')
    with pytest.raises(ConfigError, match=r"2 names(?s:.*)'\.\./a'(?s:.*)'/c'"):
        read_addresses(path)


def test_names_that_would_be_one_file_are_found() -> None:
    assert same_files(["a", "b", "Ab"], ["c"]) == []
    assert same_files(["a", "A", "straße", "STRASSE", "b"]) == [
        "found client names 'a', 'A', expected names that differ in more than case",
        "found client names 'straße', 'STRASSE', expected names that differ in more than case",
    ]
    assert same_files(["Operator.Key"], ["operator.key"]) == [
        "found client name 'Operator.Key', expected another than that of the file operator.key"
    ]


def test_a_long_name_is_shown_in_part() -> None:
    (said,) = bad_names(["x" * 100_000])
    assert len(said) < 300
