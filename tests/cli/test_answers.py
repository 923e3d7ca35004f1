"""Runs on guards in which nobody trains: they stop with a code of their own, and every page says so first."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from discretion.clients.messages import Answer, Differences, Train, decode_order, digest, encode, verified
from discretion.clients.turnout import SECRET
from discretion.errors import AnswersError, ConfigError
from discretion.jsonfile import dump
from discretion.ledger.ledger import Ledger
from discretion.runs import elsewhere
from discretion.runs.config import read
from discretion.runs.history import read_answers
from discretion.runs.preflight import Preflight
from discretion.runs.read import read_run
from discretion.watch.follow import Follow
from discretion.watch.live_page import view_of
from support.commands import Cli, runner
from support.guard_process import Process

SETTINGS = """
seed = 5
[population]
clients = 4
budgets = "groups:8,16"
[data]
name = "digits"
records = 30
[model]
name = "linear"
[plan]
method = "spend_as_you_go"
rounds = 3
rate = 0.6
clip = 0.5
[train]
threads = 1
[clients]
where = "guards"
addresses = "guards/addresses.toml"
key = "guards/operator.key"
"""
NOBODY = "0 of 4 clients were there at round 1"
STOPPED = f"{NOBODY}, too few: the run stopped before the model moved."
REFUSED = f"{STOPPED[:-1]}; the guards of 4 clients refused."


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.toml").write_text(SETTINGS)
    return tmp_path


@pytest.fixture
def gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if guards had ended, or policies had changed, right after all were ready."""
    monkeypatch.setattr(Preflight, "require", lambda found: None)


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    return runner(monkeypatch, capsys)


def test_a_run_without_guards_stops_says_so_first_and_goes_on_when_they_are_there(
    here: Path, cli: Cli, gone: None
) -> None:
    assert cli("guards", "config.toml").code == 0
    done = cli("run", "config.toml", "--out", "run")
    assert done.code == 5 and NOBODY in done.err and "spent" not in done.err.split(NOBODY)[1]
    assert not read_run("run").finished and read_run("run").history.done == 0
    with Ledger.existing(here / "run" / "ledger.sqlite") as ledger:
        assert not ledger.runs and not ledger.spent().any()  # nothing is charged
    with pytest.raises(AnswersError, match="Go on with `discretion run run --resume`"):
        read_run("run").require_answers()
    said_first(cli)
    guards = [Process(here / "guards" / f"c{i}" / "GUARD.toml") for i in range(4)]
    try:
        for guard in guards:
            guard.ready()
        done = cli("run", "run", "--resume")
    finally:
        for guard in guards:
            guard.end()
    assert done.code == 0 and "4 of 4 clients were there when last called." in done.err
    assert (
        "round 3 of 3: 4 of 4 clients were there" in done.err or "3/3 4 of 4 clients were there" in done.err
    )
    assert [heard.there for heard in read_answers(here / "run" / "answers.jsonl")] == [4] * 3
    sent = sum(heard.asked for heard in read_answers(here / "run" / "answers.jsonl"))
    told = f"{sent} of {sent} orders were answered; 4 of 4 clients were there when last called."
    assert sent and cli("verify", "run").out.replace("\n", " ").startswith(told)


def said_first(cli: Cli, stopped: str = STOPPED) -> None:
    """Headline, terminal, show, watch, report and verify begin with who was there."""
    assert cli("show", "run").out.splitlines()[1].startswith(NOBODY)
    assert json.loads(cli("show", "run", "--json").out)["turnout"] == {
        "there": 0,
        "expected": 4,
        "round": 1,
        "enough": False,
        "clients": 4,
    }
    view = view_of(Follow(Path("run")).look())
    assert view.parts["lead"].startswith(stopped)
    assert view.parts["marks"].startswith('<span class="badge bad">0 of 4 clients were there</span>')
    assert cli("report", "run").code == 0
    page = Path("run/report.html").read_text(encoding="utf-8")
    assert f'<p class="lead">{stopped}' in page
    assert '<p class="marks"><span class="badge bad">0 of 4 clients were there</span>' in page
    assert "Who was there in run." in page
    assert json.loads(cli("compare", "run", "--json").out)["methods"][0]["remarks"][0] == f"run: {stopped}"
    assert cli("verify", "run").out.startswith(NOBODY)
    assert json.loads(cli("verify", "run", "--json").out)["answered"] == stopped


def test_a_run_that_all_guards_refuse_stops_and_verify_does_not_say_that_nobody_refused(
    here: Path, cli: Cli, gone: None
) -> None:
    assert cli("guards", "config.toml").code == 0
    policies = [here / "guards" / f"c{i}" / "GUARD.toml" for i in range(4)]
    for policy in policies:
        policy.write_text(policy.read_text().replace("rounds = 3", "rounds = 2"))
    guards = [Process(policy).ready() for policy in policies]
    try:
        done = cli("run", "config.toml", "--out", "run")
    finally:
        for guard in guards:
            guard.end()
    assert done.code == 5 and f"{NOBODY}, and 3 must" in done.err
    assert (
        "4 refused (most often: 'rounds: this plan has 3 or more, [ceilings] of the policy allow" in done.err
    )
    said_first(cli, REFUSED)
    (found,) = [
        each
        for each in json.loads(cli("verify", "run", "--json").out)["findings"]
        if each["what"] == "answers"
    ]
    assert found["holds"] and found["said"] == REFUSED


class Unwilling:
    """Guards that are ready and join, and refuse every order of a round."""

    def __init__(self, addresses: object) -> None:
        pass

    def exchange(self, orders: Sequence[tuple[str, bytes]], timeout: float) -> Iterator[tuple[int, bytes]]:
        for place, (_, signed) in enumerate(orders):
            message = verified(signed).message
            kind, asked = decode_order(message)[0].kind, digest(message)
            body = dump(Differences(differs=[]).model_dump()).encode() if kind == "check" else b""
            refused = Answer(kind="refused", order=asked, reason="not today")
            yield place, encode(refused if kind == "train" else Answer(kind="done", order=asked), body)


@pytest.fixture
def unwilling(here: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli("guards", "config.toml").code == 0
    monkeypatch.setattr(elsewhere, "Sockets", Unwilling)


SECRETLY = ("train.randomness=cryptographic", "plan.rounds=1", "clients.least_answers=0.01")


def test_a_run_with_secret_coins_in_which_nobody_trains_fails_for_the_operator_alone(
    here: Path, cli: Cli, unwilling: None
) -> None:
    """The folder is that of a finished run, as it would be had nobody been asked."""
    words = [word for each in SECRETLY for word in ("-c", each)]
    for number in range(30):  # until coins come up for some, but not for all
        done = cli("run", "config.toml", "--out", f"run{number}", *words)
        run = read_run(f"run{number}")
        assert done.code == (5 if run.orders.sent else 0) or run.orders.sent == 4
        assert run.finished == run.files.report.exists() == (run.orders.sent < 4)
        if 0 < run.orders.sent < 4:
            break
    sent = "1 order was" if run.orders.sent == 1 else f"{run.orders.sent} orders were"
    assert f"nobody trained: {sent} sent and none was answered (most often: 'not today')" in done.err
    assert "do not pass this on" in done.err
    left = 4 - run.orders.sent
    (page,) = [run.files.report.read_text(encoding="utf-8")]
    for told in (page, cli("show", str(run.folder)).out, cli("verify", str(run.folder)).out):
        assert "obody trained" not in told and f"{left} of 4 clients w" in told
        assert SECRET in " ".join(told.split())
    assert cli("run", str(run.folder), "--resume").code == 5  # whoever asks again is told again


def test_a_simulation_in_which_nobody_trains_stops_in_its_first_round_with_an_order(
    here: Path, cli: Cli, unwilling: None
) -> None:
    done = cli(
        "run", "config.toml", "--out", "run", "-c", "clients.least_answers=0.01", "-c", "plan.rate=0.2"
    )
    run = read_run("run")
    assert done.code == 5 and not run.finished and run.orders.sent
    told = "Nobody trained: 1 order was sent and none was answered; "
    assert run.orders.sent == 1 and run.answered.startswith(told)
    assert cli("verify", "run").out.startswith(told[:-1])
    assert cli("show", "run").out.splitlines()[1].startswith(told[:-1])
    assert "nobody trained" in view_of(Follow(Path("run")).look()).parts["marks"]
    assert cli("report", "run").code == 0
    page = Path("run/report.html").read_text(encoding="utf-8")
    assert f'<p class="lead">{told}' in page and '<span class="badge bad">nobody trained</span>' in page


class Tiring(Unwilling):
    """Guards that train in the first round, with updates of nothing, and then refuse everything."""

    tired = False

    def exchange(self, orders: Sequence[tuple[str, bytes]], timeout: float) -> Iterator[tuple[int, bytes]]:
        for place, (_, signed) in enumerate(orders):
            message = verified(signed).message
            order, body = decode_order(message)
            type(self).tired |= isinstance(order, Train) and order.round > 1
            found = bytes(len(body)) if isinstance(order, Train) else b""
            found = dump(Differences(differs=[]).model_dump()).encode() if order.kind == "check" else found
            refused = Answer(kind="refused", order=digest(message), reason="tired")
            done = Answer(kind="done", order=digest(message))
            yield place, encode(refused) if self.tired else encode(done, found)


def test_a_run_that_is_resumed_without_guards_says_what_was_done_and_charged_before(
    here: Path, cli: Cli, unwilling: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elsewhere, "Sockets", Tiring)
    assert cli("run", "config.toml", "--out", "run", "-c", "clients.least_answers=1").code == 5
    before = read_run("run").history.done
    assert before in (1, 2)
    done = cli("run", "run", "--resume")
    told = f"Nothing more was joined or charged; {before + 1} rounds of the run are charged already"
    assert done.code == 5 and told in " ".join(done.err.split())
    assert "0/3" not in done.err and f"{before}/3" in done.err
    verified = " ".join(cli("verify", "run").out.split())
    nist = cli("export", "run", "--to", "nist", "--out", "nist.md")
    assert nist.code == 0
    for told in (verified, Path("nist.md").read_text(encoding="utf-8")):
        assert f"{before} of 3 rounds " in told and f" done, and {before + 1} are charged" in told
    line = Path("run/answers.jsonl")
    line.write_text(line.read_text().replace('"enough": false', '"enough": true'))
    changed = cli("verify", "run")
    assert changed.code == 4 and "answers.jsonl is damaged or was changed" in changed.err


@pytest.mark.parametrize("share", ["0", "1.01", "nan", '"all"'])
def test_the_least_share_is_one(here: Path, share: str) -> None:
    assert read(here / "config.toml").clients.least_answers == 0.51
    with pytest.raises(ConfigError, match="clients.least_answers"):
        read(here / "config.toml", [f"clients.least_answers={share}"])
