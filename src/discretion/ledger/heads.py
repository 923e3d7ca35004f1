"""An operator's file of guards' identity keys, and of the heads that their ledgers had when they answered."""

import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

from discretion.errors import LedgerError
from discretion.jsonfile import dump, parse
from discretion.ledger.keys import Head

MOST_HEADS = 32  # heads of one client that are sent with an order


TABLES = """
CREATE TABLE IF NOT EXISTS head (client TEXT, head TEXT);
CREATE TABLE IF NOT EXISTS identity (client TEXT PRIMARY KEY, key TEXT);
CREATE TABLE IF NOT EXISTS last (run TEXT, client TEXT, head TEXT, PRIMARY KEY (run, client));
"""


class KnownHeads:
    """Heads by client, kept in a file if there is a path: one for each answer that no later one followed.

    A guard that answers an order has the heads that came with it on record. So its new head replaces them.
    Several processes may use the file: each replaces only the heads that it has sent. For receipts, the file
    has the last head of each run as well.

    Guarantees:
        The identity key that first answered for a client is the only one that ever answers for it.
    """

    def __init__(self, path: Path | None = None, run: str = "") -> None:
        self._path, self._run = path, run
        self._known: dict[str, list[Head]] = {}
        self._identities: dict[str, str] = {}
        if path is not None:
            with self._open() as db:
                db.executescript(TABLES)
                for client, text in db.execute("SELECT client, head FROM head ORDER BY rowid"):
                    self._known.setdefault(client, []).append(self._genuine(text, client))
                self._identities |= dict(db.execute("SELECT client, key FROM identity"))

    def _genuine(self, text: str, client: str) -> Head:
        """Return a head; raise where its signature does not fit: guards would not look at it."""
        head = parse(text, Head, "head")
        if not head.is_genuine():
            raise LedgerError(
                f"{self._path}, in which guards' heads are kept, is damaged: the head of client {client} is "
                "not one that its key signed. Restore a copy."
            )
        return head

    def of(self, client: str) -> list[Head]:
        return self._known.get(client, [])[-MOST_HEADS:]

    def identity(self, client: str) -> str | None:
        """Return the public key that answered for a client first; None if none did."""
        return self._identities.get(client)

    def meet(self, new: Mapping[str, str]) -> None:
        """Take in the identity keys of clients that answered for the first time."""
        new = {client: key for client, key in new.items() if client not in self._identities}
        self._identities |= new
        if self._path is not None and new:
            with self._open() as db:
                db.executemany("INSERT OR IGNORE INTO identity VALUES (?, ?)", new.items())

    def told(self, run: str, client: str) -> Head | None:
        """Return the last head that a client's guard told in a run; None if that is not in the file."""
        query = "SELECT head FROM last WHERE run = ? AND client = ?"
        with self._open() as db:
            rows = db.execute(query, [run, client]).fetchall()
        return parse(rows[0][0], Head, "head") if rows else None

    def learn(self, learned: list[tuple[str, list[Head], Head]]) -> None:
        """Take in answers: the client of each, the heads that were sent to it, and the one that came back.

        A head that its key did not sign is none.
        """
        learned = [each for each in learned if each[2].is_genuine()]
        for client, sent, new in learned:
            self._known[client] = [head for head in self._known.get(client, []) if head not in (*sent, new)]
            self._known[client].append(new)
        if self._path is None or not learned:
            return
        with self._open() as db:
            for client, sent, new in learned:
                for head in (*sent, new):
                    db.execute("DELETE FROM head WHERE client = ? AND head = ?", [client, _text(head)])
                db.execute("INSERT INTO head VALUES (?, ?)", [client, _text(new)])
                db.execute("REPLACE INTO last VALUES (?, ?, ?)", [self._run, client, _text(new)])

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        assert self._path is not None
        try:
            # only its owner may read it: it tells who answered
            os.close(os.open(self._path, os.O_CREAT | os.O_RDWR, 0o600))
            with closing(sqlite3.connect(self._path, timeout=30.0)) as db, db:
                db.execute("PRAGMA synchronous = EXTRA")
                yield db
        except (sqlite3.Error, OSError) as problem:
            raise LedgerError(
                f"cannot use {self._path}, in which guards' heads are kept: {problem}. Restore a copy, or "
                "move it away: guards then cannot be asked whether they still have all on record."
            ) from None


def _text(head: Head) -> str:
    return dump(head.model_dump())


def last_head(path: Path, run: str, client: str) -> Head | None:
    """Return the last head that a client's guard told in a run, by an operator's file; None if unknown."""
    return KnownHeads(path).told(run, client) if path.exists() else None
