"""An experiment: every row with every variation and seed, each a process, from where it stopped."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from discretion import engine
from discretion.cli import experiments
from discretion.errors import ConfigError, DataError, DiscretionError
from discretion.experiments.cells import Cell, Result, cells, read_result, result_path
from discretion.experiments.result_files import accuracy
from discretion.experiments.run_cells import Running, run
from discretion.experiments.settings import Experiment, merged, read, shipped, with_data
from discretion.experiments.table_lines import cells_csv, columns, lines
from discretion.experiments.tuning import chosen, trials, tune
from discretion.report import picture
from discretion.tasks import datasets, models

SMALL = """
[experiment]
title = "small"
paper = "Nobody 2025"
seeds = 2
differences = ["It is small."]
[[row]]
method = "fedavg"
[[row]]
method = "gdpfed"
label = "groups"
accounting = ["paper", "tight"]
published = { few = 50.5, "many rounds" = [60.0, 0.5] }
[[variation]]
name = "few"
table = "Table I"
[[variation]]
name = "many rounds"
table = "Table I"
rows = ["gdpfed"]
setting.plan.rounds = 3
[population]
clients = 12
budgets = "groups:4,8"
[data]
name = "digits"
[model]
name = "linear"
[plan]
rounds = 2
rate = 0.5
clip = 0.5
[train]
evaluate_every = 1
"""
TUNING = """
[tuning]
stand_in.data.name = "breast-cancer"
[tuning.grid]
"plan.clip" = [0.1, 0.4]
"train.server_momentum" = [0.5]
[[variation]]
name = "tuned"
rows = ["gdpfed"]
tuned = true
"""


def experiment(folder: Path, text: str = SMALL, **changes: str) -> Experiment:
    for before, after in changes.items():
        assert before in text
        text = text.replace(before, after)
    path = folder / "small.toml"
    path.write_text(text, encoding="utf-8")
    return read(str(path))


def made(folder: Path, text: str = SMALL, seeds: int = 2) -> list[Cell]:
    return cells(experiment(folder, text), {}, seeds)


def test_cells_are_rows_by_mode_variation_and_seed(tmp_path: Path) -> None:
    found = made(tmp_path)
    assert [cell.name for cell in found[:4]] == [
        "fedavg-few-0",
        "gdpfed-paper-few-0",
        "gdpfed-few-0",
        "gdpfed-paper-many-rounds-0",
    ]
    assert len(found) == 10 and {cell.seed for cell in found[5:]} == {1}
    assert {cell.config.plan.rounds for cell in found} == {2, 3}
    assert found[1].config.plan.options == {"accounting": "paper"}
    assert found[0].config.plan.options == {}


def test_rows_share_all_but_their_method(tmp_path: Path) -> None:
    """Equal footing: what a method does is all that two rows of a variation differ in."""
    for name in shipped():
        whole = read(name)
        together: dict[tuple[str, int], set[str]] = {}
        for cell in cells(whole, {}, 2, skip_untuned=True):
            shared = cell.config.model_dump(exclude={"plan": {"method", "options"}})
            together.setdefault((cell.variation.name, cell.seed), set()).add(repr(shared))
        assert together and {len(found) for found in together.values()} == {1}


def test_what_a_plan_draws_changes_with_the_seed(tmp_path: Path) -> None:
    text = SMALL.replace('method = "fedavg"', 'method = "unbiased"\noptions = { steps = 2 }')
    first, second = (cell for cell in made(tmp_path, text) if cell.row.name == "unbiased")
    assert first.config.plan.options == {"steps": 2, "accounting": "tight", "seed": 0}
    assert second.config.plan.options["seed"] == 1


def test_it_runs_everything_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    few = experiment(tmp_path).only([], ["few"])
    todo, out = cells(few, {}, 1), tmp_path / "out"
    seen: list[list[Running]] = []
    outcome = run(todo, out, 2, False, lambda now: seen.append(list(now)))
    assert set(outcome.results) == {cell.name for cell in todo} and not outcome.failures
    assert [cell.ended for cell in seen[-1]] == [True] * 3 and {cell.total for cell in seen[-1]} == {2}
    assert sorted(path.name for path in out.iterdir()) == ["cells"]  # runs are not kept
    assert sorted(path.suffix for path in (out / "cells").iterdir()) == [".json"] * 3
    plain, paper, tight = (outcome.results[cell.name] for cell in todo)
    assert math.isinf(plain.share) and plain.clients_over == 12
    assert paper.share > 1 and paper.spent == pytest.approx(paper.share * paper.budget)
    assert 0.99 < tight.share <= 1 and tight.clients_over == 0
    assert tight.rounds == [1, 2] and tight.accuracies[-1] == tight.accuracy

    # what is finished is not done again; what is defined otherwise is
    before = {cell.name: result_path(out, cell).stat().st_mtime_ns for cell in todo}
    result_path(out, todo[0]).unlink()
    changed = cells(experiment(tmp_path, SMALL.replace("rate = 0.5", "rate = 0.25")), {}, 1)[2]
    assert changed.name == todo[2].name and read_result(out, changed) is None
    again = run([todo[0], todo[1], changed], out, 1, False, lambda _: None)
    after = {cell.name: result_path(out, cell).stat().st_mtime_ns for cell in todo}
    assert [before[cell.name] == after[cell.name] for cell in todo] == [False, True, False]
    assert again.results[todo[0].name].accuracy == plain.accuracy
    assert read_result(out, todo[2]) is None and read_result(out, changed) is not None


def test_a_new_version_of_an_experiment_is_done_anew(tmp_path: Path) -> None:
    first = made(tmp_path)[0]
    second = made(tmp_path, SMALL.replace("seeds = 2", "seeds = 2\nversion = 2"))[0]
    assert first.config == second.config and first.digest != second.digest


def test_what_is_by_default_or_only_about_speed_undoes_no_result(tmp_path: Path) -> None:
    cell = made(tmp_path)[0]
    train = cell.config.train.model_copy(update={"threads": 7, "order": cell.config.train.order})
    same = replace(cell, config=cell.config.model_copy(update={"train": train}))
    other = replace(cell, config=cell.config.model_copy(update={"seed": 99}))
    assert same.config != cell.config and same.digest == cell.digest != other.digest


def test_a_cell_that_fails_is_named_and_others_go_on(tmp_path: Path) -> None:
    text = SMALL.replace('method = "fedavg"', 'method = "adaptive_clipping"\noptions = { quantile = 7.0 }')
    todo, out = cells(experiment(tmp_path, text).only([], ["few"]), {}, 1)[:2], tmp_path / "out"
    outcome = run(todo, out, 1, False, lambda _: None)
    assert set(outcome.results) == {todo[1].name}
    assert "quantile is 7.0" in outcome.failures[todo[0].name]
    assert (out / "cells" / f"{todo[0].name}.log").exists()


def test_an_interrupt_leaves_no_process_and_no_half_result(tmp_path: Path) -> None:
    todo, out = made(tmp_path)[:2], tmp_path / "out"

    def interrupt(now: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(todo, out, 2, False, interrupt)
    assert not any(result_path(out, cell).exists() for cell in todo)
    assert set(run(todo, out, 2, False, lambda _: None).results) == {cell.name for cell in todo}


def test_runs_that_are_kept_are_never_thrown_away(tmp_path: Path) -> None:
    out = tmp_path / "out"
    todo = made(tmp_path)[:1]
    run(todo, out, 1, True, lambda _: None)
    assert (out / todo[0].name / "model.safetensors").exists()
    other = made(tmp_path, SMALL.replace("rate = 0.5", "rate = 0.25"))[:1]
    with pytest.raises(ConfigError, match="made with other settings"):
        run(other, out, 1, True, lambda _: None)


def result(cell: Cell, accuracy: float, share: float) -> Result:
    return Result(
        digest=cell.digest,
        row=cell.row.name,
        accounting=cell.accounting,
        variation=cell.variation.name,
        seed=cell.seed,
        method=cell.row.method,
        accuracy=accuracy,
        loss=1.0,
        share=share,
        spent=8.0 * share,
        budget=8.0,
        clients_over=0,
        accountant="PLD",
        rounds=[1, 2],
        accuracies=[0.1, accuracy],
        seconds=2.0 + cell.seed,
        made="today",
        discretion="0",
    )


def test_the_table_is_mean_spread_and_largest_cost(tmp_path: Path) -> None:
    found = made(tmp_path)
    shares = {"fedavg": math.inf, "gdpfed": 0.9}
    results = {
        cell.name: result(cell, 0.5 + 0.1 * cell.seed, 2.5 if "paper" in cell.name else shares[cell.row.name])
        for cell in found
        if not (cell.seed == 1 and cell.variation.name == "many rounds")
    }
    plain, groups, many = lines(found, results)
    assert columns(plain) == ("", "55.00 ± 7.07", "∞", "55.00 ± 7.07", "∞", "2")
    assert columns(groups)[:3] == ("50.50", "55.00 ± 7.07", "2.500 (20 of 8)")
    assert groups.tight and groups.tight.std == pytest.approx(10 / math.sqrt(2)) and groups.tight.share == 0.9
    assert groups.seconds == 2.5
    assert columns(many)[0] == "60.00 ± 0.50" and columns(many)[3] == "50.00"  # one seed: no spread
    assert many.tight and many.tight.seeds == 1
    assert len(cells_csv(found, results).splitlines()) == 1 + len(results)


def test_a_cost_above_the_budget_is_never_rounded_to_it(tmp_path: Path) -> None:
    cell = made(tmp_path)[2]
    (line,) = lines([cell], {cell.name: result(cell, 0.5, 1.00001)})
    assert columns(line)[4] == "1.001 (8.01 of 8)"


def test_tuning_tries_the_same_grid_for_every_row_on_the_stand_in(tmp_path: Path) -> None:
    whole = experiment(tmp_path, SMALL.replace("[population]", TUNING + "[population]", 1))
    assert whole.tuning
    todo = trials(whole, whole.tuning)
    assert len(todo) == 2 * 2 and {cell.config.data.name for cell, _ in todo} == {"breast-cancer"}
    assert len({cell.name for cell, _ in todo}) == len(todo)
    with pytest.raises(ConfigError, match="--tune"):
        cells(whole, {}, 1)
    assert len(cells(whole, {}, 1, skip_untuned=True)) == 5
    one = whole.only(["gdpfed"], [])
    best = tune(one, tmp_path / "out", 2, "the command", lambda _: None)
    assert set(best) == {"gdpfed-paper", "gdpfed"} and set(best["gdpfed"]) == set(whole.tuning.grid)
    record = json.loads((tmp_path / "out" / "tuned.json").read_text())
    for name, tried in record["scores"].items():
        assert len(tried) == 2 and [max(tried, key=lambda pair: pair[0])[1]] == [record["chosen"][name]]
    tuned = [c for c in cells(one, chosen(one, tmp_path / "out"), 1) if c.variation.tuned]
    assert [cell.config.plan.clip for cell in tuned] == [
        best[name]["plan.clip"] for name in ("gdpfed-paper", "gdpfed")
    ]
    assert {cell.config.data.name for cell in tuned} == {"digits"}


def test_methods_that_take_no_clip_are_not_tried_with_several(tmp_path: Path) -> None:
    text = SMALL.replace("[population]", TUNING + "[population]", 1).replace(
        'rows = ["gdpfed"]\ntuned', 'rows = ["fedavg"]\ntuned'
    )
    whole = experiment(tmp_path, text)
    assert whole.tuning and [point for _, point in trials(whole, whole.tuning)] == [
        {"train.server_momentum": 0.5}
    ]


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('title = "small"', 'titel = "small"', "experiment.titel: unknown setting"),
        ('method = "fedavg"', 'method = "fedavgg"', "Did you mean 'fedavg'"),
        ('method = "fedavg"', 'methd = "fedavg"', "row.0.method: field required"),
        ('method = "fedavg"', 'method = "gdpfed"', "row 'gdpfed' comes twice"),
        ('method = "fedavg"', 'method = "fedavg"\naccounting = ["paper"]', "has no paper mode"),
        ('rows = ["gdpfed"]', 'rows = ["gdpfedd"]', "Did you mean 'gdpfed'"),
        ('rows = ["gdpfed"]', "tuned = true", r"there is no \[tuning\]"),
        ("few = 50.5", "fewer = 50.5", "variation 'fewer' is not there"),
        ('accounting = ["paper", "tight"]', 'accounting = ["loose"]', "accounting.0"),
        ("rounds = 2", 'rounds = 2\nmethod = "fedavg"', r"has a \[\[row\]\] for each method"),
        ("seeds = 2", "seeds = 0", "greater than or equal to 1"),
        ("[plan]", "[plan", "not valid TOML"),
        ('name = "many rounds"', 'name = "few"', "'few' comes twice"),
    ],
)
def test_what_is_wrong_in_a_file_is_said(tmp_path: Path, before: str, after: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        experiment(tmp_path, **{before: after})


def test_settings_that_no_run_takes_are_said_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cell fedavg-few-0.*\n.*plan\.roundss"):
        made(tmp_path, SMALL.replace("rounds = 2", "roundss = 2"))
    text = SMALL.replace("many rounds", "few!").replace('rows = ["gdpfed"]', "")
    with pytest.raises(ConfigError, match=r"both called 'fedavg-few-0'"):
        made(tmp_path, text)


def test_names_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Did you mean 'demo'"):
        read("dem")
    with pytest.raises(ConfigError, match="cannot read"):
        read(str(tmp_path / "nothing.toml"))
    with pytest.raises(ConfigError, match="row 'x' is not there"):
        experiment(tmp_path).only(["x"], [])


@pytest.mark.parametrize("override", ["seed=3", "plan.method=fedavg"])
def test_an_experiment_has_rows_and_seeds_of_its_own(override: str) -> None:
    with pytest.raises(ConfigError, match="of its own"):
        read("demo", [override])


def test_without_the_data_the_fallback_is_used_and_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    load = datasets.load

    def no_network(name: str, **options: object) -> datasets.Dataset:
        if name == "fashion-mnist":
            raise DataError("fashion-mnist: tried the official source: no answer")
        return load(name)

    monkeypatch.setattr(datasets, "load", no_network)
    said: list[str] = []
    found = with_data(read("demo"), said.append)
    assert {cell.config.data.name for cell in cells(found, {}, 1)} == {"digits"}
    assert "Digits" in found.about.title
    assert "tried the official source" in said[0] and "scikit-learn" in said[0]
    with pytest.raises(DataError):
        with_data(experiment(tmp_path, SMALL.replace("digits", "fashion-mnist")), said.append)


def test_the_shipped_experiments_are_valid() -> None:
    for name in shipped():
        for quick in (False, True):
            found = read(name, quick=quick)
            assert cells(found, {}, 1, skip_untuned=True)
            for variation in found.variations:
                assert found.rows_of(variation)


def test_a_setting_is_merged_section_by_section() -> None:
    first: dict[str, Any] = {"plan": {"clip": 1, "options": {"a": 1}}, "data": {"name": "x"}}
    second = {"plan": {"options": {"b": 2}, "clip": 3}}
    assert merged(first, second) == {"plan": {"clip": 3, "options": {"a": 1, "b": 2}}, "data": {"name": "x"}}
    assert first["plan"]["clip"] == 1


def test_the_command_writes_what_it_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    experiment(tmp_path)
    path, out = str(tmp_path / "small.toml"), tmp_path / "out"
    experiments.experiment(path, only=["gdpfed"], variation=["few"], seeds=1, jobs=2, out=out, json_=True)
    record = json.loads(capsys.readouterr().out)
    assert [line["row"] for line in record["lines"]] == ["gdpfed"] and not record["failures"]
    table = json.loads((out / "table.json").read_text())
    assert table["differences"] == ["It is small."] and table["cells"] == 10 and table["finished"] == 2
    assert table["command"].startswith("discretion") and table["made"]
    text = (out / "table.md").read_text()
    assert "| few | groups | 50.50 |" in text and "- It is small." in text and "Table I" in text
    assert "<svg" in (out / "accuracy-few.svg").read_text()
    # a later part adds to the same table
    experiments.experiment(path, only=["fedavg"], seeds=1, jobs=1, out=out)
    assert "published" in capsys.readouterr().out
    assert json.loads((out / "table.json").read_text())["finished"] == 3


def test_failures_end_with_an_error_after_everything_is_written(tmp_path: Path) -> None:
    text = SMALL.replace('method = "fedavg"', 'method = "adaptive_clipping"\noptions = { quantile = 7.0 }')
    experiment(tmp_path, text)
    with pytest.raises(DiscretionError, match=r"1 of 1 runs failed\n  adaptive_clipping-few-0: .*quantile"):
        experiments.experiment(
            str(tmp_path / "small.toml"),
            only=["adaptive_clipping"],
            seeds=1,
            out=tmp_path / "out",
            json_=True,
        )
    assert "quantile" in (tmp_path / "out" / "table.md").read_text()


def test_the_model_of_selection_has_the_layers_that_are_printed() -> None:
    images = np.zeros((4, 1, 28, 28), dtype=np.uint8)
    split = datasets.Split(images, np.zeros(4, dtype=np.int64))
    blank = datasets.Dataset("blank", split, split, 10, "image", "made", mean=0.3, std=0.3)
    model = models.build("discretion.experiments.paper_models:selection_cnn", blank, 0)
    shapes = [tuple(weight.shape[:2]) for weight in model.parameters() if weight.ndim > 1]
    assert shapes == [(16, 1), (32, 16), (512, 1568), (32, 512), (10, 32)]


def test_the_model_of_shakespeare_is_trained_by_compiled_code() -> None:
    text = datasets.Split(np.zeros((4, 12), dtype=np.uint8), np.zeros(4, dtype=np.int64))
    blank = datasets.Dataset("blank", text, text, 80, "text", "made")
    model = models.build("discretion.experiments.paper_models:lstm_small", blank, 0)
    assert sum(p.numel() for p in model.parameters()) == 24_784
    assert engine.sequence_of(model, 12) is not None


def test_a_figure_has_a_line_for_each_row_named_where_it_ends(tmp_path: Path) -> None:
    first, other = made(tmp_path)[:2]
    together = {
        "one <&>": [result(first, 0.5, 1.0), result(first, 0.7, 1.0)],
        "two": [result(other, 0.3, 1.0)],
    }
    chart = accuracy(together)
    assert chart.series[0].y == pytest.approx([0.1, 0.6]) and chart.series[0].spread[-1] == pytest.approx(
        0.1 * math.sqrt(2)
    )
    drawn = ElementTree.fromstring(picture.draw("few & many", {"": chart}))
    words = ["".join(found.itertext()) for found in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert {"few & many", "one <&> 60.0 %", "two 30.0 %", "Round"} <= set(words)
    kinds = [found.get("class") for found in drawn.iter("{http://www.w3.org/2000/svg}path")]
    assert kinds.count("line") == 2 and kinds.count("band") == 1
    used = set(re.findall(r"var\((--[a-z0-9-]+)\)", picture.draw("", {"": chart})))
    assert used <= set(picture.COLOURS)
