"""The last head of a guard's ledger, in a file beside it: the ledger must have it on record."""

from pathlib import Path

from discretion.errors import PlanError
from discretion.files import sync
from discretion.jsonfile import dump, parse
from discretion.ledger.keys import Head, write_draft

START = "0" * 64  # the hash of a ledger that is about to be made


def witness_file(ledger: str) -> Path:
    return Path(ledger).with_suffix(".head")


def read(ledger: str) -> Head | None:
    """Return the head that was kept last; None if there is no file, or nothing genuine in it."""
    try:
        head = parse(witness_file(ledger).read_text(encoding="ascii"), Head, "head")
    except (FileNotFoundError, UnicodeDecodeError, PlanError):
        return None
    return head if head.is_genuine() else None


def write(ledger: str, head: Head) -> None:
    """Replace the head that is kept.

    Guarantees:
        After a crash or a loss of power the file has the old head or the new one; once this returns, the new.
    """
    path = witness_file(ledger)
    draft = path.with_suffix(".head.new")
    write_draft(draft, dump(head.model_dump()))
    draft.replace(path)
    sync(path.parent)
