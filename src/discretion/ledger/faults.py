"""Faults of a ledger's file, in words, from SQLite's errors."""

import sqlite3

from discretion.errors import StorageError

PROBLEMS = (sqlite3.Error, UnicodeDecodeError)  # the latter where SQLite quotes a damaged name
DAMAGED, IN_USE = "its ledger is damaged", "its ledger is in use by another process"
RESTORE = "restore a copy of it; docs/operating.md says how, and what a guard's owner does then"
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
