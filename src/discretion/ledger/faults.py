"""Faults of a ledger's file, in words, from SQLite's errors."""

import errno
import sqlite3

from discretion.errors import StorageError

# SQLite's; of the operating system, with the key's file; where SQLite quotes a damaged name
PROBLEMS = (sqlite3.Error, OSError, UnicodeDecodeError)
DAMAGED, IN_USE = "its ledger is damaged", "its ledger is in use by another process"
RESTORE = (
    "restore a copy of it; a guard's owner who has none moves the file away, and says `discretion guard "
    "GUARD.toml --recover everything`; docs/operating.md says how"
)
FAULTS = {
    sqlite3.SQLITE_FULL: "its disk is full",
    sqlite3.SQLITE_IOERR: "its disk cannot be read or written",
    sqlite3.SQLITE_CORRUPT: DAMAGED,
    sqlite3.SQLITE_NOTADB: DAMAGED,
    sqlite3.SQLITE_BUSY: IN_USE,
    sqlite3.SQLITE_LOCKED: IN_USE,
    sqlite3.SQLITE_READONLY: "its ledger cannot be written",
    sqlite3.SQLITE_CANTOPEN: "its ledger cannot be opened",
}


def storage_error(name: str, problem: Exception, damaged: bool = False) -> StorageError:
    """Return the error to raise for a problem with a ledger's file.

    `damaged`: whether a problem of no known kind means that the file is damaged.
    """
    code = getattr(problem, "sqlite_errorcode", 0) & 0xFF  # the rest says which kind of it
    if isinstance(problem, OSError):
        code = sqlite3.SQLITE_FULL if problem.errno == errno.ENOSPC else sqlite3.SQLITE_IOERR
    unknown = DAMAGED if damaged or isinstance(problem, UnicodeDecodeError) else "its ledger cannot be used"
    fault = FAULTS.get(code, unknown)
    if fault == DAMAGED:
        return damage(name, str(problem) or type(problem).__name__)
    return StorageError(f"the ledger {name} cannot be used now: {problem}", fault)


def damage(name: str, found: str) -> StorageError:
    text = " ".join(found.split())
    return StorageError(
        f"the ledger {name} is damaged: {text}. Nothing in it is believed: {RESTORE}.", DAMAGED
    )
