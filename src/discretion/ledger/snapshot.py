"""Read-only snapshot of one run in a ledger."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from discretion.arrays import Ints
from discretion.ledger.reader import DAMAGED, WAIT, LedgerReader


@dataclass(frozen=True)
class OnRecord:
    """What a ledger has of one run. A refusal is that of one client in one round, to keep its budget."""

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
    """Return what is on record now, given what was `known` before; None where no ledger can be read.

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
        with LedgerReader(path, wait) as ledger:
            ((others,),) = ledger.rows("SELECT COUNT(*) FROM run WHERE id <> ?", [run])
            ((committed, since, until),) = ledger.rows(states, [run])
            new = [json.loads(refused) for (refused,) in ledger.rows(later, [run, known.reserved])]
        refusals = known.refusals.copy()
        for places in new:
            refusals[np.array(places, dtype=np.uint64)] += 1  # a place below 0 is damage, too
        refusing = np.array(new[-1], dtype=np.int64) if new else known.refusing
    except (*DAMAGED, RecursionError, OverflowError):
        return None
    return OnRecord(known.reserved + len(new), committed, others, refusals, refusing, since, until)
