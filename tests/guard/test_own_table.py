"""A guard reads its client's table with the features and labels that its policy declares."""

from pathlib import Path

import pytest

from discretion.errors import DataError
from discretion.guard.data import own_records
from discretion.guard.policy import Data
from discretion.tasks.schema import schema_of


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "records.csv"
    path.write_bytes("x;y;label\r\n1,5;2;krank\r\n3;4;gesünder\r\n".encode("cp1252"))
    return path


def test_features_are_in_the_order_agreed_on(table: Path) -> None:
    said = Data(path=str(table), labels=("krank", "gesünder"), features=("y", "x"), encoding="cp1252")
    data = own_records(said)
    assert data.train.inputs.tolist() == [[2, 1.5], [4, 3]] and data.train.labels.tolist() == [0, 1]
    assert data.label_names == ("krank", "gesünder") and data.feature_names == ("y", "x")
    as_written = own_records(said.model_copy(update={"features": (), "decimal": ","}))
    assert as_written.train.inputs.tolist() == [[1.5, 2], [3, 4]] and as_written.feature_names == ("x", "y")


def test_scales_go_with_their_columns(table: Path) -> None:
    said = Data(path=str(table), labels=("krank", "gesünder"), features=("y", "x"), encoding="cp1252")
    data = own_records(said.model_copy(update={"scales": {"y": 2.0}}))
    assert data.train.inputs.tolist() == [[1, 1.5], [2, 3]]
    assert schema_of(data).features == {"y": 2.0, "x": 1.0} and list(schema_of(data).features) == ["y", "x"]


@pytest.mark.parametrize(
    ("features", "message"),
    [(("x", "z"), "they differ in y, z"), (("x", "y", "y"), "one that is listed twice")],
)
def test_other_features_are_refused(table: Path, features: tuple[str, ...], message: str) -> None:
    said = Data(path=str(table), labels=("krank", "gesünder"), features=features, encoding="cp1252")
    with pytest.raises(DataError, match=message):
        own_records(said)
