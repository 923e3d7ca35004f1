"""A population holds what was declared, exactly; what cannot be is refused whole, with every reason."""

import dataclasses
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discretion.errors import InputError, PopulationError
from discretion.plan.names import expected_of
from discretion.plan.population import COLUMNS, Population

HEADER = "client,epsilon,delta,size\n"

names = (
    st.text(min_size=1, max_size=99)
    .map(lambda name: unicodedata.normalize("NFC", name.strip()))
    .filter(lambda name: not expected_of("#" + name) and not expected_of(name))
)
epsilons = st.floats(min_value=0, exclude_min=True)  # infinities and subnormal numbers, too
deltas = st.floats(0, 1, exclude_min=True, exclude_max=True)
sizes = st.integers(1, 2**53)
finite = st.floats(allow_nan=False, allow_infinity=False)


@st.composite
def populations(draw: st.DrawFn) -> Population:
    clients = draw(st.lists(names, min_size=1, max_size=6, unique=True))
    traits = draw(st.lists(names.filter(lambda name: name not in COLUMNS), max_size=2, unique=True))

    def column(of: st.SearchStrategy[float] | st.SearchStrategy[int]) -> np.ndarray:
        return np.array(draw(st.lists(of, min_size=len(clients), max_size=len(clients))))

    return Population(
        tuple(clients),
        column(epsilons),
        column(deltas),
        column(sizes),
        {trait: column(finite) for trait in traits},
    )


def read(folder: Path, text: str | bytes) -> Population:
    path = folder / "population.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return Population.from_csv(path)


def problems_of(folder: Path, text: str | bytes) -> list[str]:
    with pytest.raises(PopulationError) as caught:
        read(folder, text)
    return str(caught.value).splitlines()


# from arrays


def test_of_gives_a_single_number_to_everybody() -> None:
    population = Population.of([1, 2, 3], delta=1e-6, size=10)
    assert population.client == ("c0", "c1", "c2") and len(population) == 3
    np.testing.assert_array_equal(population.epsilon, [1.0, 2.0, 3.0])
    np.testing.assert_array_equal(population.delta, [1e-6] * 3)
    np.testing.assert_array_equal(population.size, [10] * 3)
    assert population.epsilon.dtype == np.float64 and population.size.dtype == np.int64
    assert dict(population.traits) == {}


def test_of_takes_one_number_and_one_for_each_client() -> None:
    assert len(Population.of(2.0)) == 1
    population = Population.of([1, np.inf], [1e-5, 1e-6], [3, 4], {"weight": np.array([0.5, 1.5])})
    np.testing.assert_array_equal(population.delta, [1e-5, 1e-6])
    np.testing.assert_array_equal(population.size, [3, 4])
    np.testing.assert_array_equal(population.traits["weight"], [0.5, 1.5])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"epsilon": np.array([1.0, 0.0])}, "client 'b': epsilon is 0; expected a number above 0"),
        ({"epsilon": np.array([1.0, -0.0])}, "client 'b': epsilon is -0"),
        ({"epsilon": np.array([-1.0, 1.0])}, "client 'a': epsilon is -1"),
        ({"epsilon": np.array([np.nan, 1.0])}, "client 'a': epsilon is nan"),
        ({"epsilon": np.array([-np.inf, 1.0])}, "client 'a': epsilon is -inf"),
        ({"delta": np.array([0.0, 0.1])}, "client 'a': delta is 0; expected a number above 0 and below 1"),
        ({"delta": np.array([0.1, 1.0])}, "client 'b': delta is 1"),
        ({"delta": np.array([0.1, np.nan])}, "client 'b': delta is nan"),
        ({"delta": np.array([0.1, -0.1])}, "client 'b': delta is -0.1"),
        ({"delta": np.array([0.1, np.inf])}, "client 'b': delta is inf"),
        ({"size": np.array([0, 1])}, "client 'a': size is 0; expected a whole number of records"),
        ({"size": np.array([np.nan, 1])}, "client 'a': size is nan"),
        ({"size": np.array([1.5, 1])}, "client 'a': size is 1.5"),
        ({"size": np.array([np.inf, 1])}, "client 'a': size is inf"),
        ({"traits": {"weight": np.array([1.0, np.inf])}}, "trait 'weight' has 1 entries that are not finite"),
        ({"traits": {"weight": np.array([np.nan, np.nan])}}, "trait 'weight' has 2 entries"),
        ({"traits": {"weight": np.array([1.0])}}, "weight has 1 entries for 2 clients"),
        ({"epsilon": np.array([1.0])}, "epsilon has 1 entries for 2 clients"),
        ({"delta": np.array([0.1] * 3)}, "delta has 3 entries for 2 clients"),
        ({"size": np.array([], dtype=int)}, "size has 0 entries for 2 clients"),
        ({"client": ("a", "a")}, "two clients have the same name"),
    ],
)
def test_what_cannot_be_is_refused(change: dict[str, Any], reason: str) -> None:
    good: dict[str, Any] = {
        "client": ("a", "b"),
        "epsilon": np.array([1.0, 2.0]),
        "delta": np.array([0.1, 0.1]),
        "size": np.array([1, 1]),
    }
    Population(**good)
    with pytest.raises(PopulationError) as caught:
        Population(**{**good, **change})
    assert reason in str(caught.value)
    assert "1 problem, nothing loaded" in str(caught.value)


def test_nobody_is_not_a_population() -> None:
    with pytest.raises(PopulationError, match="there are no clients"):
        Population.of([])


def test_every_problem_of_a_client_is_said() -> None:
    with pytest.raises(PopulationError) as caught:
        Population.of([-1.0, 1.0], [2.0, 0.1], [0, 1])
    text = str(caught.value)
    assert "3 problems" in text
    assert text.count("client 'c0'") == 3 and "c1" not in text


@pytest.mark.parametrize("name", [0, 1.5, None, b"a", ""])
def test_a_name_is_a_text_that_is_not_empty(name: object) -> None:
    """The ledger knows clients by the text of their names: what is not text would not be found there."""
    with pytest.raises(PopulationError, match="name"):
        Population((name,), np.array([1.0]), np.array([0.1]), np.array([1]))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [" a", "a\n", "\ta"])
def test_a_name_has_no_space_around_it(name: str) -> None:
    """It would come back from CSV as another name, and so as another client with a whole budget."""
    with pytest.raises(PopulationError, match="name"):
        Population((name,), np.array([1.0]), np.array([0.1]), np.array([1]))


def test_a_trait_may_not_hide_a_column() -> None:
    with pytest.raises(PopulationError, match="epsilon"):
        Population.of([1.0, 2.0], traits={"epsilon": np.array([5.0, 6.0])})


def test_arrays_of_other_shapes_are_refused() -> None:
    with pytest.raises(PopulationError):
        Population.of([[1.0, 2.0]])
    with pytest.raises(PopulationError):
        Population.of([1.0, 2.0, 3.0], delta=[1e-5, 1e-6])


@pytest.mark.parametrize("size", [1.9, np.nan])
def test_of_does_not_round_a_size(size: float) -> None:
    with pytest.raises(PopulationError, match="size is"):
        Population.of([1.0, 2.0], size=size)


def test_nobody_can_change_a_population_later() -> None:
    mine = np.array([1.0, 2.0])
    weights = np.array([1.0, 1.0])
    population = Population.of(mine, traits={"weight": weights})
    digest = population.digest()
    mine[0] = 100.0
    weights[0] = 100.0
    assert population.digest() == digest
    for column in (population.epsilon, population.delta, population.size, population.traits["weight"]):
        with pytest.raises(ValueError, match="read-only"):
            column[0] = 5
    with pytest.raises(dataclasses.FrozenInstanceError):
        population.epsilon = mine  # type: ignore[misc]
    with pytest.raises(TypeError):
        population.traits["weight"] = mine  # type: ignore[index]


# CSV


@settings(max_examples=40, deadline=None)
@given(population=populations())
def test_csv_and_back_is_exact(population: Population, tmp_path_factory: pytest.TempPathFactory) -> None:
    again = read(tmp_path_factory.getbasetemp(), population.to_csv())
    assert again.client == population.client
    assert list(again.traits) == list(population.traits)
    np.testing.assert_array_equal(again.epsilon, population.epsilon)
    np.testing.assert_array_equal(again.delta, population.delta)
    np.testing.assert_array_equal(again.size, population.size)
    for trait, column in population.traits.items():
        np.testing.assert_array_equal(again.traits[trait], column)
    assert again.digest() == population.digest()


@pytest.mark.parametrize("name", ["a\rb", "a\r\nb", "a\nb", "a\0b", 'a"b', "a,b", "Ünal", "1e5"])
def test_odd_names_come_back_from_csv_or_are_refused(tmp_path: Path, name: str) -> None:
    try:
        population = Population((name,), np.array([1.0]), np.array([0.1]), np.array([1]))
    except PopulationError:
        assert not name.isprintable()
        return
    assert read(tmp_path, population.to_csv()).client == (name,)


@settings(max_examples=40, deadline=None)
@given(population=populations(), data=st.data())
def test_digest_changes_with_any_single_fact(population: Population, data: st.DataObject) -> None:
    column = data.draw(st.sampled_from([*COLUMNS, *(["trait"] if population.traits else [])]))
    i = data.draw(st.integers(0, len(population) - 1))

    def nudged(values: np.ndarray, towards: float) -> np.ndarray:
        values = values.copy()
        values[i] = np.nextafter(values[i], towards)
        return values

    if column == "client":
        client = tuple("#" + name if k == i else name for k, name in enumerate(population.client))
        if len(set(client)) != len(client):
            return
        other = dataclasses.replace(population, client=client)
    elif column == "size":
        other = dataclasses.replace(population, size=population.size + (np.arange(len(population)) == i))
    elif column == "trait":
        trait = data.draw(st.sampled_from(sorted(population.traits)))
        other = dataclasses.replace(
            population, traits={**population.traits, trait: nudged(population.traits[trait], 0.5)}
        )
        if (other.traits[trait] == population.traits[trait]).all():
            return
    else:
        values = getattr(population, column)
        towards = 0.7 if values[i] != 0.7 else 0.8
        budget: dict[str, Any] = {column: nudged(values, towards)}
        other = dataclasses.replace(population, **budget)
    assert other.digest() != population.digest()


def test_digest_changes_with_the_order_of_clients() -> None:
    one = Population(("a", "b"), np.array([1.0, 1.0]), np.array([0.1, 0.1]), np.array([1, 1]))
    assert one.digest() != dataclasses.replace(one, client=("b", "a")).digest()


def test_csv_with_further_columns_in_any_order_and_a_byte_order_mark(tmp_path: Path) -> None:
    text = "size, weight ,client,delta,epsilon,age\n10,0.5,anna,1e-5,inf,3\n\n 2 , -1 , ben , .25 , 1E1 , 4\n"
    for encoded in (text.encode(), text.encode("utf-8-sig"), text.replace("\n", "\r\n").encode()):
        population = read(tmp_path, encoded)
        assert population.client == ("anna", "ben")
        np.testing.assert_array_equal(population.epsilon, [np.inf, 10.0])
        np.testing.assert_array_equal(population.delta, [1e-5, 0.25])
        np.testing.assert_array_equal(population.size, [10, 2])
        assert list(population.traits) == ["weight", "age"]
        np.testing.assert_array_equal(population.traits["weight"], [0.5, -1.0])
        np.testing.assert_array_equal(population.traits["age"], [3.0, 4.0])


BAD = """client,epsilon,delta,size,weight
good,1,1e-5,10,1
,1,1e-5,10,1
missing,,1e-5,10,1
negative,-1,1e-5,10,1
nan,nan,1e-5,10,1
good,1,1e-5,10,1
delta,1,1,10,1
size,1,1e-5,0,1
half,1,1e-5,2.5,1
word,1,1e-5,ten,1
many,1,1e-5,10,1,7

few,1
trait,1,1e-5,10,inf
trait2,1,1e-5,10,heavy
both,0,0,inf,1
"""


def test_every_bad_row_is_reported_at_once_with_its_line(tmp_path: Path) -> None:
    first, *rest = problems_of(tmp_path, BAD)
    assert first.endswith("population.csv: 16 problems, nothing loaded")
    assert rest == [
        "  line 3: found client name '', expected text that is not empty",
        "  line 4: epsilon is missing; expected a number",
        "  line 5: epsilon is -1; expected a number above 0 (inf for public data)",
        "  line 6: epsilon is nan; expected a number above 0 (inf for public data)",
        "  line 7: client 'good' is already in line 2; expected each once",
        "  line 8: delta is 1; expected a number above 0 and below 1, such as 1e-5",
        "  line 9: size is 0; expected a whole number of records, at least 1",
        "  line 10: size is 2.5; expected a whole number of records, at least 1",
        "  line 11: size is 'ten'; expected a number",
        "  line 12: 6 cells, expected 5",
        "  line 14: 2 cells, expected 5",
        "  line 15: weight is inf; expected a finite number",
        "  line 16: weight is 'heavy'; expected a number",
        "  line 17: epsilon is 0; expected a number above 0 (inf for public data)",
        "  line 17: delta is 0; expected a number above 0 and below 1, such as 1e-5",
        "  line 17: size is inf; expected a whole number of records, at least 1",
    ]


@pytest.mark.parametrize("row", [row for row in BAD.splitlines()[2:] if row])
def test_each_bad_row_alone_is_refused(tmp_path: Path, row: str) -> None:
    text = "client,epsilon,delta,size,weight\ngood,1,1e-5,10,1\n"
    assert len(read(tmp_path, text)) == 1
    assert "  line 3: " in problems_of(tmp_path, text + row)[1]


def test_of_very_many_problems_the_first_are_shown(tmp_path: Path) -> None:
    lines = problems_of(tmp_path, HEADER + "".join(f"c{i},-1,1e-5,1\n" for i in range(25)))
    assert "25 problems" in lines[0]
    assert len(lines) == 1 + 20 + 1
    assert lines[-1] == "  … and 5 more"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "found nothing, missing client, epsilon, delta, size"),
        ("a,1,1e-5,10\nb,1,1e-5,10\n", "found a, 1, 1e-5, 10, missing client, epsilon, delta, size"),
        ("client,epsilon,delta\na,1,1e-5\n", "missing size"),
        ("client,epsilon,delta,size,size\na,1,1e-5,1,1\n", "column name twice"),
        (HEADER, "there are no clients below the first line"),
        (HEADER + "\n , , , \n", "there are no clients below the first line"),
        ("client;epsilon;size\na;1;10\n", "found client, epsilon, size, missing delta"),
    ],
)
def test_files_without_clients_or_header_are_refused(tmp_path: Path, text: str, reason: str) -> None:
    assert reason in "\n".join(problems_of(tmp_path, text))


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    assert "cannot read the population" in problems_of(tmp_path, "clïent,epsilon".encode("latin-1"))[0]
    assert "not a text in utf-16" in problems_of(tmp_path, HEADER.encode("utf-16")[:-1])[0]
    assert "found a zero byte" in problems_of(tmp_path, HEADER.encode("utf-16-le"))[0]
    with pytest.raises(PopulationError, match="cannot read the population from .*none.csv"):
        Population.from_csv(tmp_path / "none.csv")
    with pytest.raises(InputError, match="cannot read"):
        Population.from_csv(str(tmp_path))


def test_a_quote_that_is_never_closed_swallows_nobody(tmp_path: Path) -> None:
    text = 'epsilon,delta,size,client\n1,1e-5,10,"ben\n0.1,1e-5,10,anna\n'
    with pytest.raises(PopulationError):
        read(tmp_path, text)


def test_a_cell_beyond_all_measure_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PopulationError):
        read(tmp_path, HEADER + "a" * 200_000 + ",1,1e-5,1\n")


@pytest.mark.parametrize("size", ["1e300", "9223372036854775808"])
def test_a_size_that_no_integer_holds_is_refused(tmp_path: Path, size: str) -> None:
    assert "line 2: size is" in problems_of(tmp_path, HEADER + f"a,1,1e-5,{size}\n")[1]


# classes


def test_equal_budgets_are_a_class_strictest_first() -> None:
    names, member = Population.of([3, 0.5, np.inf, 3, 0.5]).classes()
    assert names == ("ε 0.5", "ε 3", "ε inf")
    np.testing.assert_array_equal(member, [1, 0, 2, 1, 0])
    assert member.dtype == np.int64


def test_classes_name_delta_only_where_it_differs() -> None:
    names, member = Population.of([3, 1, 3], [1e-5, 1e-5, 1e-6]).classes()
    assert names == ("ε 1, δ 1e-05", "ε 3, δ 1e-06", "ε 3, δ 1e-05")
    np.testing.assert_array_equal(member, [2, 0, 1])


def test_eight_budgets_are_eight_classes_and_nine_are_cut_into_eight() -> None:
    names, member = Population.of(np.arange(1.0, 9.0)).classes()
    assert names == tuple(f"ε {k}" for k in range(1, 9))
    np.testing.assert_array_equal(member, np.arange(8))
    names, member = Population.of(np.arange(1.0, 10.0)).classes()
    assert len(names) == 8
    assert names[0] == "ε 1 to 2" and names[-1] == "ε 9 to 9"


@given(st.lists(st.floats(0.01, 100), min_size=9, max_size=200, unique=True))
def test_many_budgets_are_cut_into_eight_even_classes_in_order(budgets: list[float]) -> None:
    epsilon = np.array(budgets)
    names, member = Population.of(epsilon).classes()
    counts = np.bincount(member, minlength=8)
    assert len(names) == len(counts) == 8
    assert counts.max() - counts.min() <= 1 and counts.min() >= 1
    for k in range(7):
        assert epsilon[member == k].max() < epsilon[member == k + 1].min()
    for k, name in enumerate(names):
        own = epsilon[member == k]
        assert name == f"ε {own.min():.3g} to {own.max():.3g}"


def test_different_classes_have_different_names() -> None:
    names, _ = Population.of([1.0, 1.0000001, 2.0]).classes()
    assert len(set(names)) == 3


def test_a_name_written_in_two_ways_is_one_client(tmp_path: Path) -> None:
    """An umlaut as one sign or as two: otherwise the same client would have two budgets."""
    text = HEADER + "\u00c4nne,1,1e-5,1\nA\u0308nne,1,1e-5,1\n"
    assert "is already in line 2" in problems_of(tmp_path, text)[1]
    with pytest.raises(PopulationError, match="NFC"):
        Population(("A\u0308nne",), np.array([1.0]), np.array([0.1]), np.array([1]))


@pytest.mark.parametrize("number", ["1_000", "1e400", "-1e400"])
def test_a_number_is_what_a_person_would_read(tmp_path: Path, number: str) -> None:
    """Otherwise a slip of the pen makes a client public, or its budget a thousand."""
    assert (
        f"epsilon is {number!r}; expected a number"
        in problems_of(tmp_path, HEADER + f"a,{number},1e-5,1\n")[1]
    )
    assert read(tmp_path, HEADER + "a,inf,1e-5,1\n").epsilon.tolist() == [np.inf]


# as spreadsheets save them

GERMAN = "client;epsilon;delta;size;speed\nZürich;0,5;0,00001;10;1,234\nBasel;8;1e-5;20;-2\n"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("separator", [";", "\t"])
def test_european_spreadsheets_are_read(encoding: str, separator: str, tmp_path: Path) -> None:
    found = read(tmp_path, GERMAN.replace(";", separator).encode(encoding))
    english = "client,epsilon,delta,size,speed\nZürich,0.5,1e-5,10,1.234\nBasel,8,1e-5,20,-2\n"
    assert found.digest() == read(tmp_path, english).digest()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            ("0,5", "0.5"),
            "found decimal commas and decimal points (line 2, column epsilon: '0.5', line 2, col",
        ),
        (
            ("0,5;0,00001", "1.234;1e-5"),
            "line 2, column epsilon: '1.234' may be a decimal fraction or a thousand",
        ),
        (("0,5", "1.000,5"), "line 2: epsilon is '1.000,5'; expected a number; write thousands without"),
        ((";10;", ";1.000;"), "line 2: size is '1.000'; expected a number; write thousands without"),
    ],
)
def test_no_sign_is_guessed(change: tuple[str, str], reason: str, tmp_path: Path) -> None:
    assert reason in "\n".join(problems_of(tmp_path, GERMAN.replace(*change)))


def test_decimal_commas_between_commas_and_other_encodings_are_named(tmp_path: Path) -> None:
    said = "\n".join(problems_of(tmp_path, HEADER + 'a,"0,5",1e-5,10\n'))
    assert "line 2: epsilon is '0,5'; expected a number; a decimal comma? Then write numbers with a" in said
    said = problems_of(tmp_path, GERMAN.encode("cp1252"))[0]
    assert "line 2: found a byte 0xfc" in said and "the cell would be 'Zürich'" in said


def test_sizes_are_counted_where_none_are_declared(tmp_path: Path) -> None:
    path, counted = tmp_path / "people.csv", {"a": 7, "b": 9}
    path.write_text("client,epsilon,delta\nb,1,1e-5\na,2,1e-5\n")
    assert Population.from_csv(path, counted).size.tolist() == [9, 7]
    with pytest.raises(PopulationError, match="missing size; .discretion population. counts"):
        Population.from_csv(path)
    with pytest.raises(PopulationError, match="(?s)2 problems.*line 2: no size.* client 'b' .*line 3: .*'a'"):
        Population.from_csv(path, {"c": 1})
    path.write_text(HEADER + "a,1,1e-5,3\n")
    assert Population.from_csv(path, counted).size.tolist() == [3]  # whoever divides the data compares
