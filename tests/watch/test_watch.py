"""A run is followed before it is there, while it goes on and after it was killed; and it is only read."""

import json
import os
import shutil
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from discretion.audit.verdicts import verdict
from discretion.audit.verify import verify
from discretion.cli import main
from discretion.clients.readiness import Readiness
from discretion.clients.turnout import orders_until
from discretion.ledger import reader
from discretion.ledger.ledger import Ledger
from discretion.plan.phase import Phase
from discretion.plan.plan import Plan
from discretion.runs import preflight
from discretion.runs.config import read
from discretion.runs.execute import execute
from discretion.runs.folder import RunFolder, alone
from discretion.runs.prepare import prepare
from discretion.runs.read import read_run
from discretion.watch.follow import Follow, Seen, Tail, is_locked
from discretion.watch.live_page import PageView, page, view_of
from discretion.watch.server import Watch
from discretion.watch.state import classes, pace, record_of
from support.run_folders import keep_secret, seal
from support.small_run import ROUNDS, contents
from support.stepping import Stepping


@pytest.fixture
def made(small_config: Path, tmp_path: Path) -> Path:
    """A run that has not begun."""
    config = read(small_config)
    prepare(config, RunFolder(tmp_path / "run"))
    return tmp_path / "run"


@pytest.fixture
def copy(small_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(small_run, tmp_path / "run"))


# lines of a file


@given(st.lists(st.tuples(st.sampled_from(["add", "half", "cut", "anew", "gone"]), st.integers(0, 3))))
def test_a_tail_hands_out_the_lines_of_the_file(tmp_path_factory: pytest.TempPathFactory, acts: Any) -> None:
    path = tmp_path_factory.mktemp("tail") / "lines"
    tail, known = Tail(path), list[str]()
    text = ""
    for number, (act, size) in enumerate(acts):
        whole = text[: text.rfind("\n") + 1]
        if act == "add":
            text += "".join(f"{number}-{k}\n" for k in range(size))
        elif act == "half":
            text += f"{number}…"
        elif act == "cut":
            text = "".join(whole.splitlines(keepends=True)[:size])
        else:
            text = "" if act == "gone" else "".join(f"other {number}-{k}\n" for k in range(size))
        path.write_text(text, encoding="utf-8")
        if act == "gone":
            path.unlink()
        void, new = tail.lines()
        known = new if void else known + new
        assert known == text[: text.rfind("\n") + 1].splitlines()


def test_a_tail_reads_only_what_is_new(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_text("one\ntwo\n")
    tail = Tail(path)
    assert tail.lines() == (False, ["one", "two"]) and tail.lines() == (False, [])
    path.write_text("one\ntwo\nthree\n")  # another file with the same beginning is the same to its reader
    assert tail.lines() == (False, ["three"])
    path.write_text("six\n")
    assert tail.lines() == (True, ["six"])


# what is seen


def test_a_run_is_waited_for_then_seen_to_be_made(small_config: Path, tmp_path: Path) -> None:
    follow = Follow(tmp_path / "run")
    assert follow.look() == Seen(tmp_path / "run", "waiting")
    config = read(small_config)
    prepare(config, RunFolder(tmp_path / "run"))
    seen = follow.look()
    assert seen.status == "ready" and seen.run and seen.run.plan.rounds == ROUNDS
    assert seen.done == seen.counted == 0 and not seen.rounds
    shutil.rmtree(tmp_path / "run")
    assert follow.look().status == "waiting"


def test_a_run_is_seen_to_go_on_to_be_killed_and_to_be_resumed(made: Path) -> None:
    """And looking leaves no trace, not even beside a ledger that a killed process left open."""
    now = [0.0]
    follow = Follow(made, clock=lambda: now[0])

    def look(seconds: float) -> Seen:
        now[0] += seconds
        return follow.look()

    with Stepping(made) as run:
        run.until(1)
        seen = look(10.0)
        assert (seen.status, seen.done, seen.pace, seen.left) == ("running", 1, None, None)
        run.until(3)
        seen = look(4.0)
        assert (seen.done, seen.pace, seen.left) == (3, 2.0, 10.0)
        assert look(3.0).left == 7.0
        assert seen.rounds == (1, 2, 3) and len(seen.accuracy) == len(seen.loss) == 3
        assert seen.record and seen.counted == seen.record.reserved == 3
        living = contents(made)
        assert Follow(made).look().counted == 3 and contents(made) == living
        run.kill()
    before = contents(made)
    assert Follow(made).look().counted == 3
    with Watch(made) as server:
        page(server.look().view)
    assert contents(made) == before
    seen = look(10.0)
    assert (seen.status, seen.done, seen.pace, seen.left) == ("stopped", 3, None, None)
    early = seen.accuracy
    with Stepping(made) as run:
        run.until(5)
        seen = look(1.0)
        assert (seen.status, seen.done, seen.pace) == ("running", 5, None)  # a stop is no part of the pace
        assert seen.accuracy[:3] == early
        run.to_the_end()
    seen = look(10.0)
    assert (seen.status, seen.done, seen.counted) == ("finished", ROUNDS, ROUNDS)


def test_rounds_that_are_dropped_are_not_seen_any_more(copy: Path) -> None:
    """As a resumed run does with lines that its model does not have."""
    folder = RunFolder(copy)
    folder.model.unlink()
    seal(copy)
    follow = Follow(copy)
    assert follow.look().done == ROUNDS
    lines = folder.history.read_text().splitlines(keepends=True)
    folder.history.write_text("".join(lines[:2]) + lines[2][:10])
    seen = follow.look()
    assert seen.done == 2 and seen.rounds == (1, 2) and seen.status == "stopped"
    assert seen.counted == ROUNDS  # what is on record in the ledger stays spent


def test_another_run_in_the_same_folder_is_another_run(copy: Path, small_config: Path) -> None:
    follow = Follow(copy)
    first = follow.look()
    shutil.rmtree(copy)
    config = read(small_config, ["plan.rounds=5"])
    prepare(config, RunFolder(copy))
    second = follow.look()
    assert first.run and second.run and first.run.about.id != second.run.about.id
    assert (second.status, second.done, second.run.plan.rounds) == ("ready", 0, 5)


def test_spending_is_what_the_certificate_says_and_never_less(copy: Path) -> None:
    seen = Follow(copy).look()
    assert seen.run
    rows = classes(seen)
    certificate = seen.run.certificate
    assert [row.name for row in rows] == ["ε 4", "ε 8", "ε 16"]
    for k, row in enumerate(rows):
        mine = seen.run.classes[1] == k
        assert row.clients == mine.sum() and row.spent == certificate.spent[mine].max()
        assert row.left == pytest.approx(row.budget - row.spent) and row.share == row.spent / row.budget
    curve = certificate.spending
    for done in range(ROUNDS + 1):
        at = [k for k, each in enumerate(curve.rounds) if each >= done][0]
        assert (curve.after(done) == curve.epsilon[:, at]).all()
    assert (curve.after(0) == 0).all()


def test_nothing_is_claimed_of_a_run_whose_certificate_does_not_fit(copy: Path) -> None:
    path = RunFolder(copy).population
    path.write_text(path.read_text().replace(",4.0,", ",5.0,"))
    seal(copy)
    seen = Follow(copy).look()
    assert seen.run and seen.run.broken and classes(seen) == ()
    assert not record_of(seen)["certified"] and "not certified" in view_of(seen).parts["marks"]


@pytest.mark.parametrize("line", ["nonsense\n", '{"round": 99}\n', '{"accuracy": 1}\n', "[]\n"])
def test_a_line_that_cannot_be_read_is_said_and_the_rest_is_shown(copy: Path, line: str) -> None:
    follow, history = Follow(copy), RunFolder(copy).history
    assert follow.look().problem == ""
    history.write_text(history.read_text() + line)
    seen = follow.look()
    assert "cannot be read" in seen.problem and seen.done == ROUNDS
    assert "cannot be read" in view_of(seen).parts["missing"] and follow.look().problem


def test_lines_after_one_that_cannot_be_read_are_read(copy: Path) -> None:
    history, follow = RunFolder(copy).history, Follow(copy)
    assert follow.look().done == ROUNDS
    lines = history.read_text().splitlines(keepends=True)
    history.write_text("".join([*lines[:2], "nonsense\n", *lines[2:5]]))
    (copy / "answers.jsonl").write_text(
        '[]\n{"round": 1, "asked": 2, "answered": 1, "refused": {}, "lost": 1}\n'
    )
    seen = follow.look()
    assert seen.done == 5 and seen.rounds == (1, 2, 3, 4, 5) and seen.answers.lost == 1
    assert "cannot be read" in seen.problem


def test_a_lock_in_another_container_is_not_taken_for_none(copy: Path) -> None:
    """Locks of its processes are not seen here: then a run with new rounds is one that is trained."""
    folder = RunFolder(copy)
    folder.model.unlink()
    seal(copy)
    folder.history.touch()
    (copy / ".lock").write_text("another machine or container")
    assert is_locked(copy / ".lock") is None and Follow(copy).look().status == "running"
    os.utime(folder.history, (1.0, 1.0))
    assert Follow(copy).look().status == "stopped"


def test_a_ledger_that_names_a_client_too_many_is_not_read(copy: Path) -> None:
    seen = Follow(copy).look()
    assert seen.run
    path = RunFolder(copy).ledger(seen.run.config)
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE round SET refused = '[999]' WHERE round = 2")
        db.commit()
    assert reader.read_on(path, seen.run.about.id, reader.nothing(len(seen.run.population))) is None


def test_a_folder_that_cannot_be_read_is_said(copy: Path) -> None:
    RunFolder(copy).plan.write_text("{}")
    assert "plan.json is damaged or was changed" in Follow(copy).look().problem
    seal(copy)
    seen = Follow(copy).look()
    assert seen.status == "waiting" and "not a Discretion plan" in seen.problem
    assert "not a Discretion plan" in view_of(seen).parts["lead"]


def test_a_lock_is_seen_without_being_taken(made: Path) -> None:
    lock = made / ".lock"
    assert is_locked(lock) is False
    with alone(RunFolder(made)):
        assert is_locked(lock) is True
        assert Follow(made).look().status == "running"
    assert is_locked(lock) is False


def test_who_refuses_is_counted_by_class(small_config: Path, tmp_path: Path) -> None:
    """A client's budget is withdrawn in mid-run: from then on it refuses every round."""
    config, folder = read(small_config), RunFolder(tmp_path / "run")
    task = prepare(config, folder)
    strict = int(np.flatnonzero(task.population.epsilon == 4)[0])

    def withdraw(now: Any) -> None:
        if now.round == 3:
            with Ledger(folder.ledger(config), task.population) as ledger:
                ledger.change_budget(task.population.client[strict], -3.99)

    execute(task, on_round=withdraw)
    seen = Follow(folder.path).look()
    assert seen.record and seen.record.refusing.tolist() == [strict]
    first, *others = classes(seen)
    assert (first.refusing, first.refusals) == (1, ROUNDS - 3)
    assert all(row.refusing == row.refusals == 0 for row in others)
    assert f"refused {ROUNDS - 3} times" in view_of(seen).parts["missing"]


def test_a_ledger_is_read_on_from_what_is_known(copy: Path) -> None:
    seen = Follow(copy).look()
    assert seen.run and seen.record
    path, run, clients = RunFolder(copy).ledger(seen.run.config), seen.run.about.id, len(seen.run.population)
    state = "UPDATE round SET state = ? WHERE round = ?"
    with closing(sqlite3.connect(path)) as db:
        db.execute(state, ["reserved", ROUNDS])
        db.execute("UPDATE round SET reserved = '2000' WHERE round = 1")
        db.execute("UPDATE round SET committed = '3000' WHERE round = ?", [ROUNDS - 1])
        db.commit()
        known = reader.read_on(path, run, reader.nothing(clients))
        assert known and (known.reserved, known.committed, known.other_runs) == (ROUNDS, ROUNDS - 1, 0)
        assert (known.since, known.until) == ("2000", "3000")
        db.execute(state, ["committed", ROUNDS])
        db.commit()
    again = reader.read_on(path, run, known)
    assert again and again.reserved == again.committed == ROUNDS
    other = reader.read_on(path, "another", reader.nothing(clients))
    assert other and (other.reserved, other.other_runs) == (0, 1)
    assert reader.read_on(copy / "nowhere.sqlite", run, known) is None


def test_what_clients_elsewhere_answer_is_counted(copy: Path) -> None:
    lines = [
        {"round": 1, "asked": 10, "answered": 8, "refused": {"c1": "over <b>budget</b>"}, "lost": 1},
        {"round": 2, "asked": 9, "answered": 9, "refused": {}, "lost": 0},
        {"round": 3, "asked": 9, "answered": 8, "refused": {"c1": "again"}, "lost": 0},
    ]
    (copy / "answers.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    seal(copy)
    seen = Follow(copy).look()
    assert (seen.answers.asked, seen.answers.answered, seen.answers.lost) == (28, 25, 1)
    assert seen.answers.refused == {"c1": (1, "over <b>budget</b>")} and seen.answers.last == (3, 9, 8)
    assert seen.run
    mine = seen.run.classes[1][seen.run.population.client.index("c1")]
    assert [row.declined for row in classes(seen)] == [int(k == mine) for k in range(3)]
    said = view_of(seen).parts["missing"]
    assert "over &lt;b&gt;budget&lt;/b&gt;" in said and "1 of 28 orders were not answered" in said
    told = seen.run.refusal_lines(["over <b>budget</b>", "a\x1b[2Jb" * 100, "over <b>budget</b>"])
    assert told[0] == "Clients whose guards refused: 2. Why: over <b>budget</b>"
    assert told[1].startswith("Clients whose guards refused: 1. Why: a?[2Jb") and len(told[1]) < 350


def test_what_tells_of_secret_coins_is_not_shown(copy: Path) -> None:
    """Neither who was asked in which round, nor how many were, whatever run.json calls the run."""
    keep_secret(copy)
    lines = [
        {"round": 1, "asked": 7, "answered": 5, "refused": {"c1": "asked 3 times in 2 rounds"}, "lost": 1},
        {"round": 3, "asked": 7, "answered": 6, "refused": {"c2": "asked 41 times in 5 rounds"}, "lost": 0},
    ]
    (copy / "answers.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    seal(copy)
    seen = Follow(copy).look()
    assert seen.run and not seen.run.simulated and seen.run.secret
    found, view = record_of(seen), view_of(seen)
    expected = ROUNDS * seen.run.plan.cohort
    assert found["answers"] == {"expected": pytest.approx(expected), "lost": 1}
    assert found["refused"] == {"asked … times in … rounds": 2} and "refused_by" not in found
    assert all(row["declined"] is None for row in found["classes"])
    said = view.parts["missing"]
    assert "orders were answered" not in said and "Since round" not in said and "c1" not in said
    assert f"1 order, where the plan expects {expected:.4g} so far, was not answered" in said
    assert "asked … times in … rounds" in said and "simulation" not in view.parts["marks"]


def test_expected_orders_are_those_of_the_phases_so_far() -> None:
    everyone = np.ones(4)
    phases = [Phase.one_pool(2, rate * everyone, everyone, noise=1.0) for rate in (0.5, 0.25)]
    plan = Plan("idp_fedavg", ("a", "b", "c", "d"), tuple(phases))
    assert [orders_until(plan, done) for done in range(5)] == [0, 2, 4, 5, 6]


def test_the_pace_is_not_told_where_it_tells_who_took_part(copy: Path) -> None:
    """By a clock that is moved by hand."""
    RunFolder(copy).model.unlink()
    seal(copy)
    lines = RunFolder(copy).history.read_text().splitlines(keepends=True)

    def paces() -> tuple[float | None, float | None]:
        now = [0.0]
        follow = Follow(copy, clock=lambda: now[0])
        with alone(RunFolder(copy)):
            for done in (1, 3):
                RunFolder(copy).history.write_text("".join(lines[:done]))
                now[0] += 4.0
                seen = follow.look()
        view, found = view_of(seen), record_of(seen)
        told = view.parts["figures"] + view.parts["lead"]
        assert seen.status == "running" and ("seconds" in told) == (seen.pace is not None)
        return found["seconds_a_round"], found["seconds_left"]

    assert paces() == (2.0, 10.0)
    keep_secret(copy)
    assert paces() == (None, None)


# nobody is disturbed


def test_a_run_ends_as_it_would_unwatched(small_config: Path, tmp_path: Path) -> None:
    """Though its ledger is read all the time."""
    config, folder = read(small_config), RunFolder(tmp_path / "run")
    task = prepare(config, folder)
    ended, looks = threading.Event(), [0]

    def look() -> None:
        known = reader.nothing(len(task.population))
        while not ended.is_set():
            found = reader.read_on(folder.ledger(config), task.name, known, wait=0.0)
            looks[0] += found is not None

    looking = threading.Thread(target=look)
    looking.start()
    try:
        execute(task)
    finally:
        ended.set()
        looking.join()
    seen = Follow(folder.path).look()
    assert looks[0] and seen.status == "finished" and seen.counted == ROUNDS


# words


def test_a_pace_is_said_as_people_do() -> None:
    assert pace(0.05) == "20 rounds a second" and pace(2.5) == "2.5 seconds a round"


def test_what_is_new_is_sent_and_nothing_else(copy: Path) -> None:
    folder = RunFolder(copy)
    folder.model.unlink()
    seal(copy)
    follow = Follow(copy)
    all_ = view_of(follow.look())
    first = all_.since(PageView())
    assert set(first) == {"parts", "charts", "title", "status"} and set(first["parts"]) == set(all_.parts)
    assert view_of(follow.look()).since(all_) == {}
    folder.model.write_bytes(b"")
    changed = view_of(follow.look()).since(all_)
    assert changed["status"] == "finished" and "classes" not in changed["parts"]
    assert "chart-spending" not in changed.get("charts", {})


def test_a_model_that_diverged_and_no_privacy_are_shown(small_config: Path, tmp_path: Path) -> None:
    changes = ["plan.method=fedavg", "train.accept_no_privacy=true", "plan.rounds=2"]
    config, folder = read(small_config, changes), RunFolder(tmp_path / "bare")
    prepare(config, folder)
    folder.history.write_text('{"round": 1, "accuracy": 0.1, "loss": "inf"}\n')
    seen = Follow(folder.path).look()
    view = view_of(seen)
    assert "no privacy" in view.parts["marks"] and "protects nobody" in view.parts["counted"]
    assert "diverged" in view.parts["evaluations"] and "Most used budget" not in view.parts["figures"]
    assert "∞" in view.parts["classes"]
    json.loads(json.dumps(view.since(PageView()), allow_nan=False))


# who was ready


@pytest.mark.parametrize("ready", [0, 9, 20])
def test_a_run_whose_guards_were_not_ready_says_so_first(made: Path, ready: int) -> None:
    names = read_run(made).population.client
    away = (("away", "did not answer"),)
    clients = tuple(Readiness(name, i < ready, () if i < ready else away) for i, name in enumerate(names))
    preflight.write(RunFolder(made), preflight.Preflight(clients, 0.5, len(names)))
    seen = Follow(made).look()
    view, checked = view_of(seen), verify(made)
    said = f"When its guards were last asked, {ready} of 20 clients were ready"
    verdict_of = verdict([checked], "run")[1]
    marks = str(view.parts["marks"])
    if ready == 20:
        assert checked.stopped == record_of(seen)["not_ready"] == "" and "not ready" not in marks
        return
    assert view.parts["lead"].startswith(said) and checked.stopped.startswith(said)
    assert marks.startswith('<span class="badge bad">clients were not ready</span>')
    assert record_of(seen)["not_ready"].startswith(said)
    assert verdict_of.startswith(f"Verdict: verified. {said}") and "the run did not begin" in verdict_of
    shown = CliRunner().invoke(main.app, ["verify", str(made)]).stdout
    assert " ".join(shown.split()).startswith(said)
    shown = CliRunner().invoke(main.app, ["show", str(made)]).stdout
    assert said in " ".join(shown.splitlines()[1:3])
