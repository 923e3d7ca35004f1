"""The server's file of the heads that guards' ledgers had when they last answered."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from discretion.errors import LedgerError
from discretion.jsonfile import dump, parse
from discretion.ledger.keys import Head

MOST_HEADS = 32  # heads of one client that are sent with an order


class KnownHeads:
    """Heads by client, kept in a file if there is a path: one for each answer that no later one followed.

    A guard that answers an order has the heads that came with it on record. So its new head replaces them.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._known: dict[str, list[Head]] = {}
        if path is not None:
            with self._open() as db:
                db.execute("CREATE TABLE IF NOT EXISTS head (client TEXT, head TEXT)")
                for client, text in db.execute("SELECT client, head FROM head ORDER BY rowid"):
                    self._known.setdefault(client, []).append(parse(text, Head, "head"))

    def of(self, client: str) -> list[Head]:
        return self._known.get(client, [])[-MOST_HEADS:]

    def learn(self, learned: list[tuple[str, list[Head], Head]]) -> None:
        """Take in answers: the client of each, the heads that were sent to it, and the one that came back."""
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

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        assert self._path is not None
        try:
            # only its owner may read it: it tells who answered
            os.close(os.open(self._path, os.O_CREAT | os.O_RDWR, 0o600))
            with closing(sqlite3.connect(self._path, timeout=30.0)) as db, db:
                yield db
        except (sqlite3.Error, OSError) as problem:
            raise LedgerError(
                f"cannot use {self._path}, in which guards' heads are kept: {problem}. Restore a copy, or "
                "move it away: guards then cannot be asked whether they still have all on record."
            ) from None


def _text(head: Head) -> str:
    return dump(head.model_dump())


def last_head(path: Path, client: str) -> Head | None:
    """Return the last head of a client in a server's file; None if there is none."""
    return next(iter(KnownHeads(path).of(client)[-1:]), None) if path.exists() else None
