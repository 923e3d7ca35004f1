"""Charts: axes with readable ticks, drawings that hold the numbers, tables and files that hold them whole."""

import csv
import io
import json
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from discretion.report import svg
from discretion.report.chart import Chart, Series, Style, categories, linear, logarithmic, rounds
from discretion.report.charts import stretches
from discretion.report.page import macro

LOOK = Style("--method-1", "circle", "solid")
LINE = Series("one", [0.0, 5.0, 10.0], [0.0, 0.5, 1.0], LOOK)
CHART = Chart((LINE,), rounds(10, 5), linear("Share", 0.0, 1.0, 5, percent=True), 200)


@given(st.floats(-1e3, 1e3), st.floats(1e-3, 1e4), st.integers(3, 12))
def test_ticks_are_few_even_and_inside(low: float, wide: float, count: int) -> None:
    axis = linear("", low, low + wide, count)
    places = [at for at, _ in axis.ticks]
    assert 1 <= len(places) <= count + 1
    assert all(low - 1e-6 * wide <= at <= low + wide * (1 + 1e-6) for at in places)
    assert np.allclose(np.diff(places), np.diff(places)[:1] if len(places) > 1 else 0)
    assert len({words for _, words in axis.ticks}) == len(places)  # enough digits to tell them apart


@given(st.integers(1, 10_000), st.integers(3, 10))
def test_rounds_have_whole_ticks(last: int, count: int) -> None:
    places = [at for at, _ in rounds(last, count).ticks]
    assert places[0] == 0 and all(at == int(at) for at in places) and len(places) <= count + 1


def test_axes_say_where_values_stand() -> None:
    assert linear("", 0.0, 4.0, 4).place(1.0) == 0.25
    axis = logarithmic("", 1.0, 100.0)
    assert axis.place(10.0) == pytest.approx(0.5)
    assert [words for _, words in axis.ticks] == ["1", "2", "5", "10", "20", "50", "100"]
    assert categories("", ["a", "b"]).place(0.0) == 0.25
    assert linear("", 2.0, 2.0, 3).high > 2.0  # nothing to divide by


def paths(chart: Chart, kind: str) -> list[str]:
    return re.findall(rf'<path class="{kind}"[^>]* d="([^"]*)"', macro("drawing", "x", chart, "y"))


def test_a_line_goes_through_its_values() -> None:
    assert paths(CHART, "line") == ["M0.0 1000.0L500.0 500.0L1000.0 0.0"]
    stairs = replace(CHART, series=(replace(LINE, shape="stairs"),))
    assert paths(stairs, "line") == ["M0.0 1000.0V500.0H500.0V0.0H1000.0"]
    band = replace(CHART, series=(replace(LINE, spread=[0.0, 0.1, 0.0]),))
    assert paths(band, "band") == ["M0.0 1000.0L500.0 400.0L1000.0 0.0L1000.0 0.0L500.0 600.0L0.0 1000.0Z"]
    beyond = replace(CHART, series=(replace(LINE, y=[0.0, 0.5, 99.0]),))
    assert paths(beyond, "line")[0].endswith("L1000.0 -500.0")  # cut off just above


def test_bars_stand_side_by_side() -> None:
    bars = (
        replace(LINE, x=[0.0, 1.0], y=[0.5, 1.0], shape="bars"),
        replace(LINE, x=[0.0], y=[0.2], shape="bars"),
    )
    chart = Chart(bars, categories("Class", ["a", "b"]), CHART.y, 200)
    found = re.findall(
        r'<rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)"',
        macro("drawing", "x", chart, "y"),
    )
    first, second, other = (tuple(map(float, each)) for each in found)
    assert (first[1], first[3]) == (500, 500) and second[3] == 1000 and other[3] == 200
    assert first[0] + first[2] <= other[0] and second[0] > 500


def test_many_points_are_one_path_for_each_colour() -> None:
    x = np.linspace(0, 10, 500)
    cloud = Series(
        "c", x.tolist(), (x / 10).tolist(), LOOK, "points", colours=["--order-1", "--order-2"] * 250
    )
    assert len(paths(replace(CHART, series=(cloud,)), "mark")) == 2
    assert svg.rows(replace(CHART, series=(cloud,))) is None  # no table of a cloud; the file has it


def test_tables_and_files_hold_the_same_numbers() -> None:
    other = Series("=two", [5.0], [0.25], LOOK, shown=["a quarter"], spread=[0.125])
    chart = replace(CHART, series=(LINE, other))
    assert svg.rows(chart) == (
        ["Round", "one", "=two"],
        [["0", "0", "–"], ["5", "0.5", "a quarter"], ["10", "1", "–"]],
    )
    rows = list(csv.DictReader(io.StringIO(svg.table(chart))))
    assert rows[-1] == {"series": "'=two", "round": "5.0", "share": "0.25", "std": "0.125"}  # no formula
    named = Chart(
        (replace(LINE, x=[0.0], y=[0.5], shape="bars"),), categories("Class", ["ε 1"]), CHART.y, 200
    )
    assert svg.rows(named) == (["Class", "one"], [["ε 1", "0.5"]])
    assert svg.table(named).splitlines()[1] == "one,ε 1,0.5"
    assert svg.download(named).startswith("data:text/csv;charset=utf-8,series%2Cclass%2Cshare%0A")


def test_names_cannot_break_out() -> None:
    odd = '</script><script>alert(1)</script>"'
    drawn = macro("drawing", "x", replace(CHART, series=(replace(LINE, name=odd),)), "y")
    assert drawn.count("<script") == 1 and drawn.count("</script>") == 1
    record = json.loads(re.findall(r"<script[^>]*>(.*?)</script>", drawn)[0])
    assert record["series"][0]["name"] == odd


def test_stretches_of_rounds_are_level() -> None:
    found = stretches(np.array([1, 4, 6]), 9, np.array([2.0, np.nan, 3.0]))
    assert found == ([1.0, 3.0, 6.0, 9.0], [2.0, 2.0, 3.0, 3.0])
