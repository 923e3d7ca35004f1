"""Tables on lifetime budgets: accounts, budget classes, runs and operators of ledgers, and alerts."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from discretion.ledger.lifetime import Lifetime, Room
from discretion.report import numbers

NEAR = 0.9  # share of a budget that is pointed out, unless another one is asked for
ROOM = {"whole": "yes", "part": "for some turns", "none": "no", "not in it": "was not in it"}


@dataclass(frozen=True, eq=False)
class Source:
    """A ledger that was read."""

    name: str
    lifetime: Lifetime
    operators: Mapping[str, str] = field(default_factory=dict)  # names by public key, as a guard knows them
    about: Mapping[str, str] = field(default_factory=dict)  # project, operator and so on of the run at hand

    @cached_property
    def place(self) -> dict[str, int]:
        """Number of each client, by name."""
        return {name: i for i, name in enumerate(self.lifetime.population.client)}

    def operator(self, key: str) -> str:
        """Return an operator's name, or the beginning of a key that has none."""
        return self.operators.get(key) or f"{key[:12]}…"


@dataclass(frozen=True)
class Account:
    """One client in one ledger. Accounts of different ledgers are never added up."""

    ledger: str
    client: str
    budget_class: str
    delta: float
    budget: float
    spent: float
    promised: float
    left: float
    share: float  # of the budget that is spent
    runs: int
    room: Room
    turns: int  # turns in another run like the last that the budget allows, were all open runs done
    turns_planned: int

    @property
    def room_words(self) -> str:
        """Whether there is room for another run like the last, and for how many turns."""
        if self.room == "part" and self.turns:
            return f"for {self.turns:,} of {self.turns_planned:,} turns"
        return ROOM[self.room]


@dataclass(frozen=True)
class ClassRow:
    """A budget class of a ledger."""

    name: str
    clients: int
    spent: float  # the most of any client
    promised: float  # the most
    left: float  # the least
    share: float  # the largest
    near: int  # clients at the threshold or beyond
    no_room: int  # clients that cannot join another run like the last
    some_room: int  # clients that could join it, but not to its end


@dataclass(frozen=True)
class RunRow:
    """A run of a ledger; epsilons are of the client that spends most in it, as if it were the only run."""

    run: str
    operator: str
    method: str
    open: bool
    clients: int
    rounds: int  # of the plan
    reserved: int
    refusals: int
    spent: float
    planned: float
    admitted: str


def class_names(lifetime: Lifetime) -> tuple[list[str], list[int]]:
    """Return the classes of the budgets that clients came with, and the number of each client's class."""
    names, member = lifetime.population.classes()
    return [name.replace("ε inf", "public data").replace("inf", "∞") for name in names], member.tolist()


def accounts(source: Source) -> list[Account]:
    """Return every client's account, in the ledger's order."""
    life = source.lifetime
    names, member = class_names(life)
    left, spent_share = life.left, life.share
    runs = sum((each.member.astype(np.int64) for each in life.runs), np.zeros(len(life.budget), np.int64))
    return [
        Account(
            ledger=source.name,
            client=client,
            budget_class=names[member[i]],
            delta=float(life.population.delta[i]),
            budget=float(life.budget[i]),
            spent=float(life.spent[i]),
            promised=float(life.promised[i]),
            left=float(left[i]),
            share=float(spent_share[i]),
            runs=int(runs[i]),
            room=life.room[i],
            turns=int(life.turns[i]),
            turns_planned=int(life.turns_planned[i]),
        )
        for i, client in enumerate(life.population.client)
    ]


def classes(source: Source, threshold: float = NEAR) -> list[ClassRow]:
    """Return the classes of the budgets that clients came with, strictest first."""
    by_class: dict[str, list[Account]] = {name: [] for name in class_names(source.lifetime)[0]}
    for each in accounts(source):
        by_class[each.budget_class].append(each)
    return [
        ClassRow(
            name=name,
            clients=len(mine),
            spent=max(each.spent for each in mine),
            promised=max(each.promised for each in mine),
            left=min(each.left for each in mine),
            share=max(each.share for each in mine),
            near=sum(each.share >= threshold for each in mine),
            no_room=sum(each.room == "none" for each in mine),
            some_room=sum(each.room == "part" for each in mine),
        )
        for name, mine in by_class.items()
    ]


def runs(source: Source) -> list[RunRow]:
    """Return the runs of a ledger, the last one first."""
    return [
        RunRow(
            run=each.run.id,
            operator=source.operator(each.operator) if each.operator else "",
            method=each.run.method,
            open=each.run.closed is None,
            clients=each.run.clients,
            rounds=each.run.rounds,
            reserved=each.run.reserved,
            refusals=each.run.refusals,
            spent=float(each.spent.max(initial=0.0)),
            planned=float(each.planned.max(initial=0.0)),
            admitted=each.run.admitted,
        )
        for each in reversed(source.lifetime.runs)
    ]


def by_run(source: Source, client: str) -> list[tuple[str, float, float | None]]:
    """Return run, epsilon spent and, of open runs, epsilon of the whole plan: of one client, each run alone.

    The last run comes first.
    """
    i = source.place[client]
    return [
        (each.run.id, float(each.spent[i]), None if each.run.closed else float(each.planned[i]))
        for each in reversed(source.lifetime.runs)
        if each.member[i]
    ]


def alerts(found: Iterable[Account], threshold: float) -> list[Account]:
    """Return the accounts of which this share of the budget or more is spent, the largest share first."""
    reached = (each for each in found if each.share >= threshold)
    return sorted(reached, key=lambda each: (-each.share, each.ledger, each.client))


def urgent(found: Iterable[Account]) -> list[Account]:
    """Return all accounts, those with the largest share spent first."""
    return sorted(found, key=lambda each: (-each.share, each.left, each.client))


def again(source: Source) -> str:
    """Return a sentence on whether the ledger would admit the last plan once more; empty without a run."""
    life = source.lifetime
    if life.admits_again is None:
        return ""
    last = life.runs[-1].run
    no_room, some = life.room.count("none"), life.room.count("part")
    said = f"A run like the last one, {last.id}, would {'' if life.admits_again else 'not '}be admitted again"
    if last.unprotected:
        return f"{said}, unless its cost is accepted explicitly: it has no bound."
    parts = [f"{numbers.count(no_room, 'client')} cannot join it"] if no_room else []
    parts += [f"{numbers.count(some, 'client')} could not stay to its end"] if some else []
    return f"{said}: {' and '.join(parts)}." if parts else f"{said}: everybody has room for it."


def share(value: float) -> str:
    """Return a share of a budget in per cent, rounded up to a tenth."""
    return "∞" if math.isinf(value) else f"{math.ceil(1000 * value - 1e-9) / 10:g} %"


def to_record(sources: Sequence[Source], threshold: float = NEAR) -> dict[str, Any]:
    """Return all tables as a record for JSON."""
    return {"ledgers": [_ledger_record(source, threshold) for source in sources]}


def _ledger_record(source: Source, threshold: float) -> dict[str, Any]:
    life, found = source.lifetime, accounts(source)
    return {
        "ledger": source.name,
        "rule": life.rule,
        "unit": life.kind[0] if life.kind else None,
        "adjacency": life.kind[1] if life.kind else None,
        "last_run": life.runs[-1].run.id if life.runs else None,
        "admits_last_again": life.admits_again,
        "classes": [asdict(row) for row in classes(source, threshold)],
        "clients": [
            {name: value for name, value in asdict(each).items() if name != "ledger"}
            | {"by_run": [_run_record(*row) for row in by_run(source, each.client)]}
            for each in found
        ],
        "runs": [asdict(row) for row in runs(source)],
        "operators": {source.operator(key): spent for key, spent in life.operators.items()},
    }


def _run_record(run: str, spent: float, planned: float | None) -> dict[str, Any]:
    return {"run": run, "spent": spent, "planned": planned}
