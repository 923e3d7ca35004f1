"""Codes of the reasons for which guards refuse: few, and never the words of an order."""

import re

OTHER = "not_allowed"  # by policy, plan or an order before
CODES = {  # how a reason begins
    "budget": r"the client's budget does not allow",
    "operator": r"operator key not listed|run \S+ was joined with another operator key",
    "lost": r"the guard's ledger is not the one that answered before",
    "hours": r"orders are accepted only from",
    "fault": r"fault at the guard",
    "ledger": r"the client's ledger refuses",
    "internal": r"internal error",
    "malformed": r"message too short|header of \d|not an? |the signature does not match|expected \d+ numbers",
}
REASONS = (*CODES, OTHER)


def code_of(reason: str) -> str:
    """Return the code of a refusal's reason, whoever wrote it: one of `REASONS`."""
    return next((code for code, start in CODES.items() if re.match(start, reason)), OTHER)
