"""The report says what is in the run folders: nothing more, nothing nicer, and nothing that can run."""

import csv
import hashlib
import io
import json
import math
import re
import sqlite3
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from discretion.accounting import Pld, Renyi, certify
from discretion.errors import InputError
from discretion.jsonfile import dump
from discretion.ledger.ledger import Ledger
from discretion.methods import METHODS
from discretion.plan.population import Population
from discretion.report import numbers, summarise, write
from discretion.report.operator import exhaustion
from discretion.report.run_group import group
from discretion.runs.folder import RunFolder
from discretion.runs.read import read_run, read_runs
from support.run_folders import (
    BARE,
    OWN,
    ROUNDS,
    STRICT,
    keep_secret,
    make_run,
    people,
    planned,
    run_of,
    seal,
)


def page_of(folders: Sequence[Path], tmp_path: Path, title: str | None = None) -> str:
    out = tmp_path / "report.html"
    write(folders, out, title)
    return out.read_text(encoding="utf-8")


class Reader(HTMLParser):
    """Every tag with its attributes, and the text outside scripts and style sheets."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self.open):
            self.text += data + " "


def text_of(page: str) -> str:
    return re.sub(r"\s+", " ", Reader(page).text.replace(numbers.SPACE, " "))


def figures_of(page: str) -> dict[str, dict[str, Any]]:
    found = re.findall(r'<script type="application/json" data-figure="([^"]+)">(.*?)</script>', page)
    return {name: json.loads(record) for name, record in found}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three methods with two seeds each."""
    path = tmp_path_factory.mktemp("study")
    curves = {BARE: (0.5, 0.7, 0.9), OWN: (0.4, 0.6, 0.8), STRICT: (0.3, 0.5, 0.6)}
    for method, curve in curves.items():
        for seed in (0, 1):
            make_run(path / f"{method}-{seed}", method, seed, [accuracy + 0.02 * seed for accuracy in curve])
    return path


@pytest.fixture(scope="module")
def three(study: Path) -> list[Path]:
    return sorted(about.parent for about in study.glob("*/run.json"))


@pytest.fixture(scope="module")
def page(study: Path, three: list[Path]) -> str:
    return page_of(three, study)


def test_the_page_loads_nothing(page: str) -> None:
    tags = Reader(page).tags
    for tag, attributes in tags:
        for name in ("src", "href", "srcset", "action", "data", "poster"):
            target = attributes.get(name) or "#"
            assert target.startswith(("#", "data:text/csv")), f"<{tag} {name}={target[:60]}>"
    policy = next(a["content"] for t, a in tags if t == "meta" and "http-equiv" in a)
    assert policy is not None and "default-src 'none'" in policy
    css = page[page.index("<style>") : page.index("</style>")]
    assert "url(" not in css and "@import" not in css


def test_only_the_pages_own_scripts_may_run(page: str) -> None:
    tags = Reader(page).tags
    policy = next(str(a["content"]) for t, a in tags if t == "meta" and "http-equiv" in a)
    running = [a for t, a in tags if t == "script" and a.get("type") != "application/json"]
    assert len(running) == len(re.findall(r"'sha256-[^']+'", policy)) == 1
    assert "script-src" in policy and "'unsafe-inline'" not in policy.split("style-src")[0]
    assert not [a for _, a in tags if any(name.startswith("on") for name in a)]


def test_numbers_are_those_of_the_files(study: Path, page: str) -> None:
    text = text_of(page)
    for method in (BARE, STRICT, OWN):
        assert METHODS[method].title in text
    assert "81.00 ± 1.41 %" in text  # 80 and 82
    assert "1.500 ± 0.000" in text
    certificate = read_run(study / f"{OWN}-0").certificate
    for budget in (1.0, 2.0, 4.0):
        worst = float(certificate.spent[certificate.budget == budget].max())
        assert f"{numbers.spent(worst)} of {budget:g}" in text
    assert "6 clients expected in each" in text
    assert "clouds" in text and "from the sky" in text and "1 March 2026" in text


def test_seeds_are_averaged_and_others_kept_apart(three: list[Path]) -> None:
    rows = summarise(three)
    assert [row.method for row in rows] == [BARE, OWN, STRICT]  # by accuracy
    own = rows[1]
    assert (own.runs, own.averaged, own.rounds, own.planned) == (2, 2, ROUNDS, ROUNDS)
    assert own.accuracy == pytest.approx(0.81)
    assert own.accuracy_std == pytest.approx(0.02 / math.sqrt(2))
    assert [row.verdict for row in rows] == ["none", "within", "within"]
    printed = json.loads(dump({"methods": [vars(row) for row in rows]}))  # as the command line does
    assert printed["methods"][0]["spent"] == dict.fromkeys(("ε 1", "ε 2", "ε 4"), "inf")


def test_figures_hold_the_same_numbers(page: str) -> None:
    figures = figures_of(page)
    assert {"figure-accuracy", "figure-participation"} | {f"figure-spending-{k}" for k in range(3)} <= set(
        figures
    )
    lines = {line["name"]: line for line in figures["figure-accuracy"]["series"]}
    assert lines[METHODS[OWN].title]["x"] == [2, 4, 6]
    assert lines[METHODS[OWN].title]["y"] == pytest.approx([0.41, 0.61, 0.81])
    assert lines[METHODS[OWN].title]["text"][-1] == "81.00 ± 1.41 %"
    for k, budget in enumerate((1.0, 2.0, 4.0)):
        curves = figures[f"figure-spending-{k}"]["series"]
        assert {curve["name"] for curve in curves} == {METHODS[OWN].title, METHODS[STRICT].title}
        assert all(text.endswith(f" of {budget:g}") for curve in curves for text in curve["text"])
    shares = {bars["name"]: bars["y"] for bars in figures["figure-participation"]["series"]}
    assert shares["all clients"] == shares[METHODS[OWN].title] == pytest.approx([1 / 3] * 3)
    charts = [a for t, a in Reader(page).tags if a.get("class") == "chart"]
    assert len(charts) == len(figures)
    assert all(a["role"] == "img" and a["aria-label"] and a["tabindex"] == "0" for a in charts)


def test_colours_are_defined_and_one_for_each_method(page: str) -> None:
    css = page[page.index("<style>") : page.index("</style>")]
    figures = figures_of(page)
    for name in re.findall(r"var\\((--[a-z0-9-]+)\\)", page):
        assert f"{name}:" in page, name
    lines = [
        line for figure in figures.values() for line in figure["series"] if line["name"] != "all clients"
    ]
    assert all(f"{line['colour']}:" in css for line in lines)
    colours = {(line["name"], line["colour"]) for line in lines}
    assert len(colours) == len({name for name, _ in colours}) == len({c for _, c in colours}) == 3


def test_no_privacy_is_said(page: str) -> None:
    text = text_of(page)
    assert f"{METHODS[BARE].title} reached 91.0 % without any privacy" in text
    assert "protects nobody" in text and "no privacy" in text
    assert f"{METHODS[OWN].title} reached 81.0 % with every client within its own budget" in text


def test_nobody_is_protected_from_a_server_that_adds_the_noise(tmp_path: Path) -> None:
    page = page_of([make_run(tmp_path / "a")], tmp_path)
    cells = re.findall(r'<td data-label="The server">(.*?)</td>', page)
    assert len(cells) == 1 and "nothing" in cells[0]
    others = re.findall(r'<td data-label="Other clients">(.*?)</td>', page)
    assert "nothing" not in others[0]


def test_an_unfinished_run_is_said_and_not_averaged(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / "done", seed=0, accuracy=(0.2, 0.4, 0.6))]
    runs.append(make_run(tmp_path / "half", seed=1, accuracy=(0.1,), finished=False))
    row = summarise(runs)[0]
    assert row.accuracy == pytest.approx(0.6) and row.accuracy_std is None
    assert (row.runs, row.averaged) == (2, 1)
    text = text_of(page_of(runs, tmp_path))
    assert "1 of 2 runs unfinished" in text
    assert f"half (2 of {ROUNDS}); not in the mean" in text


def test_an_unfinished_run_has_spent_what_is_on_record(tmp_path: Path) -> None:
    """Not what the whole plan would spend: two rounds by its history, three once the ledger says so."""
    path = make_run(tmp_path / "a", OWN, accuracy=(0.5,), finished=False)
    run = read_run(path)
    two, three = (Pld().epsilon(run.plan.steps(rounds), run.population.delta) for rounds in (2, 3))
    np.testing.assert_array_equal(list(summarise([path])[0].spent.values()), two[run.worst])
    with Ledger(path / "ledger.sqlite", run.population) as ledger:
        ledger.admit(run.about.id, run.plan)
        for number in (1, 2, 3):
            ledger.reserve(run.about.id, number)
            ledger.commit(run.about.id, number)
    np.testing.assert_array_equal(list(summarise([path])[0].spent.values()), three[run.worst])
    (path / "model.safetensors").write_bytes(b"")
    seal(path)
    np.testing.assert_array_equal(list(summarise([path])[0].spent.values()), run.certificate.spent[run.worst])


def test_a_report_on_unfinished_runs_only(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / "half", accuracy=(0.25,), finished=False)]
    text = text_of(page_of(runs, tmp_path))
    assert "No run is finished yet" in text and f"2 of {ROUNDS} rounds" in text
    assert "25.00 %" in text
    runs = [make_run(tmp_path / "new", accuracy=(), finished=False)]
    assert "No run has been evaluated yet" in text_of(page_of(runs, tmp_path))
    assert summarise(runs)[0].accuracy is None


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"model.name": "linear"}, "model.name is linear, not mlp"),
        ({"data.alpha": 0.25}, "data.alpha is 0.25, not 0.5"),
        ({"population.budgets": "uniform"}, "population.budgets is uniform"),
        ({"plan.rounds": 4}, f"plan.rounds is 4, not {ROUNDS}"),
    ],
)
def test_what_cannot_be_compared_is_marked(settings: dict[str, Any], reason: str, tmp_path: Path) -> None:
    runs = [make_run(tmp_path / f"a{seed}", seed=seed) for seed in (0, 1)]
    runs.append(make_run(tmp_path / "b", seed=2, accuracy=(0.7, 0.8, 0.9), settings=settings))
    first, second = summarise(runs)
    assert first.comparable and first.averaged == 2 and first.accuracy == pytest.approx(0.6)
    assert not second.comparable and any(reason in remark for remark in second.remarks)
    page = page_of(runs, tmp_path)
    text = text_of(page)
    assert "not comparable" in text and reason in text
    assert len(figures_of(page)["figure-accuracy"]["series"]) == 1
    assert "90.0 %" not in text[: text.index("Methods compared")]  # not in the sentence on the result


def test_other_promises_cannot_be_compared(tmp_path: Path) -> None:
    """Against another adversary, or of another unit, an epsilon means something else."""
    runs = [make_run(tmp_path / f"a{seed}", seed=seed) for seed in (0, 1)]
    runs.append(run_of(tmp_path / "records", "privacy_aware"))
    runs.append(make_run(tmp_path / "bare", BARE))
    remarks = {row.method: row.remarks for row in summarise(runs)}
    assert "not comparable: unit is record, not client" in remarks["privacy_aware"]
    assert "not comparable: promise against is server, not clients" in remarks["privacy_aware"]
    assert {row.method: row.comparable for row in summarise(runs)}[BARE]


def test_other_shares_of_the_budgets_cannot_be_compared(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / f"a{seed}", seed=seed) for seed in (0, 1)]
    runs.append(make_run(tmp_path / "b", OWN, settings={"plan.share": 0.5}))
    assert summarise(runs)[1].remarks[0] == "not comparable: plan.share is 0.5, not 1.0"


def test_when_budgets_run_out(tmp_path: Path) -> None:
    """A plan that leaves much of a budget lasts longer; until when is what the accountant says."""
    path = make_run(tmp_path / "a", STRICT, noise=3.0)
    (part,) = group(read_runs([path]))
    run, found = part.first, exhaustion(part)
    for k, each in enumerate(found):
        client, mine = run.worst[[k]], part.classes[k]
        halfway = [t for t, e in zip(mine.rounds, mine.curve, strict=True) if e >= 0.5 * mine.budget]
        assert each.half == (halfway[0] if halfway else None)
        if each.out is not None and each.out > ROUNDS:
            longer = planned(STRICT, run.population, 10 * ROUNDS, 3.0)
            at = [
                float(Pld().epsilon(longer.steps(t).of(client), run.population.delta[client])[0])
                for t in (each.out, each.out + 1)
            ]
            assert at[0] <= mine.budget < at[1]
    assert found[0].out is not None and found[0].out < (found[2].out or math.inf)


def test_other_clients_cannot_be_compared(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / f"a{seed}", seed=seed) for seed in (0, 1)]
    runs.append(make_run(tmp_path / "b", OWN, population=people(15)))
    assert "population (clients) is 15, not 12" in summarise(runs)[1].remarks[0]


def test_settings_that_methods_do_not_share_are_named(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / "a"), make_run(tmp_path / "b", OWN, settings={"train.epochs": 3})]
    assert all(row.comparable for row in summarise(runs))
    assert "The methods also differ in train.epochs." in text_of(page_of(runs, tmp_path))


def test_one_method_with_two_settings_gets_two_names(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / "a"), make_run(tmp_path / "b", settings={"train.epochs": 3})]
    title = METHODS[STRICT].title
    assert {row.label for row in summarise(runs)} == {
        f"{title}, train.epochs 1",
        f"{title}, train.epochs 3",
    }


def test_the_same_run_twice_does_not_narrow_the_spread(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a")
    assert summarise([run, run, tmp_path / "." / "a"])[0].runs == 1
    with pytest.raises(InputError, match="same seed 0.*Leave one of them out"):
        summarise([run, make_run(tmp_path / "copy")])


ATTACK = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&"


def test_what_comes_from_files_is_text(tmp_path: Path) -> None:
    """Names and titles; the clients overspend, so that one of them is named."""
    named = ATTACK.replace("/", "")  # no client's name has a slash
    names = tuple(f"{named}{i}" for i in range(12))
    fair = people()
    population = Population(names, fair.epsilon, fair.delta, fair.size)
    run = make_run(
        tmp_path / "a", population=population, noise=1.0, settings={"data.path": f"'''{ATTACK}'''"}
    )
    about = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**about, "data": ATTACK, "source": ATTACK}))
    seal(run)
    clean = Reader(page_of([make_run(tmp_path / "b")], tmp_path)).tags
    page = page_of([run], tmp_path, title=ATTACK)
    assert "over budget" in text_of(page) and "worst is client" in text_of(page)
    tags = Reader(page).tags
    assert [t for t, _ in tags].count("script") == [t for t, _ in clean].count("script")
    assert "img" not in {t for t, _ in tags}
    assert text_of(page).count(ATTACK) >= 4 and named in text_of(page)  # title twice, data, source; client


def test_a_method_that_is_not_known_is_text_too(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a")
    population = Population.from_csv(run / "population.csv")
    plan = planned(ATTACK, population)
    (run / "plan.json").write_text(plan.to_json(), encoding="utf-8")
    (run / "certificate.json").write_text(certify(plan, population, Renyi()).to_json(), encoding="utf-8")
    seal(run)
    page = page_of([run], tmp_path)
    assert "img" not in {t for t, _ in Reader(page).tags}
    names = [d["name"] for figure in figures_of(page).values() for d in figure["series"]]
    assert len(names) >= 4 and ATTACK in names  # in JSON, which the script shows as text only
    assert "innerHTML" not in page and "outerHTML" not in page


def test_overspending_is_not_called_within_budget(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", noise=1.0)
    assert summarise([run])[0].verdict == "over"
    text = text_of(page_of([run], tmp_path))
    assert "over budget" in text and "within" not in text[: text.index("Accuracy over rounds")]


@pytest.mark.parametrize("part", ["plan", "population"])
def test_a_certificate_of_something_else_proves_nothing(part: str, tmp_path: Path) -> None:
    run = make_run(tmp_path / "a")
    certificate = (run / "certificate.json").read_text(encoding="utf-8")
    digest = json.loads(certificate)[part]
    (run / "certificate.json").write_text(certificate.replace(digest, "0" * 64), encoding="utf-8")
    seal(run)
    assert summarise([run])[0].verdict == "broken"
    text = text_of(page_of([run], tmp_path))
    assert f"the certificate is of another {part}" in text and "within budget" not in text


def test_training_that_diverged_is_said(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", loss=math.inf)
    assert summarise([run])[0].loss == math.inf
    assert "diverged" in text_of(page_of([run], tmp_path))


def test_public_clients_have_no_budget_to_draw(tmp_path: Path) -> None:
    population = Population.of([1.0, 1.0, math.inf], delta=1e-5)
    page = page_of([make_run(tmp_path / "a", population=population)], tmp_path)
    assert "of no limit" in text_of(page) and "public data" in text_of(page)
    assert [name for name in figures_of(page) if "spending" in name] == ["figure-spending-0"]


def test_budgets_drawn_anew_for_each_seed_are_cut_into_common_classes(tmp_path: Path) -> None:
    runs = []
    for seed in (0, 1):
        budgets = 1.0 + np.random.default_rng(seed).random(40)
        runs.append(make_run(tmp_path / f"a{seed}", seed=seed, population=Population.of(budgets)))
    row = summarise(runs)[0]
    assert row.averaged == 2 and len(row.spent) == 8 and row.verdict == "within"
    page = page_of(runs, tmp_path)
    shares = [figure["y"] for name, figure in figures_of(page).items() if "spending" in name]
    assert len(shares) == 8 and all(axis[3] == "Share of the budget" for axis in shares)


def test_ten_thousand_clients_make_a_small_page(tmp_path: Path) -> None:
    budgets = 1.0 + np.random.default_rng(0).random(10_000)
    names = tuple(f"client-number-{i}" for i in range(10_000))
    population = Population(names, budgets, np.full(10_000, 1e-5), np.full(10_000, 5, dtype=np.int64))
    page = page_of([make_run(tmp_path / "a", population=population)], tmp_path)
    assert len(page.encode()) < 1_000_000
    assert "client-number-" not in page


def test_digests_and_commands_to_verify(three: list[Path], page: str) -> None:
    text = text_of(page)
    for path in three:
        assert f"discretion verify {path.name}" in text
        for name in ("config.toml", "population.csv", "plan.json", "certificate.json"):
            digest = hashlib.sha256((path / name).read_bytes()).hexdigest()
            assert f"{digest} {path.name}/{name}" in text


def test_the_numbers_of_each_figure_can_be_downloaded(study: Path, page: str) -> None:
    links = {str(a["download"]): str(a["href"]) for t, a in Reader(page).tags if t == "a" and "download" in a}
    assert set(links) == {f"{name}.csv" for name in figures_of(page)}

    def rows(name: str) -> list[dict[str, str]]:
        kind, _, data = links[f"{name}.csv"].partition(",")
        assert kind == "data:text/csv;charset=utf-8"
        return list(csv.DictReader(io.StringIO(unquote(data))))

    last = {r["series"]: r for r in rows("figure-accuracy") if r["round"] == "6"}
    assert float(last[METHODS[OWN].title]["accuracy"]) == pytest.approx(0.81)
    assert float(last[METHODS[OWN].title]["std"]) == pytest.approx(0.02 / math.sqrt(2))
    certificate = read_run(study / f"{OWN}-0").certificate
    spent = [r for r in rows("figure-spending-2") if r["series"] == METHODS[OWN].title]
    assert max(float(r["epsilon"]) for r in spent) == certificate.spent.max()


def test_the_ledger_is_read_and_left_alone(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", accuracy=(0.5,), finished=False)
    record = read_run(run)
    with Ledger(run / "ledger.sqlite", record.population) as ledger:
        ledger.admit(record.about.id, record.plan)
        for number in (1, 2, 3):
            ledger.reserve(record.about.id, number)
            if number < 3:
                ledger.commit(record.about.id, number)
        assert "2 rounds released, 1 reserved" in text_of(page_of([run], tmp_path))  # while in use
    before = sorted(path.name for path in run.iterdir())
    assert "2 rounds released, 1 reserved" in text_of(page_of([run], tmp_path))
    assert sorted(path.name for path in run.iterdir()) == before
    with sqlite3.connect(run / "ledger.sqlite") as db:
        db.execute("INSERT INTO run (id, plan) SELECT 'other', plan FROM run")
    db.close()
    assert "here 1 of 1 share one with other runs" in text_of(page_of([run], tmp_path))


def test_who_took_part_is_not_in_the_page(page: str) -> None:
    """Budget classes, never clients."""
    text = text_of(page)
    assert not re.search(r"\bc\d+\b", text)


def test_public_turns_are_not_called_secret_coins(tmp_path: Path) -> None:
    path = run_of(tmp_path / "run", "privacy_aware")
    text = text_of(page_of([path], tmp_path))
    plan = read_run(path).plan
    turns = np.sum([phase.turns for phase in plan.phases if phase.turns is not None], axis=0)
    mine = turns[people().epsilon == 1.0]
    assert f"{numbers.span([float(mine.min()), float(mine.max())])} turns" in text
    assert "batch 0.1" in text and "drawn in advance" in text and "one record’s gradient" in text
    assert "Each record of a client" in text and "One person in several records." in text
    for words in ("Secret coins.", "taking part in a round, a secret coin", "Expected rounds", "is secret"):
        assert words not in text
    assert "from the server, from other clients and from whoever sees the released models" in text


def test_phases_are_summed_up(tmp_path: Path) -> None:
    path = run_of(tmp_path / "run", "spend_as_you_go")
    text = text_of(page_of([path], tmp_path))
    plan = read_run(path).plan
    rates = [float(phase.rate[0]) for phase in plan.phases]
    assert f"{numbers.plain(min(rates))} to 0.25" in text and numbers.plain(sum(rates)) in text
    assert "Secret coins." in text and "from any one other client and from whoever" in text


def test_paper_mode_that_overspends_is_said(tmp_path: Path) -> None:
    tight = run_of(tmp_path / "tight", "gdpfed_plus")
    paper = run_of(tmp_path / "paper", "gdpfed_plus", accounting="paper")
    config = RunFolder(paper).config
    config.write_text(config.read_text().replace("[plan.options]", '[plan.options]\naccounting = "paper"'))
    seal(paper)
    rows = {row.label: row for row in summarise([tight, paper])}
    assert set(rows) == {"GDPFed+", "GDPFed+, accounting paper"}
    assert rows["GDPFed+, accounting paper"].verdict == "over"
    assert "Paper mode: not the stated guarantee." in rows["GDPFed+, accounting paper"].remarks
    page = page_of([tight, paper], tmp_path)
    assert "Paper mode: not the stated guarantee." in text_of(page)
    certificate = read_run(paper).certificate
    over = [line for line in figures_of(page)["figure-spending-0"]["series"] if "paper" in line["name"]]
    assert over[0]["y"][-1] == certificate.spent.min()  # the curve ends at what is charged
    assert "; but not within budget: 12 of 12 clients overspend" in text_of(page)


def test_what_is_read_raw_is_said(tmp_path: Path) -> None:
    path = run_of(tmp_path / "run", "power_of_choice")
    text = text_of(page_of([path], tmp_path))
    assert "who trains depends on the loss of every record, read raw" in text and "no privacy" in text
    assert "clients asked or expected in each" in text
    noisy = run_of(tmp_path / "noisy", "power_of_choice", read_share=0.2)
    assert summarise([noisy])[0].verdict == "within"
    assert "read with noise that is paid for" in text_of(page_of([noisy], tmp_path))


def test_who_refused_is_told_only_where_that_tells_no_coin(tmp_path: Path) -> None:
    """A remote client refuses in rounds for which its coin came up."""
    folder = make_run(tmp_path / "real")
    heard = {
        "round": 3,
        "asked": 1,
        "answered": 0,
        "lost": 0,
        "refused": {"c4": "not asked in round 3 by the plan", "c5": "budget"},
    }
    later = {
        "round": 5,
        "asked": 1,
        "answered": 0,
        "lost": 0,
        "refused": {"c6": "not asked in round 5 by the plan", "c4": "again"},
    }
    RunFolder(folder).answers.write_text(json.dumps(heard) + "\n" + json.dumps(later) + "\n")
    seal(folder)
    assert "c4 in real from round 3: not asked in round 3 by the plan" in page_of([folder], tmp_path)
    keep_secret(folder)
    page = page_of([folder], tmp_path)
    assert (
        "1 client in real: budget" in page and "2 clients in real: not asked in round … by the plan" in page
    )
    assert "from round" not in page and "c4 in" not in page and "This is a simulation" not in page


def test_places_and_passwords_of_the_settings_are_not_shown(tmp_path: Path) -> None:
    settings = {
        "track.to": "mlflow",
        "track.out": "http://ann:hunter2@mlflow.example",
        "clients.key": "/home/ann/operator.key",
        "clients.addresses": "/home/ann/addresses.toml",
        "clients.home": "/home/ann/.flwr",
        "ledger": "/home/ann/lifetime.sqlite",
        "model.name": "/home/ann/nets.py:Small",
    }
    folder = make_run(tmp_path / "run", settings=settings)
    other = make_run(tmp_path / "other", settings={**settings, "data.path": "/home/bob/secret.csv"})
    page = page_of([folder, other], tmp_path)
    for hidden in ("hunter2", "mlflow.example", "/home/", "operator.key", "lifetime.sqlite"):
        assert hidden not in page, page[page.index(hidden) - 80 :][:160]
    assert "nets.py:Small" in page and "evaluate_every" in page


def test_a_half_line_of_answers_is_left_out(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    whole = json.dumps({"round": 1, "asked": 1, "answered": 0, "lost": 0, "refused": {"c4": "no"}}) + "\n"
    RunFolder(folder).answers.write_text(whole + whole[:10])
    seal(folder)
    assert read_run(folder).refusals == {"c4": (1, "no")}
    RunFolder(folder).answers.write_text(whole[:10] + whole)
    seal(folder)
    with pytest.raises(InputError, match="cannot read .*answers.jsonl"):
        _ = read_run(folder).refusals


def test_folders_that_hold_no_run_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no run in"):
        write([tmp_path], tmp_path / "report.html")
    with pytest.raises(InputError, match="at least one run folder"):
        summarise([])
    run = make_run(tmp_path / "a")
    (run / "run.json").write_text("{}")
    seal(run)
    with pytest.raises(InputError, match=r"cannot read .*run\.json"):
        summarise([run])
    (make_run(tmp_path / "b") / "history.jsonl").write_text("{]\n")
    seal(tmp_path / "b")
    with pytest.raises(InputError, match=r"cannot read .*history\.jsonl"):
        summarise([tmp_path / "b"])


def test_classes_with_the_same_name_are_kept_apart(tmp_path: Path) -> None:
    """Nine budgets that are equal to three digits: eight classes, all of them in the table."""
    population = Population.of(2 + np.arange(9) * 1e-6)
    row = summarise([make_run(tmp_path / "a", population=population)])[0]
    assert len(row.spent) == len(row.budget) == 8


positive = st.floats(1e-6, 1e6, allow_nan=False)


@given(positive, positive)
def test_spent_never_looks_smaller_and_budgets_never_larger(spent: float, budget: float) -> None:
    used, allowed = (float(shown) for shown in numbers.spent_of(spent, budget))
    assert used >= spent and allowed <= budget
    assert (used <= allowed) == (spent <= budget)


def test_numbers_as_they_are_read() -> None:
    assert numbers.spent_of(0.49978606, 0.5) == ("0.4998", "0.5")
    assert numbers.spent_of(0.12341, 0.123411) == ("0.12341", "0.12341")
    assert numbers.spent(0.0) == "0" and numbers.spent(math.inf) == "∞"
    assert numbers.spent(0.1) == "0.1000" and numbers.spent(12345.0) == "12350"
    assert numbers.power(7e-5) == f"7{numbers.SPACE}×{numbers.SPACE}10⁻⁵" and numbers.power(1e-5) == "10⁻⁵"
    assert numbers.span([0.5, 0.5]) == "0.5" and numbers.span([0.5, 1.0]) == "0.5 to 1"
    assert numbers.listing(["a", "b", "c"]) == "a, b and c" and numbers.listing(["a"]) == "a"


def test_durations_are_said_as_people_do() -> None:
    said = [numbers.duration(seconds) for seconds in (0.4, 1, 89, 90, 119, 5399, 5400, 7300, 90_000)]
    assert said[:5] == ["0 seconds", "1 second", "89 seconds", "2 minutes", "2 minutes"]
    assert said[5:] == ["1 hour 30 min", "1 hour 30 min", "2 hours 2 min", "25 hours"]
