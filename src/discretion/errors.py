"""The exceptions that Discretion raises on purpose.

DiscretionError
├── InputError            invalid user input; the message says what to change
│   ├── PopulationError   invalid budgets or sizes of clients; lists every bad row at once
│   ├── ConfigError       invalid setting in config.toml or in -c key=value
│   ├── DataError         data set that cannot be downloaded, read or partitioned
│   └── ModelError        model that cannot be trained, or whose training would leak
├── PlanError             plan that contradicts itself or cannot be accounted for
├── BudgetError           a client would overspend its budget; nothing was spent
├── BudgetAlert           a share of a budget that was asked about is spent; nothing is wrong
├── LedgerError           refused by the ledger: wrong plan, wrong round
│   └── StorageError      the ledger's file cannot be read or written: damaged, in use, disk full
├── AnswersError          too few clients were there, and the run can be resumed; or nobody trained
├── FolderError           file of a run folder that is missing, damaged or changed
├── UnverifiedError       nothing is contradicted, but not everything could be verified, or is ready
├── MessageError          malformed message from another process
└── Refusal               refused by a guard; the message may be shown to the requester
"""

import difflib
from collections.abc import Iterable, Sequence

MOST_PROBLEMS = 20  # in one message


class DiscretionError(Exception):
    """Base class; `exit_code` is the exit code of the command line."""

    exit_code = 1


class InputError(DiscretionError):
    exit_code = 2


class PopulationError(InputError):
    pass


class ConfigError(InputError):
    pass


class DataError(InputError):
    pass


class ModelError(InputError):
    pass


class PlanError(DiscretionError):
    exit_code = 2


class BudgetError(DiscretionError):
    exit_code = 3


class BudgetAlert(DiscretionError):
    exit_code = 6


class LedgerError(DiscretionError):
    exit_code = 4


class StorageError(LedgerError):
    """`fault` says what is wrong in words that a guard may show to an operator."""

    def __init__(self, message: str, fault: str) -> None:
        super().__init__(message)
        self.fault = fault


class AnswersError(DiscretionError):
    exit_code = 5


class FolderError(DiscretionError):
    exit_code = 4


class UnverifiedError(DiscretionError):
    exit_code = 7


class MessageError(DiscretionError):
    pass


class Refusal(DiscretionError):
    """`what` names in a word what the order and the guard disagree on."""

    exit_code = 4

    def __init__(self, message: str, what: str = "order") -> None:
        super().__init__(message)
        self.what = what


def listed(problems: Sequence[str]) -> list[str]:
    """Return the first problems, and how many more there are: what one message can say."""
    more = len(problems) - MOST_PROBLEMS
    return [*problems[:MOST_PROBLEMS], *([f"… and {more} more"] if more > 0 else [])]


def nearest(name: str, known: Iterable[str]) -> str:
    """Return " Did you mean …?" with the known name nearest to an unknown one, or an empty string."""
    near = difflib.get_close_matches(name.lower(), list(known), n=1, cutoff=0.5)
    return f" Did you mean {near[0]!r}?" if near else ""
