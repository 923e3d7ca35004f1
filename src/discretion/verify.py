"""Whether a run is what it says: each epsilon counted again by others' code, each record against the rest."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from discretion.accounting import Accountant, Reference
from discretion.accounting.certify import share_of
from discretion.accounts import Accounts
from discretion.errors import LedgerError, PlanError
from discretion.kinds import distinct
from discretion.plan import ADVERSARIES
from discretion.population import Floats, Ints
from discretion.report.reading import Run, opened, read_run
from discretion.runs import RunFolder, load_data, set_up
from discretion.steps import Steps

MOST_KINDS = 100  # of clients with a cost of their own that are counted again, unless all are asked for
# what a certificate repeats of its plan
SHARED = (
    *("method", "unit", "adjacency", "noise_at", "promise", "colluding", "dropout", "rounds", "reads"),
    "accounting",
)
RELATIVE, ABSOLUTE = 5e-3, 2e-3  # how far two upper bounds, on grids of their own, may be apart


@dataclass(frozen=True)
class Finding:
    what: str
    holds: bool
    said: str  # what was found, in words


@dataclass(frozen=True)
class Counted:
    """A budget class, by its client that uses most of its budget, of those that were counted again."""

    name: str
    clients: int
    budget: float
    certified: float  # by the certificate
    planned: float  # of the whole plan, by the second accountant
    recorded: float  # of all rounds of this run in the ledger, by the second accountant
    life: float  # of all runs in the ledger, by the second accountant


@dataclass(frozen=True)
class Verification:
    """What was found. `records` contradict each other or do not; `budgets` are kept or not.

    Guarantees:
        Budgets are kept only if the second accountant says so, of the plan, and of all that is on record in
        the ledger, by more than the precision of two upper bounds for no client that was counted.
        Records hold only if plan, population, certificate, ledger and history fit each other.
    """

    run: str
    accountant: str  # the second
    counted: int  # kinds of clients that were counted again
    kinds: int  # of clients there are
    classes: tuple[Counted, ...]
    records: tuple[Finding, ...]
    budgets: tuple[Finding, ...]

    @property
    def whole(self) -> bool:
        return all(found.holds for found in self.records)

    @property
    def kept(self) -> bool:
        return all(found.holds for found in self.budgets)


def verify(
    path: Path, second: Accountant | None = None, every: bool = False, data: bool = False
) -> Verification:
    """Count again and compare; writes nothing.

    Where clients are of more than `MOST_KINDS` kinds, those are counted that use most of their budgets, or
    `every` one. With `data` the data set is loaded, to see that it is the one the run was made from.
    """
    run, second = read_run(path), second or Reference()
    records = [*_of_files(run), *_of_history(run)]
    if data:
        records.append(_of_data(run))
    steps = run.plan.steps()
    own = life = Steps.none(len(run.population))
    with _ledger(run) as accounts:
        records += _of_ledger(run, accounts)
        try:
            if accounts:
                own, life = accounts.steps(only=run.about.id), accounts.steps()
        except (LedgerError, PlanError, sqlite3.Error, ValueError, TypeError, LookupError) as problem:
            records.append(Finding("ledger, read", False, f"it is damaged: {problem}"))
    chosen, kinds = _chosen(run, [steps, own, life], every)
    delta = run.population.delta[chosen]
    planned = second.epsilon(steps.of(chosen), delta)
    recorded = planned if _same(steps, own) else second.epsilon(own.of(chosen), delta)
    whole = recorded if _same(own, life) else second.epsilon(life.of(chosen), delta)
    return Verification(
        run=run.about.id,
        accountant=second.name,
        counted=len(chosen),
        kinds=kinds,
        classes=_by_class(run, chosen, planned, recorded, whole),
        records=tuple(records),
        budgets=tuple(_of_budgets(run, chosen, planned, recorded, whole, second)),
    )


def _of_files(run: Run) -> Iterator[Finding]:
    plan, certificate, population = run.plan, run.certificate, run.population
    yield _finding("plan", certificate.plan == plan.digest(), "the certificate is of this plan", run.broken)
    fits = certificate.population == population.digest()
    yield _finding("population", fits, "the certificate is of these clients and budgets", run.broken)
    odd = [name for name in SHARED if getattr(certificate, name) != getattr(plan, name)]
    same = np.array_equal(certificate.budget, population.epsilon)
    odd += [] if same and np.array_equal(certificate.delta, population.delta) else ["budgets"]
    said = "the certificate says of the plan what the plan says"
    yield _finding("certificate", not odd, said, f"it says something else of {', '.join(odd)}")
    how = run.config.plan.method == plan.method and run.config.train.randomness == plan.randomness
    other = f"they say {run.config.plan.method}, the plan {plan.method}"
    yield _finding("settings", how, "method and randomness of config.toml are those of the plan", other)


def _finding(what: str, holds: bool, said: str, otherwise: str) -> Finding:
    return Finding(what, holds, said if holds else otherwise)


def _of_history(run: Run) -> Iterator[Finding]:
    done, rounds = run.history.done, run.plan.rounds
    in_order = run.history.lines == tuple(range(1, done + 1))
    fits = in_order and (done == rounds if run.finished else done <= rounds)
    state = "finished" if run.finished else "unfinished"
    said = f"{state}, with {done} of {rounds} rounds"
    yield _finding("history", fits, said, f"{said}, not each of them once")


def _of_data(run: Run) -> Finding:
    folder = RunFolder(run.folder)
    key = folder.key.read_bytes() if folder.key.exists() else b""
    name = set_up(run.config, load_data(run.config), run.population, key).name
    said = "settings, clients, records and first model are those that the run was made from"
    return _finding("data", name == run.about.id, said, "the run was made from others than are there now")


@contextmanager
def _ledger(run: Run) -> Iterator[Accounts | None]:
    """All that is on record, as of one moment; nothing where there is no ledger."""
    path = RunFolder(run.folder).ledger(run.config)
    if run.ledger is None:
        yield None
        return
    with closing(opened(path)) as db:

        def read(query: str, values: Sequence[object]) -> list[Any]:
            return db.execute(query, values).fetchall()

        place = {name: i for i, name in enumerate(run.population.client)}
        yield Accounts(read, place)


def _of_ledger(run: Run, accounts: Accounts | None) -> Iterator[Finding]:
    done, rounds = run.history.done, run.plan.rounds
    if accounts is None or run.ledger is None:
        yield _finding("ledger", done == 0, "nothing is on record yet", f"none, but {done} rounds are done")
        return
    known = accounts.about(run.about.id)
    if known is None:
        yield _finding("ledger", done == 0, "not admitted yet", f"no such run, but {done} rounds are done")
        return
    odd = [
        name
        for name, mine in (
            ("plan", run.plan.digest()),
            ("unit", run.plan.unit),
            ("adjacency", run.plan.adjacency),
            ("promise", run.plan.promise),
        )
        if known[name] != mine
    ]
    yield _finding("ledger", not odd, "it has this plan", f"it has another {', '.join(odd)} of this run")
    reserved, committed = run.ledger.reserved, run.ledger.committed
    fits = committed <= done <= reserved <= done + 1 and (not run.finished or committed == rounds)
    said = f"{committed} rounds released, {reserved - committed} reserved; history has {done}"
    yield _finding("rounds on record", fits, said, f"{said}: they do not fit")


def _chosen(run: Run, costs: Sequence[Steps], every: bool) -> tuple[Ints, int]:
    """A client of each kind, and how many kinds there are; kinds differ in cost, delta or budget."""
    rows = [column for s in costs for column in (*s.rate, *s.multiplier, *s.count.astype(np.float64))]
    rows += [run.population.delta, run.population.epsilon, *run.certificate.epsilon.values()]
    found, member = distinct(np.stack(rows))
    first = np.unique(member, return_index=True)[1]
    if every or len(first) <= MOST_KINDS:
        return first, found.shape[1]
    worst = first[np.argsort(-run.certificate.share[first], kind="stable")[:MOST_KINDS]]
    return np.union1d(worst, run.worst), found.shape[1]


def _same(one: Steps, other: Steps) -> bool:
    pairs = ((getattr(one, name), getattr(other, name)) for name in ("rate", "multiplier", "count"))
    return all(np.array_equal(a, b) for a, b in pairs)


def _by_class(run: Run, chosen: Ints, planned: Floats, recorded: Floats, life: Floats) -> tuple[Counted, ...]:
    names, member = run.classes
    found = []
    for k, name in enumerate(names):
        mine = np.flatnonzero(member[chosen] == k)
        budget = run.population.epsilon[chosen[mine]]
        at = mine[int(np.argmax(share_of(planned[mine], budget)))]
        client = chosen[at]
        values = (run.population.epsilon[client], run.certificate.spent[client])
        again = (planned[at], recorded[at], life[at])
        found.append(Counted(name, int((member == k).sum()), *map(float, (*values, *again))))
    return tuple(found)


def _of_budgets(
    run: Run, chosen: Ints, planned: Floats, recorded: Floats, life: Floats, second: Accountant
) -> Iterator[Finding]:
    certificate, names = run.certificate, [run.population.client[i] for i in chosen]
    budget, certified = run.population.epsilon[chosen], certificate.spent[chosen]
    if run.plan.sampling == "fixed_size":
        said = "a fixed number is drawn, for which the second accountant has no tight bound: not compared"
        yield Finding("certificate, again", True, said)
        planned = certified
    else:
        said = "the second accountant says the same as the certificate, or less"
        yield _bounded("certificate, again", planned, certified, said, names)
        for who in ADVERSARIES:
            claimed = certificate.epsilon[who][chosen]
            if np.isfinite(claimed).any() and not np.array_equal(claimed, certified):
                seen = second.epsilon(run.plan.steps(against=who).of(chosen), run.population.delta[chosen])
                yield _bounded(f"against {who}", seen, claimed, f"the same against {who}, or less", names)
    if certificate.promises_nothing:
        yield Finding("budgets, by the plan", False, "epsilon is infinite: nobody is protected")
    elif len(certificate.overspent):
        first = int(certificate.overspent[0])
        said = f"client {certificate.clients[first]}: {certificate.spent[first]:.6g} by the certificate"
        yield Finding("budgets, by the plan", False, f"{said}, not {certificate.budget[first]:.6g}")
    else:
        yield _bounded("budgets, by the plan", planned, budget, "no client’s budget is passed", names)
    said = "what is on record costs no more than the certificate says"
    yield _bounded("budgets, by the ledger", recorded, certified, said, names)
    if run.ledger and run.ledger.other_runs:
        said = f"with {run.ledger.other_runs} more runs on the ledger, no client’s budget is passed"
        yield _bounded("budgets, over all runs", life, _changed(run)[chosen], said, names)


def _bounded(what: str, again: Floats, limit: Floats, said: str, names: Sequence[str]) -> Finding:
    """Whether one bound is no more than another for any of the clients, but for their precision."""
    over = np.flatnonzero(~((again <= limit * (1 + RELATIVE) + ABSOLUTE) | np.isinf(limit)))
    if not len(over):
        return Finding(what, True, said)
    worst = over[int(np.argmax(again[over] / limit[over]))]
    return Finding(what, False, f"client {names[worst]}: {again[worst]:.6g}, not {limit[worst]:.6g}")


def _changed(run: Run) -> Floats:
    """(N,) budgets with top-ups and withdrawals."""
    path = RunFolder(run.folder).ledger(run.config)
    with closing(opened(path)) as db:
        first = dict(db.execute("SELECT name, epsilon FROM client").fetchall())
        more = dict(db.execute("SELECT client, SUM(MAX(epsilon, 0)) FROM change GROUP BY client").fetchall())
    return np.array([first[name] + more.get(name, 0.0) for name in run.population.client])


def to_record(found: Verification) -> dict[str, Any]:
    """As JSON holds it."""
    return {
        "run": found.run,
        "accountant": found.accountant,
        "kept": found.kept,
        "whole": found.whole,
        "counted": found.counted,
        "kinds": found.kinds,
        "classes": [vars(each) for each in found.classes],
        "findings": [vars(each) for each in (*found.records, *found.budgets)],
    }
