"""What records mean, compared: labels in order, features with their scaling, or the same data set."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from discretion.errors import DataError
from discretion.tasks import datasets
from discretion.tasks.datasets import Dataset, OwnTables
from discretion.tasks.schema import Schema, differences, schema_of

DIGITS = datasets.load("digits")


def schema(labels: str = "ill well", **features: float) -> Schema:
    return Schema(data="csv", digest="0" * 64, labels=labels.split(), features=features or {"age": 1.0})


def loaded(path: Path | None, **more: Any) -> Dataset:
    return datasets.load("csv", own=OwnTables(path, **more))


def said(asked: Schema, mine: Schema) -> dict[str, str]:
    return {found.what: found.said for found in differences(asked, mine)}


def test_the_same_labels_in_another_order_differ() -> None:
    assert said(schema(), schema()) == {}
    found = said(schema("ill well"), schema("well ill"))
    assert list(found) == ["labels"]
    assert "found labels well, ill, the server expects ill, well" in found["labels"]
    many = said(schema(" ".join(map(str, range(30)))), schema())["labels"]
    assert "9 and 20 more" in many and "10," not in many


def test_features_that_the_server_does_not_name_are_counted_and_not_told() -> None:
    found = said(schema(age=1.0, weight=1.0), schema(age=1.0, hiv=1.0))
    assert found == {"features": "the client's table lacks weight, and has 1 that the server does not name"}
    assert said(schema(age=1.0), schema(age=1.0, hiv=1.0)) == {
        "features": "the client's table lacks none of the server's, and has 1 that the server does not name"
    }
    turned = said(schema(age=1.0, weight=1.0), schema(weight=1.0, age=1.0))
    assert list(turned) == ["features"] and "in another order" in turned["features"]


def test_another_scaling_differs() -> None:
    found = said(schema(age=100.0), schema(age=1.0))
    assert list(found) == ["scaling"] and "divides age by 100, not 1" in found["scaling"]


def test_a_data_set_of_the_catalogue_is_compared_by_name_and_entry() -> None:
    mine = schema_of(DIGITS)
    assert said(schema_of(DIGITS), mine) == {}
    assert "the server has csv, this guard has digits" in said(schema(), mine)["data set"]
    assert "other shapes, classes" in said(schema_of(replace(DIGITS, mean=0.5)), mine)["data set"]


def test_declared_labels_and_scales_of_a_table_hold(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("label,age,bp\n" + "well,50,1\nill,20,2\n" * 10)
    sorted_, declared = (loaded(path, labels=labels) for labels in ((), ("well", "ill")))
    assert sorted_.label_names == ("ill", "well") and declared.label_names == ("well", "ill")
    np.testing.assert_array_equal(declared.train.labels, 1 - sorted_.train.labels)
    scaled = loaded(path, scales={"age": 100})
    assert schema_of(scaled).features == {"age": 100.0, "bp": 1.0}
    np.testing.assert_allclose(scaled.train.inputs, sorted_.train.inputs / [100, 1], rtol=1e-6)
    assert loaded(path, labels=("well", "ill", "dead")).classes == 3


def test_test_records_of_their_own_have_the_declared_labels_and_scales(tmp_path: Path) -> None:
    path, test = tmp_path / "table.csv", tmp_path / "test.csv"
    path.write_text("label,age,bp\n" + "well,50,1\nill,20,2\n" * 10)
    test.write_text("bp,age,label\n7,30,dead\n8,40,well\n")
    declared = ("well", "ill", "dead")
    for train in (path, None):
        data = loaded(train, test=test, labels=declared, scales={"age": 10})
        order = [1, 0] if train is None else [0, 1]  # a server without training records has its own order
        np.testing.assert_allclose(data.test.inputs, np.array([[3, 7], [4, 8]])[:, order], rtol=1e-6)
        assert data.test.labels.tolist() == [2, 0] and data.classes == 3
    with pytest.raises(DataError, match=r"test\.csv: found labels that data\.labels does not list: dead"):
        loaded(path, test=test, labels=("well", "ill"))


def test_labels_and_scales_that_cannot_be_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("label,age\n" + "well,50\nill,20\n" * 10)
    with pytest.raises(DataError, match="does not list: ill"):
        loaded(path, labels=("well", "dead"))
    with pytest.raises(DataError, match="lists ill twice"):
        loaded(path, labels=("well", "ill", "ill"))
    for scales in ({"weight": 2.0}, {"age": 0.0}, {"age": float("inf")}):
        with pytest.raises(DataError, match=r"data\.scales has (weight|age)"):
            loaded(path, scales=scales)
    with pytest.raises(DataError, match="found numbers above 1,000,000 in age, too large"):
        loaded(path, scales={"age": 1e-38})
    with pytest.raises(DataError, match="digits: takes no path, test records, labels or scales"):
        datasets.load("digits", own=OwnTables(None, labels=("0", "1")))
