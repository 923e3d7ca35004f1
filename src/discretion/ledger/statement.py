"""Statement of what a guard's ledger has charged for one run, signed by that ledger's key."""

from typing import Annotated, Literal

from pydantic import Field

from discretion.jsonfile import Record, dump
from discretion.ledger import keys
from discretion.ledger.keys import Head

Format = Literal["discretion-statement/1"]
CONTEXT = b"discretion statement 1\n"  # a signature made for another purpose is not valid for a statement


class Statement(Record):
    """What a client has charged itself, at the head of its ledger. Epsilons are at the client's own delta.

    Guarantees:
        `by_operator` and `life` depend on no coin: of runs that are open they count what was granted.
        `rounds` and `spent` of a run that is open tell when the client was last asked, which whoever asked
        knows; of one that is closed they do not, since rounds in which nobody asked are charged, too.
    """

    format: Format = "discretion-statement/1"
    client: str
    run: str
    plan: str  # digest of the plan that was joined; empty: the run was not joined
    operator: str  # public key of who asked
    closed: bool  # whether the run is over for this client
    rounds: int  # of the run on record, those in which the client was not asked included
    refused: int  # of these, rounds that its budget did not allow
    spent: float  # epsilon of the run's rounds, as if it were the only run
    # epsilon of all runs of this operator together, under its key or one that this replaced; of open runs,
    # the whole plan
    by_operator: float
    # epsilon over all runs, of open runs what they may still spend, too; None: the policy does not tell
    life: float | None
    budget: float  # epsilon that the client allows now
    delta: float
    made: str  # when
    head: Head


class SignedStatement(Record):
    statement: Statement
    signature: Annotated[str, Field(pattern="^[0-9a-f]{128}$")]

    def is_genuine(self) -> bool:
        """Return whether the key that signed the statement's head signed the statement, too."""
        head = self.statement.head
        signature = bytes.fromhex(self.signature)
        return head.is_genuine() and keys.is_signed(head.key, content(self.statement), signature, CONTEXT)


def content(statement: Statement) -> bytes:
    """Return the bytes that are signed."""
    return dump(statement.model_dump()).encode()
