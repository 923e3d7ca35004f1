"""A run's metrics at the server: what happened, and nothing that tells a secret coin."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from discretion import jsonfile
from discretion.clients.prometheus import Metric, MetricsServer, text_of
from discretion.guard.refusal_reasons import REASONS
from discretion.ledger.ledger import Ledger
from discretion.runs.folder import RunFolder
from discretion.runs.read import Run, read_run
from discretion.watch.follow import Follow, Seen
from discretion.watch.run_metrics import RunMetrics, told
from discretion.watch.server import Watch
from support.commands import Cli
from support.exposition import Exposed, parse, scrape
from support.run_folders import OWN, ROUNDS, keep_secret, make_run, people, seal
from support.small_run import ROUNDS as SMALL_ROUNDS

REFUSED = {"c3": "the client's budget does not allow round 2", "c4": 'model "x" {evil} not listed'}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run of six rounds with guards, of which clients' accounts and guards refused some."""
    path = make_run(tmp_path / "run", OWN, finished=False)
    run = read_run(path)
    with Ledger(path / "ledger.sqlite", run.population, "adaptive") as ledger:
        ledger.admit(run.about.id, run.plan)
        for number in range(1, ROUNDS + 1):
            if number == 3:
                ledger.change_budget("c0", -1.0)
            ledger.reserve(run.about.id, number)
            ledger.commit(run.about.id, number)
    lines = [
        {"round": number, "asked": 6, "answered": 3, "refused": REFUSED, "lost": 1, "missing": 0.0}
        for number in range(1, ROUNDS + 1)
    ]
    RunFolder(path).answers.write_text("".join(map(jsonfile.line, lines)), encoding="utf-8")
    seal(path)
    return path


def metrics(seen: Seen) -> Exposed:
    return parse(text_of(RunMetrics(lambda: seen).collect()))


def test_a_run_that_is_finished(small_run: Path) -> None:
    found = metrics(Follow(small_run).look())
    assert found.by("discretion_run_status", "status") == {
        **dict.fromkeys(("waiting", "ready", "running", "stopped"), 0),
        "finished": 1,
    }
    assert found.of("discretion_run_rounds_done") == found.of("discretion_run_rounds_planned") == SMALL_ROUNDS
    run = read_run(small_run)
    spent = found.by("discretion_run_epsilon_spent", "budget_class")
    assert spent == pytest.approx(dict(zip(run.classes[0], run.spent, strict=True)))
    left = found.by("discretion_ledger_epsilon_left", "budget_class")
    with Ledger.existing(small_run / "ledger.sqlite") as ledger:
        assert min(left.values()) == pytest.approx((ledger.budget - ledger.total()).min(), abs=1e-9)
    assert "discretion_run_refusals_total" not in found.kinds  # nobody was asked elsewhere


def test_answers_and_refusals_by_reason(folder: Path) -> None:
    found = metrics(Follow(folder).look())
    refusals = found.by("discretion_run_refusals_total", "reason")
    assert refusals == dict.fromkeys(REASONS, 0) | {"budget": ROUNDS, "not_allowed": ROUNDS}
    assert found.by("discretion_run_orders_total", "outcome") == {"answered": 3 * ROUNDS, "lost": ROUNDS}
    assert found.of("discretion_run_account_refusals_total") == ROUNDS - 2


def test_nobody_is_named(folder: Path) -> None:
    told = text_of(RunMetrics(lambda: Follow(folder).look()).collect())
    run = read_run(folder)
    for word in (*people().client, run.about.id, "evil", str(folder), folder.name + "/"):
        assert f'"{word}"' not in told and (len(word) < 4 or word not in told)


def test_secret_coins_are_not_told(folder: Path) -> None:
    seen = replace(Follow(keep_secret(folder)).look(), pace=None)
    found = metrics(seen)
    assert found.by("discretion_run_orders_total", "outcome") == {"lost": ROUNDS}  # not how many answered
    assert "discretion_run_seconds_a_round" not in found.kinds
    assert "discretion_run_seconds_a_round" in metrics(replace(seen, pace=2.0)).kinds


def test_while_coins_are_secret_numbers_change_at_tenths_only(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run", OWN, settings={"plan.rounds": 40}, finished=False)
    open_, secret = read_run(path), read_run(keep_secret(path))
    record = Follow(path).look()
    for done in (0, 3, 4, 7, 39, 40):
        seen = replace(record, run=secret, done=done, record=None)
        now = told(seen, secret)
        assert now.done == (40 if done == 40 else done // 4 * 4) and now.charged >= done
        assert now.charged in (0, *range(4, 41, 4)) and now.charged - done < 4
        assert told(seen, open_).done == done


def test_the_ledger_is_read_at_tenths_only(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[Path] = []

    def read(run: Run) -> list[Metric]:
        reads.append(run.folder)
        return []

    monkeypatch.setattr("discretion.watch.run_metrics._left", read)
    seen = replace(Follow(folder).look(), status="running")
    plain = RunMetrics(lambda: seen)
    for _ in range(2):
        plain.collect()
    assert len(reads) == 2
    hidden = replace(Follow(keep_secret(folder)).look(), status="running")
    secret = RunMetrics(lambda: hidden)
    for _ in range(2):
        secret.collect()
    assert len(reads) == 3


def test_what_cannot_be_read_is_left_out(folder: Path, tmp_path: Path) -> None:
    seen = Follow(folder).look()
    RunFolder(folder).answers.write_text("{}\n", encoding="utf-8")
    (folder / "ledger.sqlite").write_bytes(b"damaged")
    found = metrics(replace(seen, run=replace(seen.run, certificate=replace(seen.run.certificate, plan="x"))))  # type: ignore[type-var, union-attr]
    assert set(found.kinds) == {
        "discretion_run_status",
        *(f"discretion_run_rounds_{name}" for name in ("planned", "done", "charged")),
    }
    assert set(metrics(Follow(tmp_path / "later").look()).kinds) == {"discretion_run_status"}


def test_watch_serves_metrics(discretion: Cli, small_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[str] = []
    started: list[MetricsServer] = []
    entered = MetricsServer.__enter__

    def enter(self: MetricsServer) -> MetricsServer:
        started.append(self)
        return entered(self)

    def stop(self: Watch, poll_interval: float) -> None:
        answers.append(scrape(started[0].address)[2])
        raise KeyboardInterrupt

    monkeypatch.setattr(MetricsServer, "__enter__", enter)
    monkeypatch.setattr(Watch, "serve_forever", stop)
    done = discretion("watch", str(small_run), "--no-open", "--json", "--metrics", "127.0.0.1:0")
    assert done.code == 0 and json.loads(done.out)["metrics"] == started[0].address
    assert parse(answers[0]).of("discretion_run_rounds_done") == SMALL_ROUNDS
    refused = discretion("watch", str(small_run), "--no-open", "--metrics", "0.0.0.0:9464")
    assert refused.code == 2 and "on this machine" in refused.err
