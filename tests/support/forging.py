"""Ledgers changed by hand, with a chain made anew, as whoever may write a run's ledger can do."""

import sqlite3
from contextlib import closing
from pathlib import Path

from discretion.ledger import chain


def forge(path: Path, *statements: str) -> None:
    """Change a ledger without a key; its chain then fits what is in it."""
    with closing(sqlite3.connect(path)) as db, db:
        for statement in statements:
            db.execute(statement)
        db.execute("DELETE FROM entry")
        for kind, (table, _, changed) in chain.KINDS.items():
            rows = [row for (row,) in db.execute(f"SELECT rowid FROM {table} WHERE {changed or 'TRUE'}")]
            if changed:
                for row in rows:
                    chain.add(db, kind, row, row)
            elif rows:
                chain.add(db, kind, 1, max(rows))
        db.execute("UPDATE head SET count = ?, hash = ?", chain.newest(db))
