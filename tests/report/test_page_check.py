"""A report is verified by the records in it; what is not what they make of it is noticed."""

import base64
import json
import lzma
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from discretion.accounting import Pld
from discretion.audit import enclosed
from discretion.audit.verdicts import verdict
from discretion.audit.verify import Verification, verify
from discretion.cli import main
from discretion.errors import FolderError, InputError, LedgerError, UnverifiedError
from discretion.ledger.ledger import Ledger
from discretion.plan.population import Population
from discretion.report import officer, render, write
from discretion.report.page_check import ELSEWHERE, verify_page
from discretion.report.run_group import group
from discretion.runs.read import read_run
from support.run_folders import BARE, keep_secret, make_run, seal, trained

Record = dict[str, Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("pages")
    ledger = home / "ledger.sqlite"
    return trained(home / "run", f"ledger={ledger}", "about.contact=someone@example.org")


@pytest.fixture(scope="module")
def original(folder: Path) -> Path:
    page = folder.parent / "report.html"
    write([folder], page)
    return page


@pytest.fixture
def page(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(original, tmp_path / "report.html"))


def check(page: Path) -> Verification:
    (found,) = verify_page(page, Pld())
    return found


def failing(found: Verification) -> set[str]:
    return {each.what for each in (*found.records, *found.budgets) if not each.holds}


def held(page: Path) -> Record:
    found = enclosed.HELD.search(page.read_bytes())
    assert found
    return dict(json.loads(found[1]))


def unpacked(page: Path) -> Record:
    return dict(json.loads(lzma.decompress(base64.b64decode(held(page)["runs"][0]))))


def forge(page: Path, edit: Callable[[Record], None]) -> None:
    """Change the records, and seal the page again as whoever has read the source can do."""
    record, before = unpacked(page), held(page)
    edit(record)
    runs = [base64.b64encode(lzma.compress(json.dumps(record).encode())).decode()]
    text = page.read_text(encoding="utf-8").replace(before["runs"][0], runs[0])
    page.write_text(enclosed.seal(text.replace(before["sha256"], enclosed.UNSEALED)), encoding="utf-8")


def sealed_again(page: Path, text: str) -> None:
    text = text.replace(held(page)["sha256"], enclosed.UNSEALED, 1)
    page.write_text(enclosed.seal(text), encoding="utf-8")


def rewrite(page: Path) -> None:
    """Write the page anew from its records, as whoever can make records up can do."""
    found = enclosed.read_page(page)
    records = found.records.model_copy(update={"sha256": enclosed.UNSEALED})
    page.write_text(render(found.runs, records, page), encoding="utf-8")


def in_file(name: str, edit: Callable[[Record], None]) -> Callable[[Record], None]:
    def change(record: Record) -> None:
        inner = json.loads(record["files"][name])
        edit(inner)
        record["files"][name] = json.dumps(inner)

    return change


def test_a_page_says_what_its_folder_says(page: Path, folder: Path) -> None:
    found, there = check(page), verify(folder, Pld())
    assert found.whole and found.kept and found.elsewhere == ELSEWHERE
    assert found.classes == there.classes and found.budgets == there.budgets
    same = {each.what: each for each in found.records}
    needs = {each.what for each in there.records if each.what not in same}
    assert needs == {"ledger, row by row", "checkpoint"}
    assert all(same[each.what] == each for each in there.records if each.what in same)


@pytest.mark.parametrize("text", ["within budget", "98.", "someone@example.org", "simulation"])
def test_a_changed_word_of_the_page_is_found(page: Path, text: str) -> None:
    content = page.read_text(encoding="utf-8")
    assert text in content
    page.write_text(content.replace(text, text[:-1] + "1"), encoding="utf-8")
    assert failing(check(page)) == {"page"}
    done = CliRunner().invoke(main.app, ["verify", str(page)])
    assert isinstance(done.exception, LedgerError) and "it was changed after it was written" in str(
        done.exception
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("within budget", "well within budget"),
        ("98.", "99."),
        ("</body>", "<script>document.title = 'mine'</script></body>"),
        ("</body>", "<style>.bad { display: none }</style></body>"),
        ("<h1>", '<h1 onclick="alert(1)">'),
        ("script-src", "script-src 'unsafe-inline'"),
    ],
)
def test_a_page_that_is_not_what_its_records_make_of_it_is_found(page: Path, before: str, after: str) -> None:
    content = page.read_text(encoding="utf-8")
    assert before in content
    sealed_again(page, content.replace(before, after, 1))
    assert enclosed.read_page(page).sealed
    found = check(page)
    assert failing(found) == {"page"}
    (said,) = (each.said for each in found.records if each.what == "page")
    assert said.startswith("not what Discretion") and " it has “" in said
    done = CliRunner().invoke(main.app, ["verify", str(page)])
    assert isinstance(done.exception, LedgerError) and done.exception.exit_code == 4
    assert "Verdict: contradicted" in str(done.exception)


def test_a_page_by_another_version_is_not_called_verified(page: Path) -> None:
    content = page.read_text(encoding="utf-8")
    sealed_again(page, content.replace(f'"discretion": "{version("discretion")}"', '"discretion": "9.9.9"'))
    (said,) = (each for each in check(page).records if each.what == "page")
    assert (
        said.holds is None
        and said.said.startswith("Discretion 9.9.9 wrote it")
        and "not compared" in said.said
    )
    done = CliRunner().invoke(main.app, ["verify", str(page)])
    assert isinstance(done.exception, UnverifiedError)


def test_records_in_another_form_are_not_called_changed(page: Path) -> None:
    content = page.read_text(encoding="utf-8")
    page.write_text(content.replace(enclosed.FORMAT, "discretion-records/1"), encoding="utf-8")
    with pytest.raises(UnverifiedError, match="another version of Discretion .*verify it with that version"):
        verify_page(page)


def test_a_page_may_be_renamed_and_holds_its_title(folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "one.html"
    write([folder], page, title="Of <all> hospitals")
    assert failing(check(Path(shutil.move(page, tmp_path / "other.html")))) == set()


def test_runs_that_are_kept_apart_stay_apart_when_a_page_is_rendered_again(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    tables = [{"population.csv": f"/somewhere/people-{k}.csv"} for k in range(2)]
    runs = [make_run(tmp_path / f"run{k}", seed=k, settings=tables[k]) for k in range(2)]
    write([*runs, make_run(tmp_path / "bare", BARE)], page)
    text = page.read_text(encoding="utf-8")
    assert "population.csv is people-1.csv, not people-0.csv" in text and "somewhere" not in text
    for found in verify_page(page, Pld()):
        assert "page" not in failing(found)
    records = [json.loads(lzma.decompress(base64.b64decode(each))) for each in held(page)["runs"]]
    assert "somewhere" not in json.dumps(records)
    write(runs[:1], page)
    assert unpacked(page)["settings"]["population"]["csv"] == "population.csv"


def test_whose_the_test_records_are_is_told_without_their_place(tmp_path: Path) -> None:
    page, settings = tmp_path / "report.html", {"data.name": "csv", "data.test": "/home/me/secret-test.csv"}
    write([make_run(tmp_path / "run", settings=settings)], page)
    assert "from a table of their own" in page.read_text(encoding="utf-8")
    assert "page" not in failing(check(page)) and "secret-test" not in json.dumps(unpacked(page))
    own = {"data.name": "csv", "data.test": "held-out", "data.partition": "natural"}
    write([make_run(tmp_path / "own", settings=own)], page)
    assert "kept for testing: these figures are not private" in page.read_text(encoding="utf-8")
    assert "page" not in failing(check(page))


def test_accuracies_of_budget_classes_are_rendered_again(folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    write([folder], page, class_accuracy=True)
    assert "Accuracy on its own records" in page.read_text(encoding="utf-8")
    assert failing(check(page)) == set()


def answered_by_some(path: Path) -> Path:
    """A run on guards of which one refused in round 3, and which then stopped."""
    make_run(path, settings={"clients.where": "guards"}, finished=False)
    one = {"round": 3, "asked": 4, "answered": 3, "lost": 0, "refused": {"c4": "not asked in round 3"}}
    line = one | {"expected": 12, "there": 5, "clients": 12, "enough": False}
    (path / "answers.jsonl").write_text(json.dumps(line) + "\n", encoding="utf-8")
    seal(path)
    return path


def test_who_answered_leads_the_verification_of_a_page_too(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    write([answered_by_some(tmp_path / "run")], page)
    found = check(page)
    assert "; 5 of 12 clients were there at round 3, too few: the run stopped" in found.answered
    assert "page" not in failing(found) and "answers" not in {each.what for each in found.records}
    shown = " ".join(CliRunner().invoke(main.app, ["verify", str(page)]).stdout.split())
    assert shown.startswith(found.answered)
    text = page.read_text(encoding="utf-8")
    sealed_again(page, text.replace("5 of 12 clients were", "12 of 12 clients were"))
    assert "page" in failing(check(page))


def test_where_coins_are_secret_a_page_does_not_hold_who_refused(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    write([keep_secret(answered_by_some(tmp_path / "run"))], page)
    assert unpacked(page)["told"]["refusals"] == {"1": [0, "not asked in round …"]}
    assert "page" not in failing(check(page))
    assert unpacked(page)["took"] is None and unpacked(page)["profile"] is None


def lower(record: Record) -> None:
    record["spent"][0] *= 0.5


def forget(record: Record) -> None:
    record["ledger"]["rounds"].pop()


def richer(record: Record) -> None:
    record["ledger"]["clients"][0]["epsilon"] = 99.0


def other_prices(record: Record) -> None:
    record["ledger"]["run"]["rows"] = "0" * 64


def other_method(record: Record) -> None:
    record["settings"]["plan"]["method"] = BARE


def another_plan(record: Record) -> None:
    record["ledger"]["run"]["plan"] = "0" * 64


@pytest.mark.parametrize(
    ("edit", "found"),
    [
        (in_file("certificate.json", lower), {"certificate", "files"}),
        (forget, {"rounds on record"}),
        (richer, {"budgets on record"}),
        (other_prices, {"plan on record, by digest"}),
        (another_plan, {"ledger"}),
        (other_method, {"settings"}),
    ],
)
def test_a_changed_record_is_found_though_the_page_is_sealed_again(
    page: Path, edit: Callable[[Record], None], found: set[str]
) -> None:
    forge(page, edit)
    assert found <= failing(check(page))
    rewrite(page)
    assert found <= failing(check(page)) and "page" not in failing(check(page))


def test_another_plan_or_budget_is_not_that_of_the_certificate(page: Path) -> None:
    def looser(record: Record) -> None:
        record["files"]["population.csv"] = record["files"]["population.csv"].replace("c1,", "c1,9", 1)

    forge(page, looser)
    assert {"population", "certificate", "files"} <= failing(check(page))


def test_what_is_no_report_or_cut_short_is_refused(page: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.html"
    other.write_text("<p>a page</p>", encoding="utf-8")
    with pytest.raises(InputError, match="no report of Discretion: expected one element of records, found 0"):
        verify_page(other)
    with pytest.raises(InputError, match="cannot read"):
        verify_page(tmp_path / "none.html")
    text, packed = page.read_text(encoding="utf-8"), held(page)["runs"][0]
    for damaged in (packed[:-8], packed[4:], "AAAA", "!"):
        page.write_text(text.replace(packed, damaged), encoding="utf-8")
        with pytest.raises(FolderError, match="cannot be read: they were changed"):
            verify_page(page)
    page.write_text(text.replace('"why_none"', '"why"'), encoding="utf-8")
    with pytest.raises(FolderError, match="not a Discretion report"):
        verify_page(page)


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda record: record["files"].pop("plan.json"), "plan.json"),
        (
            lambda record: record["files"].update(
                {"population.csv": "client,epsilon,delta,size\nx,1,1e-5,3\n"}
            ),
            "name",
        ),
        (
            lambda record: record["ledger"]["changes"].append({"number": 2**70, "client": "c1", "by": 1.0}),
            "ledger",
        ),
        (lambda record: record["ledger"]["rounds"].append(record["ledger"]["rounds"][0]), "ledger"),
    ],
)
def test_records_that_no_report_has_are_refused(
    page: Path, edit: Callable[[Record], None], said: str
) -> None:
    forge(page, edit)
    with pytest.raises(FolderError, match=said):
        check(page)


def test_nothing_private_is_in_the_records(page: Path, folder: Path) -> None:
    record = unpacked(page)
    text = json.dumps(record)
    assert str(folder) not in text and "sqlite" not in text and "secret" not in text
    assert set(record) == {
        *("name", "place", "settings", "files", "manifest", "history", "finished", "ledger"),
        *("left", "told", "took", "profile"),
    }
    assert set(record["files"]) == {"population.csv", "plan.json", "certificate.json", "run.json"}
    times = re.findall(r"\d{4}-\d\d-\d\dT", json.dumps({k: v for k, v in record.items() if k != "files"}))
    assert not times
    assert "key" not in record["settings"]["clients"] and "path" not in record["settings"]["data"]


def test_where_other_runs_spend_too_the_page_leaves_it_open(tmp_path: Path) -> None:
    shared = [f"ledger={tmp_path / 'shared.sqlite'}", "plan.share=0.4"]
    trained(tmp_path / "a", *shared)
    trained(tmp_path / "b", *shared, "train.learning_rate=0.2")
    everyone = read_run(tmp_path / "a").population
    stranger = Population.of([*everyone.epsilon, 3.0], 1e-5, 3)
    with Ledger(tmp_path / "shared.sqlite", stranger) as ledger:
        ledger.change_budget(everyone.client[0], 0.5, "asked by letter")
        ledger.change_budget(stranger.client[-1], 0.5, "not of these runs")
    page = tmp_path / "report.html"
    write([tmp_path / "b"], page)
    found = check(page)
    assert found.whole and found.kept is None and all(each.life is None for each in found.classes)
    text = json.dumps(unpacked(page))
    assert "letter" not in text and f'"{stranger.client[-1]}"' not in text
    done = CliRunner().invoke(main.app, ["verify", str(page), "--json"])
    record = json.loads(done.stdout)
    assert isinstance(done.exception, UnverifiedError) and record["verified"] is None
    assert record["verdict"].endswith("could not be judged: budgets, over all runs.")
    assert "unknown" in CliRunner().invoke(main.app, ["verify", str(page)]).stdout


def test_what_is_left_is_left_over_all_runs_wherever_it_is_told(tmp_path: Path) -> None:
    """Of one run alone, 60 % would be left; of a budget that was lowered, less than of the first one."""
    shared = [f"ledger={tmp_path / 'shared.sqlite'}", "plan.share=0.4"]
    folders = [trained(tmp_path / "a", *shared), trained(tmp_path / "b", *shared, "train.learning_rate=0.2")]
    everyone = read_run(folders[0]).population
    strict = everyone.client[int(everyone.epsilon.argmin())]

    def told(folder: Path) -> None:
        there = [each.left for each in verify(folder, Pld()).classes]
        shown = json.loads(CliRunner().invoke(main.app, ["show", str(folder), "--json"]).stdout)
        (part,) = group([read_run(folder)])
        assert [each["left"] for each in shown["classes"]] == pytest.approx(there, rel=1e-6)
        assert [each.left for each in part.classes] == pytest.approx(there, rel=1e-6)
        page = tmp_path / "report.html"
        write([folder], page)
        assert "page" not in failing(check(page))
        for mine in part.classes:
            assert f'<td data-label="Left">{officer.left(mine)}</td>' in page.read_text(encoding="utf-8")

    told(folders[0])
    run = read_run(folders[0])
    assert (run.left < 0.5 * run.population.epsilon[run.worst]).all()
    with Ledger(tmp_path / "shared.sqlite", everyone) as ledger:
        ledger.change_budget(strict, -0.1, "asked by letter")
    assert read_run(folders[0]).left[0] == pytest.approx(run.left[0] - 0.1)
    told(folders[1])


def test_what_is_left_of_a_lowered_budget_is_counted_again_from_the_page(
    folder: Path, tmp_path: Path
) -> None:
    copy = trained(tmp_path / "run", "plan.share=0.5")
    everyone = read_run(copy).population
    with Ledger(copy / "ledger.sqlite", everyone) as ledger:
        ledger.change_budget(everyone.client[0], -0.5, "asked by letter")
    page = tmp_path / "report.html"
    write([copy], page)
    found = check(page)
    assert "page" not in failing(found) and found.classes == verify(copy, Pld()).classes
    (run,) = enclosed.read_page(page).runs
    assert run.left.tolist() == read_run(copy).left.tolist()
    forge(page, lambda record: record.update(left=[9.0] * 3))
    (run,) = enclosed.read_page(page).runs
    assert run.left.tolist() == read_run(copy).left.tolist()  # whatever the page says


def test_a_page_without_records_says_why(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "bare.html"
    done = CliRunner().invoke(main.app, ["report", str(folder), "--no-records", "-o", str(page)])
    assert done.exit_code == 0 and "it holds no records: it was written without them" in page.read_text()
    with pytest.raises(
        InputError, match="holds no records: it was written without them. Verify the run folder"
    ):
        verify_page(page)
    monkeypatch.setattr(enclosed, "MOST", 10)
    write([folder], page)
    with pytest.raises(InputError, match="they would take more than 2,000,000 characters"):
        verify_page(page)
    monkeypatch.undo()
    monkeypatch.setattr(enclosed, "unplaced", lambda value: "x")
    assert enclosed.enclose([read_run(folder)], page).why_none == enclosed.HAS_PATH


def test_a_run_without_a_ledger_and_one_that_is_not_over(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    write([make_run(tmp_path / "run", finished=False)], page)
    found = check(page)
    assert "ledger" in failing(found) and found.whole is False  # rounds are done, but none is on record
    write([make_run(tmp_path / "new", accuracy=(), finished=False)], page)
    assert "ledger" not in failing(check(page))


def test_the_last_sentence_is_the_verdict(page: Path, folder: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(main.app, ["verify", str(page)])
    assert done.exit_code == 0
    last = " ".join(done.stdout.split()).rpartition("Verdict: ")[2]
    assert last.startswith("verified. The records of") and "every budget was kept, counted again" in last
    assert last.endswith(f"what needs the run folder: {', '.join(ELSEWHERE)}.")
    both = tmp_path / "both.html"
    bare = trained(tmp_path / "bare", "plan.method=fedavg", "train.accept_no_privacy=true")
    write([folder, bare], both)
    found = verify_page(both, Pld())
    holds, said = verdict(found, "both.html")
    assert holds is False and said.startswith(
        "Verdict: not kept. both.html, run bare: budgets, by the plan: "
    )
    with pytest.raises(InputError, match="--data"):
        CliRunner().invoke(main.app, ["verify", str(page), "--data"], catch_exceptions=False)


def test_so_far_is_not_the_whole(folder: Path) -> None:
    found = replace(verify(folder, Pld()), done=2)
    expected = "every budget is kept so far (2 of 4 rounds are done, and 4 are charged)"
    assert expected in verdict([found], "run")[1]
    some = replace(found, kinds=found.kinds + 1)
    assert "counted again, of a sample of the clients" in verdict([some], "run")[1]
