"""Size of a plan in an order, measured in its JSON before anything is made of it."""

import json
from typing import Any

from discretion.errors import Refusal
from discretion.guard.policy import Ceilings
from discretion.plan.plan_json import PhaseRecord, PlanRecord

MOST_KEYS = 64  # of an object in a plan
UNREADABLE = "unreadable plan: expected JSON as this version of Discretion writes it"


def check_size(most: Ceilings, body: bytes) -> None:
    """Raise a Refusal unless a plan's bytes, phases and entries (clients × phases) are within the ceilings.

    Guarantees:
        No array is made, and no object for a client or phase beyond those of the JSON itself.
        A plan that passes is read in memory that grows with its bytes and entries only: what is wrong in it
        is reported once, not for every entry.
    """
    if len(body) > most.plan_bytes:
        raise Refusal(f"plan of {len(body)} bytes: the policy allows at most {most.plan_bytes}")
    try:
        record = json.loads(body.decode())
    except (ValueError, RecursionError):
        raise Refusal(UNREADABLE) from None
    if not _shaped(record):
        raise Refusal(UNREADABLE)
    clients, phases = len(record["clients"]), len(record["phases"])
    if phases > most.rounds:
        raise Refusal(
            f"rounds: this plan has {phases} or more, [ceilings] of the policy allow at most {most.rounds}"
        )
    if clients * phases > most.entries:
        raise Refusal(
            f"entries: this plan has {clients} clients × {phases} phases, the policy allows at most "
            f"{most.entries} in all"
        )


def _shaped(record: Any) -> bool:
    """Return whether a record has the keys of a plan, all of them and no more, where many could be wrong."""
    if not isinstance(record, dict) or not REQUIRED <= record.keys() <= KNOWN:
        return False
    clients, phases, parameters = record["clients"], record["phases"], record["parameters"]
    small = [value for value in record.values() if isinstance(value, dict)]
    small += [value for each in small[:MOST_KEYS] for value in each.values() if isinstance(value, dict)]
    return (
        isinstance(clients, list)
        and isinstance(phases, list)
        and isinstance(parameters, dict)
        and all(len(each) <= MOST_KEYS for each in small)
        and not any(isinstance(value, dict | list) for value in parameters.values())
        and all(isinstance(phase, dict) and phase.keys() == PHASE for phase in phases)
    )


KNOWN = {field.alias or name for name, field in PlanRecord.model_fields.items()}
REQUIRED = {field.alias or name for name, field in PlanRecord.model_fields.items() if field.is_required()}
PHASE = set(PhaseRecord.model_fields)
