"""JSON form and digest of a plan."""

import hashlib
from dataclasses import asdict, fields
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from discretion.arrays import Ints
from discretion.errors import InputError, PlanError
from discretion.jsonfile import Record, dump, parse, record_of
from discretion.plan.combine import Combine
from discretion.plan.grid import Grid
from discretion.plan.phase import Clipping, Phase, Quantile
from discretion.plan.plan import Plan
from discretion.plan.selection_rules import Reading
from discretion.plan.steps import Unit

Format = Literal["discretion-plan/2"]
FORMAT: Format = "discretion-plan/2"


def plan_to_json(plan: Plan) -> str:
    """Return the plan as JSON text, exact to the last bit; clients that are treated alike share a class."""
    first = np.unique(plan.classes, return_index=True)[1]
    phases = [_phase_record(phase, first) for phase in plan.phases]
    return dump(_header(plan) | {"class": plan.classes.tolist(), "phases": phases})


def plan_digest(plan: Plan) -> str:
    """Return the SHA-256 of everything in the plan."""
    content = hashlib.sha256(dump(_header(plan)).encode())
    known: dict[int, bytes] = {}  # arrays shared by several phases are hashed once
    for phase in plan.phases:
        for name, value in vars(phase).items():
            content.update(name.encode())
            if isinstance(value, np.ndarray):
                if id(value) not in known:
                    known[id(value)] = hashlib.sha256(value.tobytes()).digest()
                content.update(known[id(value)])
            else:
                content.update(repr(value).encode())
    return content.hexdigest()


def plan_from_json(text: str) -> Plan:
    """Read a plan from JSON text; raise `PlanError` for anything that is not exactly a plan."""
    record = dict(parse(text, PlanRecord, "plan"))
    classes, clients, unit = record.pop("class_"), record["clients"], record.pop("unit")
    if len(classes) != len(clients) or set(classes) != set(range(len(set(classes)))):
        raise PlanError(
            f"not a Discretion plan: found {len(classes)} entries in class for {len(clients)} clients; "
            "expected one class number for each client, and a client for each number from 0 to the largest"
        )
    member = np.array(classes, dtype=np.int64)
    try:
        record["phases"] = [_phase(phase, member) for phase in record["phases"]]
        record["grid"] = _made(Grid, record["grid"])
    except (IndexError, OverflowError, InputError) as problem:
        raise PlanError(f"not a Discretion plan: {problem}") from None
    clipping = record["clipping"]
    record["clipping"] = Clipping(clipping.layers, _made(Quantile, clipping.quantile))
    record["reading"] = _made(Reading, record["reading"])
    record["combine"] = _made(Combine, record["combine"])
    del record["format"]
    plan = Plan(**record)
    if plan.unit != unit:
        raise PlanError(
            f"not a Discretion plan: found unit {unit!r}, expected {plan.unit!r} where noise is drawn "
            f"at {plan.noise_at!r}"
        )
    return plan


def _made(kind: type, record: Record | None) -> Any:
    return None if record is None else kind(**dict(record))


def _header(plan: Plan) -> dict[str, Any]:
    """Return everything but the phases, as JSON holds it."""
    header: dict[str, Any] = {
        "format": FORMAT,
        "method": plan.method,
        "parameters": dict(plan.parameters),
        "unit": plan.unit,
    }
    for name in (field.name for field in fields(plan) if field.name not in (*header, "clients", "phases")):
        value = getattr(plan, name)
        header[name] = asdict(value) if isinstance(value, Clipping | Grid | Reading | Combine) else value
    if not plan.dropout:
        del header["dropout"]
    return header | {"clients": plan.clients}


def _phase_record(phase: Phase, first: Ints) -> dict[str, Any]:
    """Return a phase as JSON holds it; `first` has the number of one client of each class."""
    record: dict[str, Any] = {"noise": phase.noise.tolist(), "weight": phase.weight.tolist()}
    record |= {"batch": None, "read": None}
    record |= {name: column[first].tolist() for name, column in phase.columns().items()}
    if phase.own_pools:
        record["pool"] = "own"
    turns = None
    if phase.turns is not None:
        asked = np.flatnonzero(phase.turns)
        turns = [asked.tolist(), phase.turns[asked].tolist()]
    return {"rounds": phase.rounds, **record, "turns": turns, "steps": phase.steps}


def _phase(record: Any, member: Ints) -> Phase:
    """Return the phase of a record with one entry for each class; (N,) `member` has the clients' classes."""
    values = dict(record)
    each = ["rate", "clip", "batch", "read"]
    if own := record.pool == "own":
        values["pool"] = np.arange(len(member))
        each += ["noise", "weight"]
    else:
        each += ["pool"]
    each = [name for name in each if values[name] is not None]
    kinds = len(np.unique(member))
    if odd := [name for name in each if len(values[name]) != kinds]:
        raise PlanError(
            f"not a Discretion plan: found {len(values[odd[0]])} entries in {odd[0]}, expected {kinds}: one "
            "for each class of clients"
        )
    values |= {name: np.array(values[name])[member] for name in each}
    if not own:
        values |= {"noise": np.array(record.noise), "weight": np.array(record.weight)}
    if record.turns is not None:
        asked, times = record.turns
        if len(asked) != len(times) or asked != sorted(set(asked)) or min(asked, default=0) < 0:
            raise PlanError(
                "not a Discretion plan: turns must be two lists of equal length, of client numbers in "
                "ascending order and of how often each of these clients is asked"
            )
        values["turns"] = np.zeros(len(member), dtype=np.int64)
        values["turns"][asked] = times
    return Phase(**values)


Column = Annotated[list[int], Field(fail_fast=True)]  # as in `record_of`: one wrong entry is reported
# one entry for each class of clients or, of noise and weight, for each pool
PhaseRecord: Any = record_of(
    Phase,
    pool=(Column | Literal["own"], ...),
    turns=(tuple[Column, Column] | None, ...),  # numbers of the clients with public turns, and how many
)
PlanRecord = record_of(
    Plan,
    format=(Format, ...),
    unit=(Unit, ...),
    dropout=(float, 0.0),
    clients=(Annotated[tuple[str, ...], Field(fail_fast=True)], ...),
    clipping=(
        record_of(
            Clipping,
            layers=(Annotated[tuple[int, ...], Field(fail_fast=True)], ...),
            quantile=(record_of(Quantile) | None, ...),
        ),
        ...,
    ),
    grid=(record_of(Grid) | None, ...),
    reading=(record_of(Reading) | None, ...),
    combine=(record_of(Combine, average=(float, 0.0)), ...),
    class_=(Column, Field(alias="class")),
    phases=(Annotated[list[PhaseRecord], Field(fail_fast=True)], ...),
)
