"""The ledger of one client's guard: signed, with the runs that it joined and the answers that it released."""

import hashlib
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

from discretion.errors import LedgerError, StorageError
from discretion.ledger.keys import Head
from discretion.ledger.ledger import Ledger
from discretion.ledger.reader import LedgerReader
from discretion.ledger.store import copy_ledger, now

Kind = Literal["train", "read"]
Loss = Literal["nothing", "rounds", "everything"]


class Joined(NamedTuple):
    operator: str  # public key that signed the order
    message: bytes


class Release(NamedTuple):
    asked: str  # digest of the order
    answer: bytes | None  # None: begun and perhaps interrupted, or of an earlier round and deleted


class GuardLedger(Ledger):
    """A guard's ledger. What was released is on disk, in the same file as its cost, before it leaves.

    Guarantees:
        An answer, once kept, is never replaced.
        Of rounds before the last one only the digests of order and answer are kept; the answer's bytes are
        erased.
        A head that this ledger's key signed and that is not on record, or that another key signed, is
        remembered until the owner has said what was lost.
    """

    @contextmanager
    def together(self) -> Iterator[None]:
        """Record all that is entered meanwhile, or nothing of it."""
        with self._transaction():
            yield

    def join(self, run: str, operator: str, message: bytes) -> None:
        with self._transaction():
            self._insert("joined", run, operator, message)

    def joined(self, run: str) -> Joined | None:
        rows = self._read("SELECT operator, message FROM joined WHERE run = ?", [run])
        return Joined(*rows[0]) if rows else None

    def release(self, run: str, round_: int, kind: Kind, turn: int) -> Release | None:
        """Return what is on record of a release; raise if the answer is not the one that was kept."""
        query = (
            "SELECT asked, kept, answer FROM release WHERE run = ? AND round = ? AND kind = ? AND turn = ?"
        )
        for asked, kept, answer in self._read(query, [run, round_, kind, turn]):
            if answer is not None and kept != _digest(answer):
                raise StorageError(
                    f"the ledger {self._path} is damaged: the answer of round {round_} of run {run} is not "
                    "the one that was kept. It is not sent; the next round is not affected.",
                    "the answer that it kept is damaged",
                )
            return Release(asked, answer)
        return None

    def begin(self, run: str, round_: int, kind: Kind, turn: int, asked: str) -> None:
        """Record that an answer to this order is being made, and erase the answers of earlier rounds."""
        with self._transaction():
            query = "UPDATE release SET answer = NULL WHERE run = ? AND round < ? AND answer IS NOT NULL"
            self._db.execute(query, [run, round_])
            self._insert("release", run, round_, kind, turn, asked, None, None)

    def keep(self, run: str, round_: int, kind: Kind, turn: int, answer: bytes) -> None:
        where = "run = ? AND round = ? AND kind = ? AND turn = ? AND kept IS NULL"
        query = f"UPDATE release SET kept = ?, answer = ? WHERE {where}"
        with self._transaction():
            self._update("keep", query, _digest(answer), answer, run, round_, kind, turn)

    def rounds_asked(self, run: str) -> list[int]:
        """Return the rounds of a run in which an order was not refused, ascending."""
        rows = self._read("SELECT DISTINCT round FROM release WHERE run = ? ORDER BY round", [run])
        return [number for (number,) in rows]

    @property
    def head(self) -> Head:
        query = "SELECT public, hash, signature FROM head, key ORDER BY key.rowid DESC LIMIT 1"
        ((public, link, signature),) = self._read(query)
        return Head(key=public, hash=link.hex(), signature=signature.hex())

    def compare(self, heads: Sequence[Head]) -> None:
        """Remember each of these heads that is neither of this ledger's past nor from before a recovery."""
        *earlier, mine = [public for (public,) in self._read("SELECT public FROM key ORDER BY rowid")]
        seen = [key for (key,) in self._read("SELECT key FROM lost")]
        for head in heads:
            ours = self._read("SELECT 1 FROM entry WHERE hash = ?", [bytes.fromhex(head.hash)])
            if head.key not in (*earlier, *seen) and not (head.key == mine and ours) and head.is_genuine():
                with self._transaction():
                    self._insert("lost", head.key, now(), None)
                seen.append(head.key)

    @property
    def is_lost(self) -> bool:
        """Whether something was on record that is not any more, as far as heads tell and nobody explained."""
        return bool(self._read("SELECT 1 FROM lost WHERE recovered IS NULL"))

    def recover(self, loss: Loss) -> None:
        """Charge the worst case of what its owner says was lost; heads signed before count no longer.

        Unless nothing was lost, open the ledger for this with a new key, which signs from now on.

        Guarantees:
            Rounds: every joined run that is open is charged with its whole plan, and closed. If the budget
            does not allow all of these rounds, which of them were released is unknown: it is withdrawn.
            Everything: besides, the budget is withdrawn, since runs that are not on record may have spent it.
            Nothing: it is refused where this ledger's own key signed what is not on record.
            Until all is charged, whatever interrupts this, the ledger stays one that lost something.
        """
        own = "SELECT 1 FROM lost JOIN key ON key = public WHERE recovered IS NULL"
        if loss == "nothing" and self._read(own):
            raise LedgerError(
                f"something was lost: a head that the key of {self._path} signed is not on record. Say "
                "`--recover rounds`, or `--recover everything` if runs may have been joined since."
            )
        refused = sum(run.refusals for run in self.runs)
        for run in self.runs if loss != "nothing" else []:
            if run.closed is None:
                self._charge_whole(run.id, run.rounds)
        unknown = loss == "everything" or sum(run.refusals for run in self.runs) > refused
        if unknown and math.isfinite(self._first[0]) and self.budget[0] > 0:
            note = "what is not on record any more may have spent it"
            self.change_budget(self.population.client[0], -float(self.budget[0]), note)
        with self._transaction():
            query = "UPDATE lost SET recovered = ? WHERE recovered IS NULL"
            self._update("recover", query, f"{now()} {loss}")

    def _charge_whole(self, run: str, rounds: int) -> None:
        states = self.states(run)
        if states and states[-1][1] == "reserved":
            self.commit(run, len(states))
        for number in range(len(states) + 1, rounds + 1):
            self.pass_over(run, number)
        self.finish(run)


def _digest(answer: bytes) -> str:
    return hashlib.sha256(answer).hexdigest()


def back_up(path: Path, target: Path) -> None:
    """Copy a guard's ledger as it is at one moment, while it may be in use; the key is not copied.

    Guarantees:
        The copy is whole, or there is none. Only its owner may read it. No file is replaced.
    """
    if not path.is_file():
        raise LedgerError(f"there is no ledger {path} to copy: this guard was never started")
    try:
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except OSError as problem:
        raise LedgerError(f"cannot write the copy {target}: {problem.strerror}; give another name") from None
    try:
        copy_ledger(path, target)
        with LedgerReader(target) as copy:
            copy.check()
    except BaseException:
        target.unlink()
        raise
