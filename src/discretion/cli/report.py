"""Commands on run folders: compare, report, verify, receipt."""

import itertools
from pathlib import Path
from typing import Annotated

from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text
from typer import Argument, Option

from discretion.audit import receipts, statements
from discretion.audit import verify as second_count
from discretion.audit.verdicts import verdict
from discretion.cli import Json, output
from discretion.clients.messages import read_key
from discretion.errors import BudgetError, InputError, LedgerError, MessageError, UnverifiedError
from discretion.files import write_safely
from discretion.report import numbers, receipt_page, write
from discretion.report.page_check import verify_page
from discretion.runs.folder import RunFolder
from discretion.runs.read import read_run

Runs = Annotated[list[Path], Argument(help="Run folders, or folders of run folders.")]


def compare(
    runs: Runs,
    out: Annotated[Path | None, Option("--out", "-o", help="Write a page on them here, too.")] = None,
    json_: Json = False,
) -> None:
    """Show several runs in one table: accuracy, and what it cost whom.

    Seeds of one setting are averaged. Runs on other data, for other clients or budgets, or with a promise
    against another adversary are marked and kept apart.

    Examples: `discretion compare runs/demo`, `discretion compare A B C --out comparison.html`
    """
    output.compare_runs(_runs_in(runs), out, None, json_, {})


def report(
    runs: Runs,
    out: Annotated[Path | None, Option("--out", "-o", help="The HTML file to write.")] = None,
    class_accuracy: Annotated[
        bool,
        Option(
            "--class-accuracy",
            help="Show accuracy on each budget class's own records: not private, for simulations only.",
        ),
    ] = False,
    records: Annotated[
        bool,
        Option(
            "--records/--no-records",
            help="Hold plan, certificate, population and ledger rows, for `discretion verify report.html`.",
        ),
    ] = True,
    json_: Json = False,
) -> None:
    """Write report.html, one file that needs nothing else, from what is in the run folders.

    Example: `discretion report runs/first`
    """
    path = out or runs[0] / "report.html"
    write(_runs_in(runs), path, class_accuracy=class_accuracy, records=records)
    output.answer(json_, {"report": str(path)}, note=output.wrote(path))


def verify(
    run: Annotated[Path, Argument(metavar="RUN|REPORT", help="A run folder, or a report.html.")],
    every: Annotated[
        bool, Option("--every", help="Count every client again, however long that takes.")
    ] = False,
    data: Annotated[
        bool, Option("--data", help="Load the data, too, to see that it is what the run was made from.")
    ] = False,
    json_: Json = False,
) -> None:
    """Count again what a run promised and spent, by a second accountant, and compare all of its records.

    Every entry of the certificate is computed anew, and every row of the ledger made anew from the plan.
    Epsilons are counted again by Google's dp-accounting, from plan and ledger: of each kind of clients, or,
    where there are more than a hundred, of those that use most of their budgets and of the worst client of
    each budget class (all of them with --every). A report holds the records that this needs: it is verified
    alone, rendered again from them and compared, and the verdict names the checks that need the run folder.
    The last sentence is the verdict. Exits with 3 where a budget is not kept, with 4 where records contradict
    each other or a report is not what they make of it, with 7 where nothing is contradicted
    but not everything could be judged. `discretion check` proves a plan before it is run.

    Examples: `discretion verify runs/first`, `discretion verify report.html`
    """
    if run.is_dir():
        found = [second_count.verify(run, every=every, data=data)]
    elif data:
        raise InputError("found a report with --data: the data are compared with those of a run folder")
    else:
        found = verify_page(run, every=every)
    holds, said = verdict(found, str(run))
    records = [second_count.to_record(each) for each in found]
    record = records[0] if run.is_dir() else {"page": str(run), "runs": records}
    shown: list[RenderableType] = [said for each in found for said in (each.stopped, each.answered) if said]
    shown += itertools.chain(*map(_tables, found))
    shown += [Text(output.printable(said))] if holds else []  # otherwise the error says it
    output.answer(json_, {"verified": holds, "verdict": said} | record, *shown)
    if holds:
        return
    if any(each.whole is False for each in found):
        raise LedgerError(said)
    raise BudgetError(said) if holds is False else UnverifiedError(said)


def _tables(found: second_count.Verification) -> tuple[Table, Table]:
    """Return epsilons by budget class, and every finding."""
    figures = output.right("clients", "certificate", "plan, again", "ledger, again", "left")
    table = Table("budget", *figures, title=f"epsilon, counted again: {found.accountant}")
    for each in found.classes:
        spent = map(numbers.epsilon, (each.certified, each.planned, each.recorded))
        table.add_row(each.name, f"{each.clients}", *spent, _left(each))
    if found.tolerance:
        table.caption = f"again: pessimistic, by up to {found.tolerance:g} for the largest budget"
    if found.counted < found.kinds:
        of = f"{found.counted} of {found.kinds} kinds of clients; all of them with --every"
        table.caption = f"{table.caption}\n{of}" if table.caption else of
    findings = Table(show_header=False)
    for item in (*found.records, *found.budgets):
        findings.add_row(item.what, output.HOLDS[item.holds], escape(output.printable(item.said)))
    return table, findings


def _left(mine: second_count.Counted) -> str:
    return "unknown" if mine.left is None else numbers.rounded_down(mine.left)


def receipt(
    run: Annotated[Path | None, Argument(metavar="RUN", help="A run folder.")] = None,
    client: Annotated[str | None, Option(help="Whose receipt to make.")] = None,
    key: Annotated[
        Path | None, Option(help="The operator's key, as `discretion key` writes it; else the run's.")
    ] = None,
    out: Annotated[
        Path | None, Option("--out", "-o", help="The folder to write to; else the run folder.")
    ] = None,
    to_verify: Annotated[
        Path | None, Option("--verify", help="Verify this receipt, HTML or JSON, instead.")
    ] = None,
    operator: Annotated[str, Option(help="With --verify: the public key that must have signed.")] = "",
    json_: Json = False,
) -> None:
    """Make a signed receipt for one client, as HTML and JSON; or verify one.

    It has the client's budget, what each round cost it, what it is promised, and digests of plan and
    certificate. With a run folder, verifying also compares the receipt with what is there now. It exits
    with 4 where something was changed or is contradicted, with 7 where --operator does not say whose key
    must have signed.

    Examples: `discretion receipt runs/first --client c7 --key operator.key`,
    `discretion receipt --verify receipt-c7.html --operator 7f3c…`
    """
    if to_verify is not None:
        return _verify_receipt(to_verify, operator, run, json_)
    if run is None or client is None:
        raise InputError("say which run and whose receipt: discretion receipt RUN --client NAME")
    known = read_run(run).config.clients.key
    if key is None and not known:
        raise InputError(
            "a receipt is signed: make a key with `discretion key operator.key`, give it as --key"
        )
    signed = receipts.issue(run, client, read_key(key or Path(known)))
    place = out or run
    place.mkdir(parents=True, exist_ok=True)
    name = f"receipt-{client}"  # a name of the population, so a name that a file can have
    page, plain = place / f"{name}.html", place / f"{name}.json"
    write_safely(page, receipt_page.render(signed).encode())
    write_safely(plain, receipts.to_json(signed).encode())
    record = {"html": str(page), "json": str(plain), **signed.model_dump()}
    output.answer(json_, record, note=output.wrote(page, plain.name))


def _verify_receipt(path: Path, operator: str, run: Path | None, as_json: bool) -> None:
    try:
        signed = receipts.read(path, receipt_page.render)
        receipts.check(signed, operator)
    except MessageError as problem:
        raise LedgerError(f"NOT VERIFIED: {problem}") from None
    odd = receipts.differences(signed, run) if run else []
    if as_json:
        known = "known" if operator else "unknown"  # whoever has a key can sign a receipt
        record = {"verified": bool(operator) and not odd, "operator": known, "differs": odd}
        output.print_json(record | signed.model_dump())
    else:
        said = signed.receipt
        if said.guard_refused:
            output.say(said.guard_refused)
        output.say(
            f"Signed by {signed.key}, made {said.made}. Client {said.client}: epsilon "
            f"{numbers.epsilon(said.life)} of {said.epsilon:.5g} spent, at delta {said.delta:g}"
            f"{f', {statements.ALONE}' if said.alone else ''}."
        )
        if said.attacks and said.attacks.contradicted:
            output.say(said.attacks.said)
    if odd:
        raise LedgerError(f"{run} says otherwise than the receipt about: {', '.join(odd)}")
    if not operator:
        raise UnverifiedError(
            "NOT VERIFIED: nothing in it was changed since it was signed, but anybody can sign, and whose "
            "key this is, is unknown. Give the key that the operator gave you as --operator."
        )
    if not as_json:
        output.say("Verified: this is the key that was asked for.")


def _runs_in(paths: list[Path]) -> list[Path]:
    found: list[Path] = []
    for path in paths:
        whole = RunFolder(path).about.exists()
        inside = [path] if whole else sorted(about.parent for about in path.glob("*/run.json"))
        if not inside:
            raise InputError(f"there is no run in {path}")
        found += inside
    return found
