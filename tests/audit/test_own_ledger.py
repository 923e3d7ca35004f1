"""Budgets in a ledger of a run's own: nothing speaks of a life, or of no other runs, that it cannot see."""

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from discretion.audit import cautions, receipts, statements
from discretion.audit.verdicts import decided, verdict
from discretion.audit.verify import verify
from discretion.export import nist
from discretion.export import opendp_registry as registry
from discretion.report import receipt_page, write
from discretion.report.page_check import verify_page
from discretion.runs.read import Run, read_run
from discretion.watch.follow import Follow
from discretion.watch.live_page import view_of
from discretion.watch.state import record_of, warnings
from support.run_folders import make_run, trained

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))


def deployed(path: Path, ledger: str = "") -> Run:
    """Return a finished deployment with the ledger that its settings name."""
    shared = [f"ledger={ledger}"] if ledger else []
    return read_run(
        trained(path, "plan.rounds=3", "plan.share=0.5", "train.randomness=cryptographic", *shared)
    )


def told(run: Run) -> dict[str, str]:
    """Return what each output says of a run."""
    page = run.folder / "report.html"
    write([run], page)
    seen = Follow(run.folder).look()
    return {
        "nist": nist.to_markdown(run),
        "registry": registry.to_yaml(registry.record_of(run)),
        "what decides": decided([run])[0],
        "verify": verdict([verify(run)], "run")[1],
        "verify report": verdict(verify_page(page), "page")[1],
        "receipt": receipt_page.render(receipts.issue(run.folder, "c4", KEY)),
        "live page": str(view_of(seen).parts["counted"]),
        "report": page.read_text(encoding="utf-8"),
    }


def test_a_ledger_of_its_own_is_never_said_to_count_a_life(tmp_path: Path) -> None:
    run = deployed(tmp_path / "run")
    for where, text in told(run).items():
        assert statements.ALONE in text, where
        for wrong in ("for life", "0 other runs", "0 more runs"):
            assert wrong not in text, where
    assert record_of(Follow(run.folder).look())["other_runs_on_these_budgets"] is None


def test_a_shared_ledger_counts_all_runs(tmp_path: Path) -> None:
    first = deployed(tmp_path / "first", str(tmp_path / "ledger.sqlite"))
    for where, text in told(first).items():
        assert statements.ALONE not in text, where
    assert "for life, over all runs that share it; so far 0 other runs are on it" in nist.to_markdown(first)
    assert record_of(Follow(first.folder).look())["other_runs_on_these_budgets"] == 0
    second = deployed(tmp_path / "second", str(tmp_path / "ledger.sqlite"))
    assert "so far 1 other run is on it" in nist.to_markdown(second)
    assert "beside 1 more" in decided([second])[0]


@pytest.mark.parametrize("shared", [True, False])
def test_a_deployment_with_a_ledger_of_its_own_is_warned_of(tmp_path: Path, shared: bool) -> None:
    run = deployed(tmp_path / "run", str(tmp_path / "ledger.sqlite") if shared else "")
    found = [each for each in cautions.of_run(run) if each.kind == "ledger"]
    assert [each for each in warnings(Follow(run.folder).look()) if each.kind == "ledger"] == found
    assert bool(found) != shared
    for each in found:
        assert 'ledger = ""' in each.found and 'Set ledger = "ledger.sqlite"' in each.change
    assert cautions.of_ledger(read_run(make_run(tmp_path / "simulation"))) == ()
