"""The server's ledger beside the guards': both shown, why they differ, no ledger changed, true exit codes."""

import json
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from discretion.errors import InputError
from discretion.ledger.ledger import Ledger
from discretion.runs.read import Run, read_run
from discretion.runs.reconcile import compared
from support.commands import Cli, Done
from support.hospitals import NAMES, guarded, write_hospitals
from support.run_folders import trained


@pytest.fixture
def after(discretion: Cli) -> Callable[[], Done]:
    """Three of four hospitals trained; h3 was away."""
    write_hospitals(Path(), ["ill", "well"])
    with guarded(Path(), "h0", "h1", "h2"):
        assert discretion("run", "config.toml", "--out", "run").code == 0
    return lambda: discretion("ledger", "run", "--reconcile", "--json")


def rows(done: Done) -> dict[str, dict[str, object]]:
    return {row["client"]: row for row in json.loads(done.out)["clients"]}


def ledgers() -> list[bytes]:
    paths = [Path("run/ledger.sqlite"), *(Path(name) / "guard" / "ledger.sqlite" for name in NAMES)]
    return [path.read_bytes() for path in paths if path.exists()]


def test_both_ledgers_are_shown_and_none_is_changed(after: Callable[[], Done], discretion: Cli) -> None:
    with guarded(Path(), *NAMES):  # h3 makes its ledger
        before = ledgers()
        done = after()
        shown = discretion("ledger", "run", "--reconcile")
        assert ledgers() == before
    assert done.code == 0 and shown.code == 0
    found = rows(done)
    assert found["h0"]["why"] == "both say the same"
    assert found["h0"]["guard"] == pytest.approx(found["h0"]["server"], rel=1e-9)
    assert found["h3"]["guard"] == 0 and found["h3"]["server"] == found["h0"]["server"]
    assert "never joined, and charged nothing: it was away" in str(found["h3"]["why"])
    assert "both say the same" in " ".join(shown.out.split()) and "no ledger was changed" in shown.err
    assert stat.S_IMODE(Path("run/statements.json").stat().st_mode) == 0o600
    assert discretion("verify", "run").code == 0  # the folder is still what it was


def test_a_guard_that_is_away_leaves_its_ledger_unknown(after: Callable[[], Done]) -> None:
    with guarded(Path(), "h0", "h1", "h2"):
        done = after()
    assert done.code == 7 and "1 of 4 guards stated nothing, first that of h3" in done.err
    assert rows(done)["h3"]["guard"] is None and rows(done)["h3"]["why"] == "it did not answer"


def test_a_guard_that_refused_charged_nothing_where_the_server_charged_all(discretion: Cli) -> None:
    write_hospitals(Path(), ["ill", "well"])
    policy = Path("h2/GUARD.toml")
    policy.write_text(policy.read_text().replace("size = 60", "size = 59"))
    with guarded(Path(), *NAMES):
        assert discretion("run", "config.toml", "--out", "run").code == 0
        assert "discretion ledger RUN --reconcile" in discretion("verify", "run").out.replace("\n", " ")
        done = discretion("ledger", "run", "--reconcile", "--json")
    found = rows(done)["h2"]
    assert done.code == 0 and found["guard"] == 0 and float(str(found["server"])) > 7
    assert "it refused to join, and charged nothing: the order counts this client" in str(found["why"])


def test_a_guard_that_is_ahead_contradicts_the_server(after: Callable[[], Done]) -> None:
    """Its ledger has rounds that the server's, made anew, has not."""
    Path("run/ledger.sqlite").unlink()
    with guarded(Path(), *NAMES):
        done = after()
    assert done.code == 4 and "3 of 4 clients, first h0: it is ahead" in done.err


def test_statements_on_another_run_are_not_compared(after: Callable[[], Done]) -> None:
    with guarded(Path(), *NAMES):
        assert after().code == 0
    path = Path("run/statements.json")
    path.write_text(path.read_text().replace(read_run("run").about.id, "another", 1))
    with pytest.raises(InputError, match="is on another run: move it away, and ask again"):
        compared(read_run("run"))


def test_a_run_that_is_open_at_a_guard_is_told_by_the_whole_plan_where_coins_are_secret(
    discretion: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_hospitals(Path(), ["ill", "well"])
    monkeypatch.setattr("discretion.clients.remote.RemoteClients.finish", lambda self, rounds: {})
    with guarded(Path(), *NAMES):
        assert discretion("run", "config.toml", "--out", "run", "-c", "plan.rate=0.5").code == 0
        done = discretion("ledger", "run", "--reconcile", "--json")
    assert done.code == 0
    made = read_run("run")
    open_ = compared(made)
    assert all(row.guard is not None for row in open_)  # a simulation: its coins are no secret
    monkeypatch.setattr(Run, "secret", property(lambda run: True))
    for row in compared(replace(made)):
        assert row.guard is None and "coins are secret" in row.why
        assert row.by_operator == pytest.approx(row.server, rel=1e-6)


def test_what_cannot_be_reconciled_is_said(discretion: Cli, tmp_path: Path) -> None:
    trained(tmp_path / "here")
    done = discretion("ledger", "here", "--reconcile")
    assert done.code == 2 and "there is one ledger, and nobody to ask" in done.err
    assert discretion("ledger", "here", "--reconcile", "--client", "c1").code == 2
    assert not (tmp_path / "here" / "statements.json").exists()
    with Ledger.existing(tmp_path / "here" / "ledger.sqlite") as ledger:
        assert ledger.runs
