"""What a ledger has on record of one run, read without a trace: nothing in it is written."""

import json
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import numpy as np

from discretion.population import Ints

WAIT = 5.0  # seconds for a ledger that cannot be read at once


@dataclass(frozen=True)
class OnRecord:
    """Refusals are those of single clients in single rounds, because their budgets would be passed."""

    reserved: int  # rounds whose cost is counted, released or not
    committed: int  # of these, rounds that were released
    other_runs: int  # further runs that spend from the same budgets
    refusals: Ints  # (N,) rounds that each client refused
    refusing: Ints  # numbers of the clients that refused the last round on record
    since: str  # when the first round was reserved; empty where none was
    until: str  # when the last was reserved or committed


def nothing(clients: int) -> OnRecord:
    return OnRecord(0, 0, 0, np.zeros(clients, dtype=np.int64), np.zeros(0, dtype=np.int64), "", "")


def read_on(path: Path, run: str, known: OnRecord, wait: float = WAIT) -> OnRecord | None:
    """What is on record now, where `known` was before; None where there is no ledger that can be read.

    Guarantees:
        Neither the ledger nor a file beside it is made or changed, not even the index in shared memory.
        It is open for one short reading, and waited for `wait` seconds at most.
    """
    states = (
        "SELECT COALESCE(SUM(state = 'committed'), 0), COALESCE(MIN(reserved), ''), "
        "COALESCE(MAX(COALESCE(committed, reserved)), '') FROM round WHERE run = ?"
    )
    later = "SELECT refused FROM round WHERE run = ? AND round > ? ORDER BY round"
    try:
        with closing(opened(path, wait)) as db:
            ((others,),) = db.execute("SELECT COUNT(*) FROM run WHERE id <> ?", [run]).fetchall()
            ((committed, since, until),) = db.execute(states, [run]).fetchall()
            new = [json.loads(refused) for (refused,) in db.execute(later, [run, known.reserved])]
        refusals = known.refusals.copy()
        for places in new:
            refusals[places] += 1
    except (sqlite3.Error, json.JSONDecodeError, IndexError, TypeError, ValueError):
        return None
    refusing = np.array(new[-1], dtype=np.int64) if new else known.refusing
    return OnRecord(known.reserved + len(new), committed, others, refusals, refusing, since, until)


def opened(ledger: Path, wait: float = WAIT) -> sqlite3.Connection:
    """A ledger to be read, as it is at one moment; neither it nor its index in shared memory is written.

    `wait` is how many seconds it is waited for.
    """
    address = f"file:{quote(str(ledger.absolute()))}?mode=ro&readonly_shm=1"
    db = sqlite3.connect(address, uri=True, isolation_level=None, timeout=wait)
    db.execute("BEGIN DEFERRED")
    return db
