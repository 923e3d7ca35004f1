"""The command `audit`: attack a plan, and compare what the attacks show with the certificate."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from rich.table import Table
from typer import Argument, Option

from discretion.accounting import Certificate, certify
from discretion.audit import statements
from discretion.audit.attack import CHANCE, FEWEST, Audit, Shown, playable, to_json
from discretion.audit.attack import audit as attack
from discretion.audit.training_canaries import audit_training
from discretion.cli import Json, Override, output
from discretion.errors import BudgetError, InputError
from discretion.plan.plan import Plan
from discretion.plan.population import Population
from discretion.report import numbers
from discretion.runs import config
from discretion.runs.build import fitted, load_data, plan_of, server_of
from discretion.runs.config import Config
from discretion.runs.folder import RunFolder, alone
from discretion.runs.manifest import write_audit
from discretion.runs.prepare import build_task, first_model
from discretion.runs.read import read_run
from discretion.training.loop import State


def audit(
    target: Annotated[Path, Argument(metavar="RUN|CONFIG", help="A run folder, or a config.toml.")],
    games: Annotated[
        int | None,
        Option(min=1, help="How often to play the plan; else enough. With --train: to train; else 1."),
    ] = None,
    seconds: Annotated[
        float | None, Option(help="How long to play, in place of a number of games; the rest comes on top.")
    ] = None,
    seed: Annotated[int, Option(min=0, help="Seed of the canaries' coins and of seeded plans.")] = 0,
    train: Annotated[
        bool, Option("--train", help="Attack real training runs instead: simulations, with their data.")
    ] = False,
    change: Override = None,
    json_: Json = False,
) -> None:
    """Attack a plan: find out by playing it what its releases really tell, for each budget class.

    Some clients become canaries, whose updates an attacker knows, and fair coins decide whether they are in.
    The plan is executed again and again by the real sampler, clipping and noise, without data; how well the
    attacker tells who was in gives a lower bound on epsilon, beside the upper bound of the certificate. Of a
    run, the result is kept in its folder as audit.json, and leads report, receipt, `show` and `verify` where
    it contradicts the certificate. Then this command exits with 3.

    With --train real training is attacked: every second client becomes a canary, the others train on their
    records. Few canaries show less than many games do; two of the bounds hold however canaries interfere. It
    is printed only, and kept nowhere.

    Examples: `discretion audit runs/first`, `discretion audit config.toml --seconds 60 -c plan.rounds=20`
    """
    _check(games, seconds, train)
    settings, population, plan, certificate = _found(target, change or [])
    if not playable(certificate):
        return output.answer(
            json_, {"audited": False, "why": statements.NOT_AUDITED}, note=statements.NOT_AUDITED
        )
    if train:
        return _train(target, settings, population, plan, certificate, games or 1, seed, json_)
    if target.is_dir():
        with alone(RunFolder(target)):
            pass  # better now than after the games: an audit is kept only of a run that is at rest
    with output.bars(json_) as bars:
        bar = bars.add_task(plan.method, total=100, note="% of the games")
        found = attack(
            plan,
            population,
            certificate,
            games=games,
            seconds=seconds,
            seed=seed,
            server=server_of(settings),
            progress=lambda done: bars.update(bar, completed=100 * done),
        )
    kept = ""
    if target.is_dir():
        write_audit(RunFolder(target), to_json(found).encode())
        kept = f"Kept as {RunFolder(target).audit}. To show it in the report: discretion report {target}"
    output.answer(
        json_,
        {"audited": True} | json.loads(to_json(found)),
        *_tables(found, certificate),
        statements.audited(found.games, found.chance),
        note=kept,
    )
    if found.contradicted:
        raise BudgetError(f"the certificate of {target} is contradicted: {'; '.join(found.contradictions)}")


def _check(games: int | None, seconds: float | None, train: bool) -> None:
    if games is not None and seconds is not None:
        raise InputError("found both --games and --seconds: give one of them")
    if seconds is not None and not 0 < seconds < math.inf:
        raise InputError(f"found --seconds {seconds:g}, expected a number above 0")
    if train and seconds is not None:
        raise InputError("found --seconds with --train: give --games, the number of training runs")
    if not train and games is not None and games < FEWEST:
        raise InputError(f"found --games {games}, expected at least {FEWEST}: fewer games show nothing")


def _found(target: Path, change: list[str]) -> tuple[Config, Population, Plan, Certificate]:
    """Return settings, population, plan and certificate of a run, or as a run with these settings would."""
    if target.is_dir():
        if change:
            raise InputError("a run keeps its settings: leave out -c, or give its config.toml")
        run = read_run(target, audited=False)
        run.certificate.require(run.plan, accept_no_privacy=True)
        return run.config, run.population, run.plan, run.certificate
    settings = config.read(target, change).anchored()
    task = build_task(settings, load_data(settings, output.say))
    plan = fitted(plan_of(settings, task.population), settings, task.clients.layers)
    return settings, task.population, plan, certify(plan, task.population)


def _train(
    target: Path,
    settings: Config,
    population: Population,
    plan: Plan,
    certificate: Certificate,
    runs: int,
    seed: int,
    as_json: bool,
) -> None:
    """Attack training runs with the settings' data, and show a row for each budget class."""
    if settings.train.randomness != "seeded" or settings.clients.where not in ("here", "flower-sim"):
        raise InputError(
            "found settings of a deployment; --train attacks simulations only (train.randomness seeded, "
            "clients.where here), because it trains on the records once more, and no ledger counts that"
        )
    task = build_task(settings, load_data(settings, output.say), population)
    with output.bars(as_json) as bars:
        bar = bars.add_task(plan.method, total=runs * plan.rounds, note="rounds")
        found = audit_training(
            plan,
            population,
            certificate,
            task.clients,
            State.start(first_model(settings, task.clients)),
            run=f"audit {task.name}",
            seed=seed,
            server=server_of(settings),
            runs=runs,
            progress=lambda done: bars.update(bar, completed=runs * plan.rounds * done),
        )
    figures = ("canaries", "at most: certified", "at least: attacked", "if they interfere", "of any kind")
    title = f"epsilon against {statements.observer(certificate, 'public')}: training with canaries"
    table = Table("budget", *output.right(*figures), title=title)
    for each in found:
        least = _least(each.at_least, each.contradicted)
        others = map(statements.at_least, (each.interfering, each.any_mechanism))
        table.add_row(each.name, f"{each.canaries:,}", numbers.epsilon(each.certified), least, *others)
    record = {"audited": True, "chance": CHANCE, "runs": runs, "guessed": [vars(each) for each in found]}
    output.answer(as_json, record, table, statements.audited_run(runs, CHANCE))
    if odd := [each.name for each in found if each.contradicted]:
        raise BudgetError(f"the certificate of {target} is contradicted for clients of {', '.join(odd)}")


def _tables(found: Audit, certificate: Certificate) -> list[Table]:
    """Return a table for each view, with a row for each budget class; adversaries may share a view."""
    views: dict[tuple[Shown, ...], list[str]] = {}
    for who in dict.fromkeys(each.adversary for each in found.shown):
        rows = tuple(replace(each, adversary="public") for each in found.shown if each.adversary == who)
        views.setdefault(rows, []).append(statements.observer(certificate, who))
    return [_table(rows, f"epsilon against {numbers.listing(who)}") for rows, who in views.items()]


def _table(rows: Sequence[Shown], title: str) -> Table:
    figures = ("at most: certified", "at least: attacked", "of any kind", "noise", "coins")
    table = Table("budget", *output.right(*figures), title=title)
    for each in rows:
        table.add_row(
            each.name,
            numbers.epsilon(each.certified),
            _least(each.at_least, bool(each.contradictions)),
            statements.at_least(each.any_mechanism),
            *("–" if share is None else numbers.percent(share) for share in (each.noise, each.coins)),
        )
    return table


def _least(bound: float, contradicted: bool) -> str:
    return f"[bold red]{statements.at_least(bound)}[/]" if contradicted else statements.at_least(bound)
