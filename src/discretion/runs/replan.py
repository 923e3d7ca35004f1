"""New plans for the remaining rounds of a run, when clients join, leave or change budgets."""

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from discretion.arrays import Floats, Ints
from discretion.errors import BudgetError, InputError
from discretion.files import AnyPath
from discretion.ledger.ledger import Ledger
from discretion.ledger.store import copy_ledger
from discretion.plan.plan import Plan
from discretion.plan.population import Population
from discretion.runs.build import fitted, load_data, plan_of
from discretion.runs.config import Config, make
from discretion.runs.folder import RunFolder, alone, read_checkpoint
from discretion.runs.prepare import build_task, prepare
from discretion.runs.read import Run, read_run
from discretion.tasks.fetch import Report

LEAST = 0.01  # epsilon; a client with less left takes no further part
TRIES = 20
ENOUGH = 0.99  # of what each has left: a plan that uses as much of it is not made again
MARGIN = 3e-3


@dataclass(frozen=True)
class Replanned:
    """What became of the clients of a run that was planned anew."""

    rounds: int  # that are left
    joined: tuple[str, ...]
    left: tuple[str, ...]
    exhausted: tuple[str, ...]  # wanted, but with nothing left
    changed: tuple[str, ...]  # with another budget than before
    population: Population
    before: Floats  # (N,) epsilon that was spent
    total: Floats  # (N,) epsilon when the new plan is done


def replan(path: AnyPath, people: str | Path, out: AnyPath, report: Report | None = None) -> Replanned:
    """Close a run that stopped, and prepare its remaining rounds as a new run for the clients in a CSV file.

    The new run has a plan and a certificate of its own, starts from the last model, and uses the same
    ledger. Means of models, momentum and schedules begin anew.

    Guarantees:
        The new plan follows from budgets, ledger, settings and the number of rounds done: from no model, no
        answer and no data. Who decides when to plan anew, and for whom, must not look at them, either.
        What was spent stays on record: for every client of the new plan, all of it and the whole new plan
        stay within its budget as it is now.
        Nothing is changed unless such a plan is found; done again after a crash, it changes no more.
    """
    RunFolder(Path(out)).require_new()
    run = read_run(path)
    config, name, folder = run.config, run.about.id, run.files
    with alone(folder):
        if run.finished:
            raise InputError(f"{folder.path} is finished: start a new run on its ledger")
        if read_checkpoint(folder) is None:
            raise InputError(f"no round of {folder.path} is done: start a new run instead")
        sizes = dict(zip(run.population.client, run.population.size.tolist(), strict=True))
        wanted, ledger = Population.from_csv(people, sizes), folder.ledger(config)
        with tempfile.TemporaryDirectory() as scratch:
            trial = Path(scratch) / "ledger.sqlite"
            copy_ledger(ledger, trial)
            changed = _settle(trial, name, wanted)
            with Ledger(trial, wanted, config.rule) as opened:
                spare = opened.budget * config.plan.share - opened.total()
                rounds = run.plan.rounds - len(opened.states(name))
            staying = _subset(wanted, np.flatnonzero(spare >= LEAST))
            _require_own_records(config, run.population, staying)
            settings = _continued(run, Path(people), rounds)
            dataset = load_data(settings, report)
            layers = build_task(settings, dataset, staying).clients.layers
            with Ledger(trial, staying, config.rule) as opened:
                plan, before = _plan(settings, staying, layers, opened), opened.spent()
                total = opened.total(plan)
        _settle(ledger, name, wanted)
        prepare(settings, out, dataset, staying, plan)
    return Replanned(
        rounds=rounds,
        joined=tuple(c for c in staying.client if c not in run.population.client),
        left=tuple(c for c in run.population.client if c not in wanted.client),
        exhausted=tuple(c for c in wanted.client if c not in staying.client),
        changed=changed,
        population=staying,
        before=before,
        total=total,
    )


def _settle(path: Path, run: str, wanted: Population) -> tuple[str, ...]:
    """Close the run and enter changed budgets in the ledger; return the clients whose budget changed."""
    changed = []
    with Ledger.existing(path) as ledger:
        ledger.finish(run)
        now = dict(zip(ledger.population.client, ledger.budget.tolist(), strict=True))
        for client, epsilon in zip(wanted.client, wanted.epsilon.tolist(), strict=True):
            if client in now and not np.isclose(now[client], epsilon, rtol=1e-9, atol=0):
                ledger.change_budget(client, epsilon - now[client], f"when run {run} was planned anew")
                changed.append(client)
    return tuple(changed)


def _subset(population: Population, numbers: Ints) -> Population:
    if len(numbers) == 0:
        raise BudgetError("no client has anything left of its budget: top budgets up, or stop here")
    return replace(
        population,
        client=tuple(population.client[i] for i in numbers.tolist()),
        epsilon=population.epsilon[numbers],
        delta=population.delta[numbers],
        size=population.size[numbers],
        traits={name: column[numbers] for name, column in population.traits.items()},
    )


def _require_own_records(config: Config, old: Population, new: Population) -> None:
    """Refuse other clients where this process divides the records: old names would get other records."""
    same = old.client == new.client and bool((old.size == new.size).all())
    if config.clients.where == "here" and not same:
        raise InputError(
            "records of this run are dealt out to its clients by its settings, so that clients may change "
            "their budgets, but not join, leave or run out of budget: that is for clients behind guards"
        )


def _continued(run: Run, people: Path, rounds: int) -> Config:
    """Return the run's settings for its remaining rounds, on the same ledger."""
    if rounds < 1:
        raise InputError(f"no round of {run.folder} is left to plan")
    record = run.config.model_dump()
    record |= {"ledger": str(run.files.ledger(run.config).absolute()), "after": str(run.folder.absolute())}
    record["population"]["csv"] = str(people.absolute())
    record["plan"]["rounds"] = rounds
    return make(record)


def _plan(config: Config, population: Population, layers: tuple[int, ...], ledger: Ledger) -> Plan:
    """Plan by the configured method for what is left of budgets, again until the plan fits and uses it."""
    share, before = config.plan.share, ledger.total()
    spare = ledger.budget * share - before  # (N,) what is left
    limited, rest = np.isfinite(spare), spare  # costs do not just add up: what to plan for is more than that
    found, most = None, -1.0
    for _ in range(TRIES):
        mine = replace(population, epsilon=rest / share)
        plan = fitted(plan_of(config, mine), config, layers)
        used = np.divide(ledger.total(plan) - before, spare, out=np.ones(len(spare)), where=limited)
        if (used <= 1).all() and used.min() > most:
            found, most = plan, float(used.min())
        if most >= ENOUGH:
            break
        # costs grow about as the square of a small epsilon
        rest = rest * np.clip(np.sqrt((1 - MARGIN) / np.maximum(used, MARGIN)), 0.25, 4.0)
    if found is None:
        raise BudgetError(
            "no plan of this method fits what is left of the budgets: try another, in a new run"
        )
    return found
