"""Verification of a report by the records that it holds, from which it is rendered again and compared."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from discretion.accounting import Accountant, Reference
from discretion.audit.enclosed import UNSEALED, EnclosedRun, Page, read_page
from discretion.audit.ledger_check import Finding, finding
from discretion.audit.verify import Verification, examine
from discretion.errors import FolderError
from discretion.ledger.excerpt import as_planned, reopen
from discretion.ledger.reader import DAMAGED, LedgerReader
from discretion.report import render

OVER_ALL = "budgets, over all runs"
DIGEST = re.compile(r'"sha256": "[0-9a-f]{64}"')
AROUND = 40  # characters before and after the first difference
CHAIN = "ledger, row by row"
ELSEWHERE = ("config.toml", "history", "answers of guards", CHAIN, "checkpoint", "data")


def verify_page(path: Path, second: Accountant | None = None, every: bool = False) -> list[Verification]:
    """Recount every epsilon of a report's runs from the records in it; return the findings on each run.

    Guarantees:
        A page whose text, style or script is not what this version of Discretion writes of the records in it
        is contradicted, whatever its digest says. A page by another version is not said to be verified.
        Every number of plan, certificate, population and ledger that is enclosed is compared or counted
        again, whatever the page shows.
        Where other runs spend from the same budgets, those are not said to be kept.
    """
    page = read_page(path)
    written = _compared(page)
    return [_verified(run, [written, *_of_files(run)], second or Reference(), every) for run in page.runs]


def _verified(run: EnclosedRun, more: Sequence[Finding], second: Accountant, every: bool) -> Verification:
    found = examine(run, _ledger(run), second, every, more, ELSEWHERE)
    known = run.enclosed.ledger
    if known is None or not known.other_runs:
        return found
    said = f"{known.other_runs} more runs spend from the same budgets: only the ledger tells"
    unknown = Finding(OVER_ALL, None, said)
    budgets = [each for each in found.budgets if each.what != OVER_ALL]
    classes = tuple(replace(each, life=None, left=None) for each in found.classes)
    return replace(found, budgets=(*budgets, unknown), classes=classes)


def _compared(page: Page) -> Finding:
    """Find whether a page is in every character what its records make of it."""
    theirs, ours = page.records.discretion, version("discretion")
    if not page.sealed:
        return Finding("page", False, "it was changed after it was written: its digest does not fit")
    if theirs != ours:
        said = (
            f"Discretion {theirs} wrote it, and only that can write it again: what it shows was not compared"
        )
        return Finding("page", None, f"{said} with its records. This is {ours}")
    try:
        again = render(
            page.runs, page.records.model_copy(update={"sha256": UNSEALED}), Path(page.records.page)
        )
    except Exception as problem:  # the records may be anybody's, and say anything
        return Finding("page", False, f"its records make no page: {problem}")
    said = f"in every character what Discretion {ours} writes of the records in it"
    if again == page.text:
        return Finding("page", True, said)
    return Finding(
        "page", False, f"not what Discretion {ours} writes of the records in it: {_first(page.text, again)}"
    )


def _first(found: str, expected: str) -> str:
    """Return the first words in which two pages differ; their digests do in any case."""
    one, other = (DIGEST.sub("", text) for text in (found, expected))
    same = next(
        (k for k, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )
    start = max(same - AROUND, 0)
    shown = (" ".join(text[start : same + AROUND].split()) for text in (one, other))
    return "it has “{}”, not “{}”".format(*shown)


def _of_files(run: EnclosedRun) -> Iterator[Finding]:
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
