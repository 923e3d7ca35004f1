"""Everything that Discretion raises on purpose.

DiscretionError
├── InputError            what a person gave us cannot be used; the message says what to change
│   ├── PopulationError   the clients' budgets or sizes; lists every bad row at once
│   ├── ConfigError       config.toml or -c key=value
│   ├── DataError         a data set that cannot be had, read or divided
│   └── ModelError        a model whose training would leak or cannot be done
├── PlanError             a plan that contradicts itself or cannot be accounted for
├── BudgetError           somebody would overspend; nothing was spent
├── LedgerError           the record of spending says no: wrong plan, wrong round, in use
├── MessageError          bytes from elsewhere that are not what they should be
└── Refusal               a guard says no; its words may be read by whoever asked
"""

import difflib
from collections.abc import Iterable


class DiscretionError(Exception):
    """Base of the tree; `exit_code` is what the command line ends with."""

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


class LedgerError(DiscretionError):
    exit_code = 4


class MessageError(DiscretionError):
    pass


class Refusal(DiscretionError):
    exit_code = 4


def nearest(name: str, known: Iterable[str]) -> str:
    """For a message about an unknown name: " Did you mean …?", or nothing."""
    near = difflib.get_close_matches(name.lower(), list(known), n=1, cutoff=0.5)
    return f" Did you mean {near[0]!r}?" if near else ""
