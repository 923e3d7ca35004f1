"""What a ledger has on record of one run, read without a trace: nothing is written, nobody has to wait."""

import json
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from discretion.population import Ints
from discretion.report.reading import opened


@dataclass(frozen=True)
class OnRecord:
    """Refusals are those of single clients in single rounds, because their budgets would be passed."""

    reserved: int  # rounds that count
    other_runs: int  # that spend from the same budgets
    refusals: Ints  # (N,) rounds that each client refused
    refusing: Ints  # numbers of the clients that refused the last round on record


def nothing(clients: int) -> OnRecord:
    return OnRecord(0, 0, np.zeros(clients, dtype=np.int64), np.zeros(0, dtype=np.int64))


def read_on(path: Path, run: str, known: OnRecord) -> OnRecord | None:
    """What is on record now, where `known` was before; None where the ledger cannot be read at once.

    Guarantees:
        Neither the ledger nor a file beside it is made or changed, not even the index in shared memory.
        It is open for one short reading, and never waited for.
    """
    try:
        with closing(opened(path, wait=0.0)) as db:
            query = "SELECT COALESCE(SUM(id <> ?), 0) FROM run"
            ((others,),) = db.execute(query, [run]).fetchall()
            query = "SELECT refused FROM round WHERE run = ? AND round > ? ORDER BY round"
            new = [json.loads(refused) for (refused,) in db.execute(query, [run, known.reserved])]
            refusals = known.refusals.copy()
            for places in new:
                refusals[places] += 1
    except (sqlite3.Error, json.JSONDecodeError, IndexError, TypeError, ValueError):
        return None
    refusing = np.array(new[-1], dtype=np.int64) if new else known.refusing
    return OnRecord(known.reserved + len(new), int(others), refusals, refusing)
