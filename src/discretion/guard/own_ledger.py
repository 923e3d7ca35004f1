"""The ledger in a guard's folder: opened, compared with what others saw of it, copied, recovered."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from discretion.errors import LedgerError
from discretion.files import locked
from discretion.guard.policy import Policy
from discretion.ledger import guard_ledger
from discretion.ledger.guard_ledger import GuardLedger, Loss
from discretion.ledger.keys import Head
from discretion.ledger.store import Signing
from discretion.plan.population import Population


def open_ledger(policy: Policy, signing: Signing = "kept") -> GuardLedger:
    """Open the ledger in the policy's folder, or make it."""
    path = _path(policy)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    client = replace(Population.of([policy.epsilon], policy.delta), client=(policy.client,))
    return GuardLedger(path, client, policy.rule, signing)


def require_known(policy: Policy, heads: Sequence[Head]) -> None:
    """Raise unless the ledger has these heads on record; it remembers if it has not."""
    with open_ledger(policy) as ledger:
        ledger.compare(heads)
        if ledger.is_lost:
            raise LedgerError(
                f"{_path(policy)} does not have all on record that it had: it was restored from an older "
                "copy, or lost. Put the newest one back, or say what was lost with --recover."
            )


def back_up(policy: Policy, target: Path) -> None:
    """Copy the ledger, also while its guard is running."""
    guard_ledger.back_up(_path(policy), target)


def recover(policy: Policy, loss: Loss) -> None:
    """Charge the worst case of what was lost, after which the guard answers again."""
    folder = Path(policy.folder)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    in_use = f"{folder} is in use by a guard: end it first"
    signing: Signing = "kept" if loss == "nothing" else "new"
    with locked(folder / ".lock", in_use), open_ledger(policy, signing) as ledger:
        ledger.recover(loss)


def _path(policy: Policy) -> Path:
    return Path(policy.folder) / "ledger.sqlite"
