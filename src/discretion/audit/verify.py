"""Verification of a run: every epsilon counted again by dp-accounting, every record against the others."""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from discretion import jsonfile
from discretion.accounting import Accountant, Certificate, Reference, certify
from discretion.accounting.certificate import share_of, worst_of
from discretion.accounting.cross_check import kinds_of, precision
from discretion.accounting.reference import countable
from discretion.arrays import Floats, Ints
from discretion.audit import statements
from discretion.audit.attack import contradictions, read_audit
from discretion.audit.ledger_check import Finding, all_hold, finding, reconcile
from discretion.errors import LedgerError, PlanError
from discretion.ledger.entries import Accounts
from discretion.ledger.reader import DAMAGED, LedgerReader
from discretion.plan.plan import ADVERSARIES
from discretion.plan.steps import COLUMNS, Steps
from discretion.runs import preflight
from discretion.runs.build import load_data, parameters_of
from discretion.runs.folder import read_checkpoint
from discretion.runs.manifest import compare
from discretion.runs.prepare import build_task
from discretion.runs.read import AnyRun, Life, Run, budgets_now, read_runs

LOOSE = "a fixed number is drawn, for which the second accountant has no tight bound: not compared"
BEYOND = "kinds of clients have so little noise that the second accountant cannot count them: not compared"
REPEATED = 1e-6  # how far what one accountant says twice, on two machines, may be apart


@dataclass(frozen=True)
class Counted:
    """A budget class, represented by its recounted client that uses most of its budget."""

    name: str
    clients: int
    budget: float
    certified: float  # by the certificate
    planned: float  # of the whole plan, by the second accountant
    recorded: float  # of all rounds of this run in the ledger, by the second accountant
    life: float | None  # of all runs in the ledger, by the second accountant; None where it is not at hand
    left: float | None  # of the budget now, over all runs; the least of a client where there are others


@dataclass(frozen=True)
class Verification:
    """Findings on a run: whether its `records` fit each other, and whether its `budgets` are kept.

    Guarantees:
        Budgets are kept only if the second accountant says so, of the plan, and of all that is on record in
        the ledger, by more than the precision of two upper bounds for no client that was counted.
        Records hold only if plan, population, settings, ledger, history and checkpoint fit each other, every
        row of the ledger is what the plan makes of it (`reconcile`), every entry of the certificate is what
        the first accountant says of the plan now, and no audit that is kept contradicts the certificate.
        Neither is said to hold where something could not be compared: then it is None.
    """

    run: str
    name: str  # of the run's folder
    done: int  # rounds on record
    charged: int  # rounds: one that was interrupted is charged, and not done
    rounds: int  # of the plan
    accountant: str  # the second
    tolerance: float  # by which its epsilons may lie above a budget that is kept, of the largest one counted
    counted: int  # kinds of clients that were counted again
    kinds: int  # of clients there are
    stopped: str  # that too few clients were ready, so that the run did not begin or go on; else empty
    answered: str  # who was there and trained, in sentences; empty where all are in one process
    classes: tuple[Counted, ...]
    records: tuple[Finding, ...]
    budgets: tuple[Finding, ...]
    alone: bool  # whether the ledger is the run's own, and no other run is counted
    elsewhere: tuple[str, ...] = ()  # checks that need the run folder, where only a page was read

    @property
    def whole(self) -> bool | None:
        return all_hold(self.records)

    @property
    def kept(self) -> bool | None:
        return all_hold(self.budgets)


def verify(
    run: AnyRun, second: Accountant | None = None, every: bool = False, data: bool = False
) -> Verification:
    """Recount every epsilon of a run, compare its records, and return the findings; write nothing.

    Where clients are of more than 100 kinds, only a sample is recounted, unless `every` kind is asked for:
    those that use most of their budgets, by the certificate and by Rényi accounting, and the worst client of
    each budget class. With `data` the data set is loaded and
    compared with the one that the run was made from.
    """
    (run,) = read_runs([run])
    compare(run.files)
    more = [*([_of_data(run)] if data else []), _of_checkpoint(run)]
    ledger = run.reading()
    return examine(run, ledger, second or Reference(), every, more)


def examine(
    run: Run,
    ledger: LedgerReader | None,
    second: Accountant,
    every: bool,
    more: Sequence[Finding],
    elsewhere: Sequence[str] = (),
) -> Verification:
    """Return the findings on a run by its ledger, with `more` findings on its records.

    The ledger is closed. `elsewhere` names the checks that need the run folder and are left out.
    """
    fresh = certify(run.plan, run.population)
    records = [*_of_files(run, fresh), _of_history(run)]
    if run.turnout is not None and not elsewhere:
        records.append(_of_answers(run))
    if run.audit_text is not None:
        records.append(_of_audit(run))
    records += more
    steps = run.plan.steps()
    own = life = Steps.none(len(run.population))
    budgets = Budgets(run.population.epsilon, run.population.epsilon)
    if ledger is None:
        done = run.history.done
        otherwise = f"none that can be read, but {done} rounds are done"
        records.append(finding("ledger", done == 0, "nothing is on record yet", otherwise))
    else:
        with ledger:
            accounts = ledger.accounts(run.population.client)
            records += _of_ledger(run, fresh, accounts, ledger, elsewhere)
            try:
                own, life = accounts.steps(only=run.about.id), accounts.steps()
                budgets = _changed(ledger, run)
            except (LedgerError, PlanError, *DAMAGED) as problem:
                records.append(Finding("ledger, read", False, f"it is damaged: {problem}"))
    changed = (budgets.charged, budgets.now)
    chosen, kinds = kinds_of([steps, own, life], run.population, fresh, every=every, apart=changed)
    delta = run.population.delta[chosen]
    planned = _again(second, steps.of(chosen), delta)
    recorded = planned if _same(steps, own) else _again(second, own.of(chosen), delta)
    whole = recorded if _same(own, life) else _again(second, life.of(chosen), delta)
    again = np.stack([planned, recorded, whole])
    return Verification(
        run=run.about.id,
        name=run.name,
        done=run.history.done,
        charged=run.ledger.reserved if run.ledger else run.history.done,
        rounds=run.plan.rounds,
        accountant=second.name,
        tolerance=_tolerance(budgets.charged),
        counted=int((~np.isnan(again).any(axis=0)).sum()),
        kinds=kinds,
        stopped="" if elsewhere else preflight.stopped(run),
        answered=run.answered,
        classes=_by_class(run, chosen, again, budgets.now[chosen]),
        records=tuple(records),
        budgets=tuple(_of_budgets(run, fresh, budgets, chosen, again, second)),
        alone=run.alone,
        elsewhere=tuple(elsewhere),
    )


def _tolerance(budget: Floats) -> float:
    """Return the largest precision with which budgets are compared, rounded up to four decimals."""
    return math.ceil(1e4 * float(precision(budget[np.isfinite(budget)]).max(initial=0.0))) / 1e4


def _again(second: Accountant, steps: Steps, delta: Floats) -> Floats:
    """Return (K,) epsilon by the second accountant; not a number where it cannot count the steps."""
    can = countable(steps, delta) if isinstance(second, Reference) else np.ones(len(delta), dtype=bool)
    found = np.full(len(delta), math.nan)
    found[can] = second.epsilon(steps.of(np.flatnonzero(can)), delta[can])
    return found


def _of_files(run: Run, fresh: Certificate) -> Iterator[Finding]:
    plan, certificate, population = run.plan, run.certificate, run.population
    yield finding("plan", certificate.plan == plan.digest(), "the certificate is of this plan", run.broken)
    fits = certificate.population == population.digest()
    yield finding("population", fits, "the certificate is of these clients and budgets", run.broken)
    odd = other_entries(run, fresh)
    said = "every entry is what the first accountant says of the plan now"
    yield finding("certificate", not odd, said, f"not what the first accountant says now: {', '.join(odd)}")
    odd = _other_settings(run)
    said = "method, its parameters and randomness of config.toml are those of the plan"
    yield finding("settings", not odd, said, f"config.toml and plan differ in {', '.join(odd)}")


def other_entries(run: Run, fresh: Certificate) -> list[str]:
    """Return the entries of a run's certificate.json that differ from a fresh certificate of its plan."""
    return _other(jsonfile.loads(run.certificate_text), jsonfile.loads(fresh.to_json()))


def _other(said: dict[str, Any], again: dict[str, Any]) -> list[str]:
    """Return the names of the entries in which two records differ by more than rounding."""
    return [name for name in {**again, **said} if not _alike(said.get(name), again.get(name))]


def _alike(one: Any, other: Any) -> bool:
    if one == other:  # most are, and this is quick for long columns
        return True
    if isinstance(one, dict) and isinstance(other, dict):
        return not _other(one, other)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_alike, one, other))
    return isinstance(one, float) and isinstance(other, float) and math.isclose(one, other, rel_tol=REPEATED)


def _other_settings(run: Run) -> list[str]:
    plan, wanted = run.plan, run.config.plan
    asked = parameters_of(run.config, plan.parameters)
    odd = [] if wanted.method == plan.method else ["method"]
    odd += [name for name, value in asked.items() if plan.parameters.get(name) != value]
    odd += [] if wanted.integers == (plan.grid is not None) else ["integers"]
    return odd + ([] if run.config.train.randomness == plan.randomness else ["randomness"])


def _of_history(run: Run) -> Finding:
    done, rounds = run.history.done, run.plan.rounds
    in_order = [line.round for line in run.history.lines] == list(range(1, done + 1))
    fits = in_order and (done == rounds if run.finished else done <= rounds)
    state = "finished" if run.finished else "unfinished"
    said = f"{state}, with {done} of {rounds} rounds"
    return finding("history", fits, said, f"{said}, not each of them once")


def _of_answers(run: Run) -> Finding:
    """Find whether no round was released in which too few clients were there, and none is told twice."""
    heard = run.answers
    rounds, stops = [each.round for each in heard], [each.round for each in heard if not each.enough]
    fits = rounds == sorted(set(rounds)) and set(stops) <= {run.history.done + 1}
    return finding("answers", fits, run.answered, f"round {stops or rounds} is on record out of its turn")


def _of_audit(run: Run) -> Finding:
    """Find whether attacks contradict what is certified of some budget class."""
    found, names = read_audit(run), [run.classes[0][k] for k in contradictions(run)]
    assert found is not None
    said = f"attacked in {found.games:,} games, made {found.made}: nothing contradicts the certificate"
    otherwise = statements.contradicted(names, found.contradictions)
    return finding("audit", not names, said, f"{otherwise[:1].lower()}{otherwise[1:]}")


def _of_data(run: Run) -> Finding:
    name = build_task(run.config, load_data(run.config), run.population, run.files.secret()).name
    said = "settings, clients, records and first model are those that the run was made from"
    return finding("data", name == run.about.id, said, "the run was made from others than are there now")


def _of_ledger(
    run: Run, fresh: Certificate, accounts: Accounts, ledger: LedgerReader, elsewhere: Sequence[str]
) -> Iterator[Finding]:
    assert run.ledger is not None
    done, rounds = run.history.done, run.plan.rounds
    reserved, committed = run.ledger.reserved, run.ledger.committed
    known = accounts.about(run.about.id)
    if known is None:
        yield finding("ledger", done == 0, "not admitted yet", f"no such run, but {done} rounds are done")
        return
    odd = [name for name, value in known.items() if value != getattr(fresh, name)]
    yield finding("ledger", not odd, "it has this plan", f"it has another {', '.join(odd)} of this run")
    fits = committed <= done <= reserved <= done + 1 and (not run.finished or committed == rounds)
    said = f"{committed} rounds released, {reserved - committed} reserved; history has {done}"
    yield finding("rounds on record", fits, said, f"{said}: they do not fit")
    yield from reconcile(ledger, run, elsewhere)


def _of_checkpoint(run: Run) -> Finding:
    committed, reserved = (run.ledger.committed, run.ledger.reserved) if run.ledger else (0, 0)
    state = read_checkpoint(run.files)
    if state is None:
        said = "there is none"
        return finding("checkpoint", run.finished or not committed, said, f"{said}, but {committed} rounds")
    said = f"it is of round {state.round}; {reserved} are on record, {committed} released"
    return finding("checkpoint", committed <= state.round <= reserved, said, f"{said}: they do not fit")


def _same(one: Steps, other: Steps) -> bool:
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in COLUMNS)


def _by_class(run: Run, chosen: Ints, again: Floats, now: Floats) -> tuple[Counted, ...]:
    names, member = run.classes
    budget, certified = run.population.epsilon[chosen], run.certificate.spent[chosen]
    again = np.where(np.isnan(again), math.inf, again)  # no bound was found
    worst = worst_of(member[chosen], share_of(again[0], budget))
    sizes, spent = np.bincount(member).tolist(), np.maximum(again[1], again[2])
    alone = np.array_equal(again[1], again[2]) and np.array_equal(now, budget)
    whose = worst if alone else np.arange(len(chosen))
    left = Life(now[whose], spent[whose]).least(member[chosen[whose]])
    values = np.column_stack([np.stack([budget, certified, *again])[:, worst].T, left]).tolist()
    return tuple(Counted(name, size, *each) for name, size, each in zip(names, sizes, values, strict=True))


def _of_budgets(
    run: Run, fresh: Certificate, changed: "Budgets", chosen: Ints, again: Floats, second: Accountant
) -> Iterator[Finding]:
    """Yield the findings on budgets; `again` has (3, K) epsilons: of the plan, the run and all runs."""
    planned, recorded, life = again
    certificate, names = run.certificate, [run.population.client[i] for i in chosen]
    budget, certified = run.population.epsilon[chosen], certificate.spent[chosen]
    tight = run.plan.sampling != "fixed_size"
    if tight:
        said = "the second accountant says no more than the certificate, within the precision of both"
        yield _bounded("certificate, again", planned, certified, said, names)
        for who in ADVERSARIES:
            claimed, steps = certificate.epsilon[who][chosen], run.plan.steps(against=who)
            if np.isfinite(claimed).any():
                same = _same(steps, run.plan.steps())
                seen = planned if same else _again(second, steps.of(chosen), run.population.delta[chosen])
                said = f"no more against {who}, within the precision of both"
                yield _bounded(f"against {who}", seen, claimed, said, names)
    else:
        yield Finding("certificate, again", None, LOOSE)
        planned = fresh.spent[chosen]
    over = fresh.overspent
    if fresh.promises_nothing:
        yield Finding("budgets, by the plan", False, f"{statements.NOBODY.lower()}: epsilon is infinite")
    elif len(over):
        said = f"client {fresh.clients[over[0]]}: {fresh.spent[over[0]]:.6g} by the first accountant"
        yield Finding("budgets, by the plan", False, f"{said}, not {fresh.budget[over[0]]:.6g}")
    else:
        yield _bounded(
            "budgets, by the plan", planned, budget, "no budget that it was made for is passed", names
        )
    said = "what is on record costs no more than the certificate says"
    found = [_bounded("budgets, by the ledger", recorded, certified, said, names)]
    if run.ledger and (run.ledger.other_runs or changed.some):
        others = f", with {run.ledger.other_runs} more runs on the ledger" if run.ledger.other_runs else ""
        said = f"no budget was passed when it was charged{others}"
        found.append(_bounded("budgets, over all runs", life, changed.charged[chosen], said, names))
    for each in found:
        yield each if tight or each.holds else Finding(each.what, None, LOOSE)
    low = changed.now[chosen]
    if len(below := np.flatnonzero((low < changed.charged[chosen]) & (life > low + precision(low)))):
        worst = below[int(np.argmax(life[below] - low[below]))]
        said = (
            f"by {len(below)} of {len(names)} clients counted, to less than was spent already, such as client"
        )
        said += (
            f" {names[worst]}: {low[worst]:.6g}, spent {life[worst]:.6g}; no further round is charged to them"
        )
        yield Finding("budgets, lowered since", True, said)


def _bounded(what: str, again: Floats, limit: Floats, said: str, names: Sequence[str]) -> Finding:
    """Find whether `again` exceeds `limit` for any client by more than the precision of two upper bounds."""
    endless, unknown = np.isinf(limit), np.isnan(again)
    over = np.flatnonzero(~((again <= limit + precision(limit)) | endless | unknown))
    if not len(over):
        left = int((unknown & ~endless).sum())
        return Finding(what, None, f"{left} of {len(names)} {BEYOND}") if left else Finding(what, True, said)
    with np.errstate(divide="ignore"):
        worst = over[int(np.argmax(again[over] / limit[over]))]
    return Finding(what, False, f"client {names[worst]}: {again[worst]:.6g}, not {limit[worst]:.6g}")


@dataclass(frozen=True)
class Budgets:
    """(N,) epsilon that each client allowed when it was last charged, plus later top-ups; and allows now."""

    charged: Floats
    now: Floats
    some: bool = False  # whether any was changed


def _changed(ledger: LedgerReader, run: Run) -> Budgets:
    """Return budgets with all changes; a client that is not on record, which is a finding, has its own."""
    known, by = ledger.budgets(), defaultdict[str, list[float]](list)
    names = run.population.client
    for change in ledger.changes():
        by[change.client].append(change.by)
    now = dict(zip(names, budgets_now(ledger, run.population).tolist(), strict=True))
    lowered = (name for name in names if name in known and min(by[name], default=0.0) < 0)
    charged = now | {name: ledger.charged_under(name) for name in lowered}
    return Budgets(np.array(list(charged.values())), np.array(list(now.values())), any(by.values()))


def to_record(found: Verification) -> dict[str, Any]:
    """As JSON holds it."""
    counts = ("done", "charged", "rounds", "accountant", "tolerance", "kept", "whole", "counted", "kinds")
    names = ("run", "name", "stopped", "answered", *counts, "alone", "elsewhere")
    classes, findings = found.classes, (*found.records, *found.budgets)
    lists = {"classes": [vars(each) for each in classes], "findings": [vars(each) for each in findings]}
    return {name: getattr(found, name) for name in names} | lists
