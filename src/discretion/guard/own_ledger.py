"""The ledger in a guard's folder: opened, compared with what others saw of it, copied, recovered."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from discretion.errors import LedgerError, Refusal
from discretion.files import locked, make_folder
from discretion.guard.identity import forget_agreement
from discretion.guard.policy import Policy
from discretion.ledger import guard_ledger
from discretion.ledger.guard_ledger import Charged, GuardLedger, Loss, no_record
from discretion.ledger.keys import Head
from discretion.ledger.lifetime import read_lifetime
from discretion.ledger.statement import SignedStatement, Statement
from discretion.ledger.store import Signing, now
from discretion.plan.population import Population


def open_ledger(policy: Policy) -> GuardLedger:
    """Open the ledger in the policy's folder, or make it."""
    ledger = _open(policy, "kept")
    if ledger.is_copy:
        ledger.close()
        raise LedgerError(
            f"{ledger_path(policy)} is a copy from a backup, or its recovery was interrupted: what was "
            "lost is not charged. Say what it was with `discretion guard GUARD.toml --recover`; "
            "docs/operating.md says how."
        )
    return ledger


def _open(policy: Policy, signing: Signing) -> GuardLedger:
    path = ledger_path(policy)
    make_folder(path.parent, 0o700)
    client = replace(Population.of([policy.epsilon], policy.delta), client=(policy.client,))
    return GuardLedger(path, client, policy.rule, signing)


def require_known(policy: Policy, heads: Sequence[Head]) -> None:
    """Raise unless the ledger has these heads on record; it remembers if it has not."""
    with open_ledger(policy) as ledger:
        ledger.compare(heads)
        if ledger.is_lost:
            raise LedgerError(
                f"{ledger_path(policy)} does not have all on record that it had: it was restored from an "
                "older copy, or lost. Put the newest one back, or say what was lost with --recover."
            )


def statement_of(policy: Policy, ledger: GuardLedger, run: str, operator: str) -> SignedStatement:
    """Return a signed statement, to this operator, of what the ledger has charged for a run.

    Guarantees:
        Nothing is put on record, or told of other operators' runs unless the policy says `tell_life`.
    """
    joined = ledger.joined(run)
    if joined is not None and policy.key_now(joined.operator) != operator:
        raise Refusal(f"run {run} was joined with another operator key")
    life = read_lifetime(ledger_path(policy), policy.key_now)
    costs = {cost.run.id: cost for cost in life.runs}
    cost = costs[run] if joined is not None else None
    statement = Statement(
        client=policy.client,
        run=run,
        plan=ledger.plan_of(run) if cost else "",
        operator=operator,
        closed=cost is not None and cost.run.closed is not None,
        rounds=cost.run.reserved if cost else 0,
        refused=cost.run.refusals if cost else 0,
        spent=float(cost.spent[0]) if cost else 0.0,
        by_operator=life.granted.get(operator, 0.0),
        life=float(life.spent[0] + life.promised[0]) if policy.tell_life else None,
        budget=float(life.budget[0]),
        delta=policy.delta,
        made=now(),
        head=ledger.head,
    )
    return ledger.sign(statement)


def back_up(policy: Policy, target: Path) -> None:
    """Copy the ledger, also while its guard is running."""
    guard_ledger.back_up(ledger_path(policy), target)


def recover(policy: Policy, loss: Loss) -> Charged:
    """Charge the worst case of what was lost, after which the guard answers again.

    Guarantees:
        What is refused changes nothing.
        Unless nothing was lost, no envelope of an earlier secure sum is ever opened again.
    """
    path = ledger_path(policy)
    signing: Signing = "kept" if loss == "nothing" else "new"
    repeated = False
    with _at_rest(policy):
        if path.is_file() and path.stat().st_size:
            with GuardLedger.existing(path) as ledger:
                ledger.require_record(loss)
                repeated = ledger.may_have_repeated
        elif loss != "everything":
            raise LedgerError(no_record(path, loss))
        with _open(policy, signing) as ledger:
            if loss != "nothing":
                forget_agreement(path.parent)  # whose masks were given may not be on record any more
            return ledger.recover(loss, repeated)


def rotate_key(policy: Policy) -> Head:
    """Replace the key that signs the ledger; return the ledger's head, signed by the new key."""
    if not ledger_path(policy).is_file():
        raise LedgerError(f"there is no ledger {ledger_path(policy)}: this guard was never started")
    with _at_rest(policy), open_ledger(policy) as ledger:
        ledger.rotate_key()
        return ledger.head


def _at_rest(policy: Policy) -> AbstractContextManager[object]:
    """Lock the guard's folder, or raise if the guard is running."""
    folder = Path(policy.folder)
    make_folder(folder, 0o700)
    return locked(folder / ".lock", f"{folder} is in use by a guard: end it first")


def ledger_path(policy: Policy) -> Path:
    return Path(policy.folder) / "ledger.sqlite"
