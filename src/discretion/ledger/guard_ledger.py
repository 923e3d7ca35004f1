"""The ledger of one client's guard: signed, with the runs that it joined and the answers that it released."""

import hashlib
import math
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

from discretion.errors import InputError, LedgerError, StorageError
from discretion.files import sync
from discretion.ledger import keys
from discretion.ledger.faults import PROBLEMS
from discretion.ledger.keys import Head
from discretion.ledger.ledger import Ledger
from discretion.ledger.statement import CONTEXT, SignedStatement, Statement, content
from discretion.ledger.store import copy_ledger, now

Kind = Literal["train", "read"]
Loss = Literal["nothing", "rounds", "everything"]


class Joined(NamedTuple):
    operator: str  # public key that signed the order
    message: bytes


class Release(NamedTuple):
    asked: str  # digest of the order
    answer: bytes | None  # None: begun and perhaps interrupted, or of an earlier round and deleted


class Charged(NamedTuple):
    """What a recovery charged. Where the budget was withdrawn, nothing is left, whatever is spent."""

    spent_before: float
    left_before: float
    spent: float
    left: float


class GuardLedger(Ledger):
    """A guard's ledger. What was released is on disk, in the same file as its cost, before it leaves.

    Guarantees:
        An answer, once kept, is never replaced; nor is a choice of survivors, which stays on record for ever.
        Of rounds before the last one only the digests of order and answer are kept; the answer's bytes are
        erased.
        A head is kept in a file beside the ledger before it goes out: a ledger that does not have it on
        record, because it was replaced by an older copy, is not opened.
        A head that a key of this ledger signed and that is not on record, or that another key signed, is
        remembered until the owner has said what was lost. Keys that were rotated stay keys of this ledger.
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

    def plan_of(self, run: str) -> str:
        """Return the digest of the plan that a run was admitted with."""
        ((digest,),) = self._read("SELECT plan FROM run WHERE id = ?", [run])
        return str(digest)

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

    def choice(self, run: str, round_: int, pool: int) -> str | None:
        """Return the digest of the survivors that were chosen in a secure sum; None if none were."""
        query = "SELECT survivors FROM choice WHERE run = ? AND round = ? AND pool = ?"
        rows = self._read(query, [run, round_, pool])
        return str(rows[0][0]) if rows else None

    def choose(self, run: str, round_: int, pool: int, survivors: str) -> None:
        """Put the survivors of a secure sum on record; there may be none yet."""
        with self._transaction():
            self._insert("choice", run, round_, pool, survivors)

    @property
    def head(self) -> Head:
        """The last head, which goes with every answer; it is kept beside the ledger before it is returned."""
        head = self._head()
        return head if head.hash == self._witnessed else self._keep_head()

    def rotate_key(self) -> None:
        """Replace the key that signs this ledger, which must be opened with the one that is kept.

        Guarantees:
            The new key is entered in the chain that the old one signed. Whatever interrupts this, the ledger
            is signed by the old key or by the new one, and that key is kept.
            Once the new key signs, the file of the old one is gone.
        """
        with self._transaction():
            self._key = keys.draft(self._path)
            self._insert("key", keys.public_of(self._key))
        keys.settled(self._path, keys.public_of(self._key))

    def sign(self, statement: Statement) -> SignedStatement:
        """Return a statement signed by this ledger's key."""
        assert self._key is not None
        signature = keys.sign(self._key, content(statement), CONTEXT)
        return SignedStatement(statement=statement, signature=signature.hex())

    def compare(self, heads: Sequence[Head]) -> None:
        """Remember each of these heads that is neither of this ledger's past nor from before a recovery."""
        known = [public for (public,) in self._read("SELECT public FROM key ORDER BY rowid")]
        seen = [key for (key,) in self._read("SELECT key FROM lost")]
        # what keys up to the last recovery may have signed is charged; of later keys everything is on record
        recovered = max((place + 1 for place, key in enumerate(known) if key in seen), default=0)
        seen += known[:recovered]
        for head in heads:
            ours = self._read("SELECT 1 FROM entry WHERE hash = ?", [bytes.fromhex(head.hash)])
            if head.key not in seen and not (head.key in known and ours) and head.is_genuine():
                with self._transaction():
                    self._insert("lost", head.key, now(), None)
                seen.append(head.key)

    @property
    def may_have_repeated(self) -> bool:
        """Whether it was in use when it was shown a head of its own key that it does not have on record."""
        query = "SELECT 1 FROM lost WHERE recovered IS NULL AND key IN (SELECT public FROM key)"
        return bool(self._read(query))

    @property
    def is_lost(self) -> bool:
        """Whether something was on record that is not any more, as far as heads tell and nobody explained."""
        return bool(self._read("SELECT 1 FROM lost WHERE recovered IS NULL"))

    @property
    def is_copy(self) -> bool:
        """Whether this is a copy from `back_up`, of which nobody has said what was lost since."""
        return bool(self._read("SELECT 1 FROM lost WHERE key = '' AND recovered IS NULL"))

    def mark_as_copy(self, original: Path) -> None:
        """Enter that this is a copy, signed by the key of the ledger that it was made from."""
        for (public,) in self._read("SELECT public FROM key ORDER BY rowid DESC LIMIT 1"):
            self._key = keys.settled(str(original), public)
        with self._transaction():
            self._insert("lost", "", now(), None)

    def require_record(self, loss: Loss) -> None:
        """Raise unless what is on record can show that no more than this was lost."""
        if loss == "everything":
            return
        if not self.runs:
            raise LedgerError(no_record(self._path, loss))
        unknown = (
            "SELECT 1 FROM lost WHERE recovered IS NULL AND key <> '' AND key NOT IN (SELECT public FROM key)"
        )
        if loss == "rounds" and self._read(unknown):
            raise LedgerError(
                f"more than rounds was lost, or nothing: a head was seen that another key signed than any of "
                f"{self._path}. Say `--recover everything` if this guard ever had another ledger, and "
                "`--recover nothing` only if it never had."
            )

    def recover(self, loss: Loss, repeated: bool = False) -> Charged:
        """Charge the worst case of what its owner says was lost; heads signed before count no longer.

        Unless nothing was lost, open the ledger for this with a new key, which signs from now on. `repeated`:
        the guard may have gone on with the older ledger, and released rounds twice.

        Guarantees:
            Rounds: every joined run that is open is charged with its whole plan, and closed; if rounds may
            have been repeated, every run on record is charged with its whole plan once more. If the budget
            does not allow all of these rounds, which of them were released is unknown: it is withdrawn.
            Everything: besides, the budget is withdrawn, since runs that are not on record may have spent it.
            Nothing: it is refused where this ledger's own key signed what is not on record.
            All but everything is refused where no run is on record: the ledger may have been a longer one.
            Until all is charged, whatever interrupts this, the ledger stays one that lost something.
        """
        self.require_record(loss)
        if loss == "nothing" and self.may_have_repeated:
            raise LedgerError(
                f"something was lost: a head that the key of {self._path} signed is not on record. Say "
                "`--recover rounds`, or `--recover everything` if runs may have been joined since."
            )
        refused, before = sum(run.refusals for run in self.runs), self._account()
        for run in self.runs if loss != "nothing" else []:
            if run.closed is None:
                self._charge_whole(run.id, run.rounds)
        for run in self.runs if loss == "rounds" and repeated else []:
            self._charge_again(run.id, run.rounds)
        unknown = loss == "everything" or sum(run.refusals for run in self.runs) > refused
        if unknown and math.isfinite(self._first[0]) and self.budget[0] > 0:
            note = "what is not on record any more may have spent it"
            self.change_budget(self.population.client[0], -float(self.budget[0]), note)
        with self._transaction():
            query = "UPDATE lost SET recovered = ? WHERE recovered IS NULL"
            self._update("recover", query, f"{now()} {loss}")
        return Charged(*before, *self._account())

    def _account(self) -> tuple[float, float]:
        """Return what is spent, and what is left of the budget."""
        spent = float(self.spent()[0])
        return spent, max(float(self.budget[0]) - spent, 0.0)

    def _charge_again(self, run: str, rounds: int) -> None:
        """Charge a run's whole plan, as a run of a name that no order can have."""
        again = f"{run}/again"
        if run.endswith("/again") or any(other.id == again for other in self.runs):
            return
        with self._transaction():
            (about,) = self._read("SELECT * FROM run WHERE id = ?", [run])
            self._insert("run", again, *about[1:-1], None)
            with self._entering("member", "price", "phase"):
                for table in ("member", "price", "phase"):
                    for row in self._read(f"SELECT * FROM {table} WHERE run = ?", [run]):
                        marks = ", ".join("?" * len(row))
                        self._db.execute(f"INSERT INTO {table} VALUES ({marks})", [again, *row[1:]])
        self._charge_whole(again, rounds)

    def _charge_whole(self, run: str, rounds: int) -> None:
        states = self.states(run)
        if states and states[-1][1] == "reserved":
            self.commit(run, len(states))
        for number in range(len(states) + 1, rounds + 1):
            self.pass_over(run, number)
        self.finish(run)


def _digest(answer: bytes) -> str:
    return hashlib.sha256(answer).hexdigest()


def no_record(path: Path | str, loss: Loss) -> str:
    return (
        f"{path} has no run on record, so nothing shows what was lost: found --recover {loss}, expected "
        "--recover everything, which charges the whole budget. A guard that never joined a run has nothing "
        "to recover: docs/operating.md says what its owner does."
    )


def back_up(path: Path, target: Path) -> None:
    """Copy a guard's ledger as it is at one moment, while it may be in use; the key is not copied.

    Guarantees:
        The copy is whole and durable, or there is none, whatever interrupts this. Only its owner may read it.
        No file is replaced.
        The copy says, in its chain, that it is one.
    """
    if not path.is_file():
        raise LedgerError(f"there is no ledger {path} to copy: this guard was never started")
    if target.exists():
        raise InputError(f"cannot write the copy {target}: there is a file of this name; give another name")
    if not target.parent.is_dir():
        raise InputError(f"cannot write the copy {target}: there is no folder {target.parent}; make it first")
    GuardLedger.existing(path).close()  # finds damage under the name of the ledger
    try:
        with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as folder:
            draft = Path(folder) / target.name
            os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            copy_ledger(path, draft)
            with GuardLedger.existing(draft) as copy:
                copy.mark_as_copy(path)
            draft.rename(target)
            sync(target.parent)
    except PROBLEMS as problem:
        raise LedgerError(
            f"cannot write the copy {target}: {problem}; free space, or copy it elsewhere"
        ) from None
