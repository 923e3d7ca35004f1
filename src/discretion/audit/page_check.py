"""Verification of a report by the records that it holds: the checks of `verify` that need no run folder."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from discretion.accounting import Accountant, Reference
from discretion.audit.enclosed import EnclosedRun, Page, read_page
from discretion.audit.ledger_check import Finding, finding
from discretion.audit.verify import Verification, examine
from discretion.errors import FolderError
from discretion.ledger.excerpt import as_planned, reopen
from discretion.ledger.reader import DAMAGED, LedgerReader

CHAIN = "ledger, row by row"
ELSEWHERE = ("config.toml", "history", "answers of guards", CHAIN, "checkpoint", "data")


def verify_page(path: Path, second: Accountant | None = None, every: bool = False) -> list[Verification]:
    """Recount every epsilon of a report's runs from the records in it; return the findings on each run.

    Guarantees:
        A changed character of the page is found, unless its digest was written anew, too.
        Every number of plan, certificate, population and ledger that is enclosed is compared or counted
        again, whatever the page shows.
        Where other runs spend from the same budgets, those are not said to be kept.
    """
    page = read_page(path)
    return [_verified(page, run, second or Reference(), every) for run in page.runs]


def _verified(page: Page, run: EnclosedRun, second: Accountant, every: bool) -> Verification:
    found = examine(run, _ledger(run), second, every, list(_of_page(page, run)), ELSEWHERE)
    known = run.enclosed.ledger
    if known is None or not known.other_runs:
        return found
    said = f"{known.other_runs} more runs spend from the same budgets: only the ledger tells"
    unknown = Finding("budgets, over all runs", None, said)
    classes = tuple(replace(each, life=None) for each in found.classes)
    return replace(found, budgets=(*found.budgets, unknown), classes=classes)


def _of_page(page: Page, run: EnclosedRun) -> Iterator[Finding]:
    said = f"in every character as Discretion {page.discretion} wrote it"
    yield finding(
        "page", page.unchanged, said, "it was changed after it was written: its digest does not fit"
    )
    said = "population, plan, certificate and run.json have the digests of the manifest"
    odd = ", ".join(run.damaged)
    yield finding("files", not odd, said, f"not those of the manifest: {odd}")
    known = run.enclosed.ledger
    if known is not None and known.run is not None:
        fits = as_planned(known, run.about.id, run.plan)
        said = "the ledger’s rows were those that the plan makes"
        yield finding(
            "plan on record, by digest", fits, said, "the ledger had other rows than the plan makes"
        )


def _ledger(run: EnclosedRun) -> LedgerReader | None:
    known = run.enclosed.ledger
    try:
        return None if known is None else reopen(known, run.about.id, run.plan)
    except (*DAMAGED, OverflowError) as problem:
        raise FolderError(f"the ledger’s rows in the page are none of a ledger: {problem}") from None
