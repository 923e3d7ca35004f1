"""Commands for guards: a run behind guards is the run in one process, and its folder says who refused."""

import json
import shutil
import ssl
import stat
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import safetensors.numpy

from discretion.accounting import certify
from discretion.errors import ConfigError, InputError, PopulationError
from discretion.flower import cluster, project
from discretion.ledger.heads import last_head
from discretion.ledger.ledger import Ledger
from discretion.plan.population import Population
from discretion.runs import config, history
from discretion.runs.build import plan_of
from discretion.runs.folder import RunFolder
from support.commands import discretion
from support.guard_process import Process
from support.on_record import epsilon_on_record

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
rounds = 4
rate = 0.6
clip = 0.5
[train]
threads = 1
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.toml").write_text(SETTINGS)
    return tmp_path


def test_a_run_goes_on_where_a_guard_is_away(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert discretion("guards", "config.toml", "--out", "guards", "--json") == 0
    files = ("clients.addresses=guards/addresses.toml", "clients.key=guards/operator.key")
    words = [word for file in (*files, "clients.least_answers=0.25") for word in ("-c", file)]
    strict = here / "guards" / "c1" / "GUARD.toml"
    strict.write_text(strict.read_text().replace("rounds = 4", "rounds = 3"))
    guards = [Process(here / "guards" / name / "GUARD.toml").ready() for name in ("c0", "c1")]
    try:
        assert discretion("run", "config.toml", "--out", "far", "--on", "guards", *words) == 0
    finally:
        for guard in guards:
            guard.end()
    far = RunFolder(here / "far")
    assert stat.S_IMODE(far.answers.stat().st_mode) == 0o600  # it tells whose coins came up
    heard = [json.loads(line) for line in far.answers.read_text().splitlines()]
    assert all(0 < each["missing"] <= 1 for each in heard)
    assert [each["round"] for each in heard] == [1, 2, 3, 4]
    assert sum(each["lost"] for each in heard) > 0
    assert {name for each in heard for name in each["refused"]} == {"c1"}
    assert all(0 <= each["asked"] - each["answered"] - each["lost"] <= len(each["refused"]) for each in heard)
    assert all((each["answering"], each["expected"], each["enough"]) == (1, 4, True) for each in heard)
    assert (
        "c1 in far from round" in far.report.read_text()
        and "the policy allows at most 3" in far.report.read_text()
    )
    why = "Clients whose guards refused: 1. Why: phases: this plan has 4, the policy allows at most 3 rounds"
    assert why in capsys.readouterr().err
    assert discretion("show", "far") == 0 and why in " ".join(capsys.readouterr().out.split())


def test_what_was_heard_in_a_round_is_on_record_once(here: Path) -> None:
    """A server that was killed between writing of a round and keeping its model does the round again."""
    assert discretion("guards", "config.toml", "--out", "guards", "--json") == 0
    files = ("clients.addresses=guards/addresses.toml", "clients.key=guards/operator.key")
    words = [word for file in (*files, "clients.least_answers=0.25") for word in ("-c", file)]
    guard = Process(here / "guards" / "c0" / "GUARD.toml").ready()
    far = RunFolder(here / "far")
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("discretion.runs.execute.write_checkpoint", Mock(side_effect=OSError("killed")))
            assert discretion("run", "config.toml", "--out", "far", "--on", "guards", *words, "--json") != 0
        assert len(history.read_answers(far.answers)) == 1
        far.answers.write_text(far.answers.read_text() + '{"round": 2, "as')
        assert discretion("run", "far", "--resume", "--json") == 0
    finally:
        guard.end()
    assert [heard.round for heard in history.read_answers(far.answers)] == [1, 2, 3, 4]
    assert far.answers.read_text().count("\n") == 4


def test_all_guards_there_the_model_is_the_same(here: Path) -> None:
    assert discretion("guards", "config.toml", "--out", "guards", "--json") == 0
    files = ("clients.addresses=guards/addresses.toml", "clients.key=guards/operator.key")
    words = [word for file in files for word in ("-c", file)]
    guards = [Process(here / "guards" / f"c{i}" / "GUARD.toml") for i in range(4)]
    try:
        for guard in guards:
            guard.ready()
        assert discretion("run", "config.toml", "--out", "far", "--on", "guards", *words, "--json") == 0
    finally:
        codes = [guard.end() for guard in guards]
    assert codes == [0] * 4
    with Ledger.existing(here / "far" / "ledger.sqlite") as server:
        for i in range(4):
            with Ledger.existing(here / "guards" / f"c{i}" / "guard" / "ledger.sqlite") as own:
                assert epsilon_on_record(own)[0] == pytest.approx(server.spent()[i], rel=1e-9)
    assert discretion("run", "config.toml", "--out", "near", "--json") == 0
    far, near = (safetensors.numpy.load_file(here / name / "model.safetensors") for name in ("far", "near"))
    for name in near:
        assert far[name] == pytest.approx(near[name], abs=1e-5)
    ids = [json.loads((here / name / "run.json").read_text())["id"] for name in ("far", "near")]
    assert ids[0] == ids[1]


def test_a_guard_that_went_back_in_time_is_noticed_by_server_and_receipt(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Heads are kept beside the operator's key, for all runs; a receipt has the last one of its run."""
    assert discretion("guards", "config.toml", "--out", "guards", "--json") == 0
    shared = ("plan.share=0.4", "clients.least_answers=0.25")
    files = ("clients.addresses=guards/addresses.toml", "clients.key=guards/operator.key")
    words = [word for file in (*files, *shared) for word in ("-c", file)]
    toml = here / "guards" / "c0" / "GUARD.toml"
    folder = toml.parent / "guard"
    toml.write_text(toml.read_text().replace("rounds = 4", "rounds = 9"))

    def last_head_of(run: str) -> object:
        name = json.loads((here / run / "run.json").read_text())["id"]
        return last_head(here / "guards" / "operator.key.heads", name, "c0")

    def run(name: str, *more: str, code: int = 0) -> None:
        guard = Process(toml).ready()
        far = ("--out", name, "--on", "guards")
        assert discretion("run", "config.toml", *far, *words, *more, "--json") == code
        assert guard.end() == 0

    run("first")
    assert stat.S_IMODE((here / "guards" / "operator.key.heads").stat().st_mode) == 0o600
    assert discretion("guard", str(toml), "--backup", "copy.sqlite") == 0
    assert discretion("guard", str(toml), "--backup", "copy.sqlite") == 2  # nothing is replaced
    shutil.copytree(folder, here / "copy")
    run("second", "-c", "train.learning_rate=0.2")
    assert discretion("receipt", "second", "--client", "c0", "--json") == 0
    before = last_head_of("first")
    assert before and before != last_head_of("second")  # a receipt tells nothing of later runs
    shutil.rmtree(folder)
    (here / "copy").rename(folder)
    run("third", "-c", "train.learning_rate=0.3", code=5)
    assert "restored from an older copy" in " ".join(capsys.readouterr().err.split())
    assert not (here / "third").exists()  # noticed before anything was written
    assert discretion("guard", str(toml), "--receipt", "second/receipt-c0.json") == 4
    assert discretion("guard", str(toml), "--recover", "nothing") == 4
    capsys.readouterr()
    assert discretion("guard", str(toml), "--recover", "everything") == 0
    assert "left before: " in (said := capsys.readouterr().err) and ", now 0.0000. Start" in said
    with Ledger.existing(folder / "ledger.sqlite") as own:
        assert own.budget.tolist() == [0.0]
    shutil.rmtree(folder)
    folder.mkdir()
    shutil.copy("copy.sqlite", folder / "ledger.sqlite")
    capsys.readouterr()
    assert discretion("guard", str(toml)) == 4
    assert "copy from a backup" in capsys.readouterr().err


def test_receipts_that_show_nothing_of_this_guard_change_nothing(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert discretion("guards", "config.toml", "--out", "guards", "--json") == 0
    files = ("clients.addresses=guards/addresses.toml", "clients.key=guards/operator.key")
    words = [word for file in (*files, "clients.least_answers=0.25") for word in ("-c", file)]
    tomls = [here / "guards" / name / "GUARD.toml" for name in ("c0", "c1")]
    guards = [Process(toml).ready() for toml in tomls]
    try:
        assert discretion("run", "config.toml", "--out", "far", "--on", "guards", *words, "--json") == 0
    finally:
        for guard in guards:
            guard.end()
    assert discretion("receipt", "far", "--client", "c1", "--json") == 0
    assert discretion("receipt", "far", "--client", "c0", "--json") == 0
    receipt = json.loads((here / "far" / "receipt-c1.json").read_text())["receipt"]
    assert receipt["guard"] and "The clients’ own ledgers." in [
        each["what"] for each in receipt["not_promised"]
    ]
    ledger = here / "guards" / "c0" / "guard" / "ledger.sqlite"
    before = ledger.read_bytes()
    text = (here / "far" / "receipt-c0.json").read_text()
    (here / "changed.json").write_text(text.replace('"client": "c0"', '"client": "c1"'))
    (here / "odd.json").write_text("{x")
    expected = {
        "far/receipt-c1.json": (2, "far/receipt-c1.json is a receipt for c1, but the guard is c0's"),
        "changed.json": (4, "changed.json shows nothing: the signature is not of this receipt"),
        "odd.json": (2, "cannot read odd.json: not a Discretion receipt"),
        "none.json": (2, "cannot read none.json: No such file or directory\n"),
    }
    capsys.readouterr()
    for name, (code, words_of_it) in expected.items():
        assert discretion("guard", str(tomls[0]), "--receipt", name) == code
        assert words_of_it in capsys.readouterr().err
    for more in (("--backup", "b.sqlite"), ("--receipt", "far/receipt-c0.json"), ("--show",)):
        assert discretion("guard", str(tomls[0]), "--recover", "rounds", *more) == 2
        assert f"found {more[0]} and --recover, expected one" in capsys.readouterr().err
    assert discretion("guard", str(tomls[0]), "--backup", "none/b.sqlite") == 2
    assert ledger.read_bytes() == before and not (here / "b.sqlite").exists()


def test_a_guard_says_what_it_would_approve(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert discretion("guards", "config.toml", "--json") == 0
    capsys.readouterr()
    assert discretion("guard", "guards/c1/GUARD.toml", "--show", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["client"] == "c1" and shown["records"] == 30
    assert f'linear = "{shown["models"]["linear"]}"' in Path("guards/c1/GUARD.toml").read_text()
    assert discretion("guards", "config.toml") == 2 and discretion("guard", "none.toml") == 2
    assert discretion("key", "guards/operator.key") == 2
    assert discretion("key", "new.key") == 0 and len(capsys.readouterr().out.strip()) == 64


# clients that are named so that their files would be elsewhere, or one

ODD_NAMES = {
    "../x": "no slash",
    "/tmp/x": "no slash",
    "..": "no dot",
    "C0": "more than case",
    "operator.key": "that of the file operator.key",
}


@pytest.mark.parametrize("command", [("guards",), ("flower", "init")])
@pytest.mark.parametrize("name", [*ODD_NAMES, "nodes"])
def test_no_client_is_named_into_the_files_of_another(
    command: tuple[str, ...], name: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [f"{client},8,1e-3,30" for client in ("c0", name, "c2")]
    (here / "people.csv").write_text("\n".join(["client,epsilon,delta,size", *rows]))
    fine = command == ("guards",) and name == "nodes"  # a folder of Flower's only
    words = ("config.toml", "--out", "out/net", "-c", "population.csv=people.csv")
    assert discretion(*command, *words) == (0 if fine else PopulationError.exit_code)
    assert fine or ODD_NAMES.get(name, "that of the file nodes") in capsys.readouterr().err
    assert fine or sorted(path.name for path in here.iterdir()) == ["config.toml", "people.csv"]


def test_a_damaged_list_of_clients_starts_nothing(tmp_path: Path) -> None:
    cluster.write(tmp_path, ("a", "b"), 12345)
    for text in ("", "[]", '{"port": 1, "clients": ["../x"]}', '{"port": "x", "clients": []}', '{"port": 1}'):
        (tmp_path / "local.json").write_text(text)
        with pytest.raises(InputError, match="local.json is damaged"):
            cluster.up(tmp_path, print)
    assert not (tmp_path / "processes.jsonl").exists()


@pytest.mark.parametrize(("path", "quoted"), [("/a b", "'/a b'"), ("/O'Brien", '"/O\'Brien"')])
def test_paths_are_quoted_for_flower(path: str, quoted: str) -> None:
    assert project.quoted(Path(path)) == quoted


@pytest.mark.parametrize("path", ["/a'\"b", "/a'\\b"])
def test_a_path_that_flower_cannot_take_is_refused(path: str) -> None:
    with pytest.raises(InputError, match="quotes"):
        project.quoted(Path(path))


def test_a_run_without_guards_to_ask_does_not_start(here: Path) -> None:
    assert (
        discretion("run", "config.toml", "--on", "guards", "--out", "far", "--json") == ConfigError.exit_code
    )


# what is started on this machine


@pytest.mark.filterwarnings("ignore:subprocess:ResourceWarning")  # they are meant to go on without us
def test_down_ends_exactly_what_was_started(tmp_path: Path) -> None:
    apart = "import subprocess; subprocess.run(['sleep', '98'], start_new_session=True)"
    cluster._start(tmp_path, "one", ["sleep", "99"])
    cluster._start(tmp_path, "two", [sys.executable, "-c", apart])
    ours = cluster._recorded(tmp_path)
    deadline = time.monotonic() + 60
    while len(cluster.marked(tmp_path)) < 5 or len(cluster.marked(tmp_path, "two")) < 3:  # with supervisors
        assert time.monotonic() < deadline, "what was started did not start in 60 seconds"
        time.sleep(0.05)
    other = subprocess.Popen(["sleep", "97"])
    try:
        with (tmp_path / "processes.jsonl").open("a") as file:  # as if a number had been given away since
            file.write(json.dumps({"name": "three", "pid": other.pid, "since": 1}) + "\n")
        said: list[str] = []
        cluster.down(tmp_path, said.append)
        assert said == ["Ended 2 processes."] and all(
            cluster._state(entry["pid"])[0] == "Z" for entry in ours
        )
        assert cluster.marked(tmp_path) == []
        assert other.poll() is None
        cluster.down(tmp_path, said.append)
        assert said[1] == "Ended 0 processes."
    finally:
        other.kill()
        other.wait()


def test_certificates_and_keys_are_what_tls_and_nodes_need(tmp_path: Path) -> None:
    cluster.write(tmp_path, ("a", "b"), 12345)
    for secret in ("certificates/server.key", "nodes/a/key", "nodes/b/key"):
        assert stat.S_IMODE((tmp_path / secret).stat().st_mode) == 0o600
    assert (tmp_path / "nodes" / "a" / "key.pub").read_text().startswith("ecdsa-sha2-nistp384 ")
    keys = tmp_path / "certificates"
    ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ours.load_cert_chain(keys / "server.pem", keys / "server.key")
    theirs = ssl.create_default_context(cafile=str(keys / "ca.crt"))
    for name, good in (("127.0.0.1", True), ("localhost", True), ("example.org", False)):
        to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = theirs.wrap_bio(to_client, to_server, server_hostname=name)
        server = ours.wrap_bio(to_server, to_client, server_side=True)
        assert agree(client, server) == good


def agree(client: ssl.SSLObject, server: ssl.SSLObject) -> bool:
    for _ in range(5):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError:
                return False
    return client.version() is not None


def test_without_flower_it_says_what_is_missing(here: Path) -> None:
    if find_spec("flwr") is None:
        with pytest.raises(InputError, match="pip install 'discretion\\[flower\\]'"):
            project.tool("flwr")
    with pytest.raises(InputError, match="discretion flower init"):
        cluster.up(here, print)


def test_up_makes_what_it_starts_where_it_is_told_how_many(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started = Mock()
    monkeypatch.setattr(cluster, "up", started)
    assert discretion("flower", "up", "--clients", "3") == 0
    assert started.call_args[0][0] == Path("flower")
    assert sorted(path.parent.name for path in here.glob("flower/*/GUARD.toml")) == ["c0", "c1", "c2"]
    assert config.read(here / "flower.toml").population.clients == 3
    assert discretion("flower", "up", "--clients", "3") == 2
    assert "leave --clients out" in capsys.readouterr().err


FINISHES = """#!/bin/sh
if test "$1" = ls; then echo '{"success": true, "runs": []}'; exit; fi
echo '{"round": 1}' >> far/history.jsonl
echo '{"round": 2, "accuracy": 0.5}' >> far/history.jsonl
touch far/model.safetensors
"""


def test_a_run_on_flower_shows_its_rounds_and_why_it_ended(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tool = here / "flwr"
    monkeypatch.setattr(project, "tool", lambda name: str(here / name))
    tool.write_text("#!/bin/sh\necho no SuperLink is there\nexit 1\n")
    tool.chmod(0o700)
    assert discretion("key", "operator.key") == 0
    words = ("--on", "flower", "-c", "clients.key=operator.key", "--no-report")
    assert discretion("run", "config.toml", "--out", "far", *words) == 2
    assert "flwr ls on the SuperLink 'here' fails" in (said := capsys.readouterr().err)
    assert "continue with --resume.\nno SuperLink is there" in said
    tool.write_text(
        FINISHES.splitlines()[1].join(["#!/bin/sh\n", "\necho the SuperLink went away\nexit 1\n"])
    )
    assert discretion("run", "far", "--resume", "--no-report") == 2
    assert "far/flower/flwr.log ends with:\nthe SuperLink went away" in capsys.readouterr().err
    tool.write_text(FINISHES)
    discretion("run", "far", "--resume", "--no-report")
    assert "round 2 of 4: 50.0%" in capsys.readouterr().err


LISTS = """#!/bin/sh
echo "$@" >> asked
test "$1" != ls || cat listed
"""


def test_earlier_submissions_of_a_run_are_ended_before_it_is_resumed(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed SuperLink starts them again from its database; then two would run one folder."""
    monkeypatch.setattr(project, "tool", lambda name: str(here / name))
    (here / "flwr").write_text(LISTS)
    (here / "flwr").chmod(0o700)
    ours, other = project.name_of(here / "run"), project.name_of(here / "other")
    states = {1: (ours, "running"), 2: (ours, "finished:failed"), 3: (other, "running"), 4: (ours, "pending")}
    runs = [{"run-id": str(n), "fab-name": name, "status": state} for n, (name, state) in states.items()]
    (here / "listed").write_text(json.dumps({"success": True, "runs": runs}))
    said: list[str] = []
    project.end_earlier(here / "run", "link", "", said.append)
    asked = ["ls link --format json", "stop 1 link", "stop 4 link"]
    assert (here / "asked").read_text().splitlines() == asked
    assert said == [
        "The SuperLink still has an earlier submission of this run, 1 (running); ending it.",
        "The SuperLink still has an earlier submission of this run, 4 (pending); ending it.",
    ]
    for unknown in ("no JSON", "[]", '{"runs": [{}]}', '{"runs": [5]}'):
        (here / "listed").write_text(unknown)
        with pytest.raises(InputError, match="flwr ls: expected the JSON of Flower 1.41"):
            project.end_earlier(here / "run", "link", "", said.append)


def test_a_run_is_resumed_when_no_process_has_it_any_more(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(project, "tool", lambda name: str(here / name))
    monkeypatch.setattr(project, "LOOKING", 0.0)
    (here / "flwr").write_text(LISTS)
    (here / "flwr").chmod(0o700)
    (here / "listed").write_text('{"runs": []}')
    held, said = iter([True, True, False]), list[str]()
    monkeypatch.setattr(project, "is_locked", lambda path: next(held))
    project.end_earlier(here / "run", "link", "", said.append)
    assert said == [f"Waiting for the process that still runs {here / 'run'} to end."]
    monkeypatch.setattr(project, "is_locked", lambda path: True)
    monkeypatch.setattr(project, "ENDING", 0.0)
    with pytest.raises(InputError, match="still being run by another process"):
        project.end_earlier(here / "run", "link", "", said.append)


@pytest.mark.parametrize("has_one", [False, True])
def test_nothing_is_promised_against_a_server_without_a_secure_sum(here: Path, has_one: bool) -> None:
    settings = config.read(
        here / "config.toml",
        [
            "plan.method=concert",
            "clients.where=guards",
            f"secure_sum.roster={'roster.json' if has_one else ''}",
        ],
    )
    people = Population.of([8.0, 8.0, 16.0, 16.0], 1e-3, np.full(4, 30))
    certificate = certify(plan_of(settings, people), people)
    assert certificate.promise == ("server" if has_one else "clients")
    seen = certificate.epsilon["server"] / certificate.epsilon["clients"]
    assert (seen == 1).all() if has_one else (seen > 2).all()
