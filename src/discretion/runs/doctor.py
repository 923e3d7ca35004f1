"""Local checks of a run before it is begun: data, clients, key, addresses, ledger and plan, all at once."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from discretion.clients.messages import public_bytes, read_key
from discretion.clients.transport import read_addresses
from discretion.errors import DiscretionError, InputError, listed
from discretion.ledger.ledger import Ledger
from discretion.ledger.store import copy_ledger
from discretion.runs.build import declared_population, load_data
from discretion.runs.config import Config
from discretion.runs.places import missing_places
from discretion.runs.prepare import draft
from discretion.runs.read import Run
from discretion.tasks.datasets import Dataset
from discretion.tasks.fetch import Report

MOST_LABELS = 10  # in one line


@dataclass(frozen=True)
class LocalCheck:
    what: str
    holds: bool
    said: str


@dataclass(frozen=True)
class Diagnosis:
    """What was found here; `run` is the run as it would be made, None where it cannot be."""

    checks: tuple[LocalCheck, ...]
    run: Run | None
    key: bytes = b""  # of the run's name

    def require(self) -> None:
        """Raise with everything that was found wrong."""
        wrong = [f"{each.what}: {each.said}" for each in self.checks if not each.holds]
        if wrong:
            raise InputError(
                "\n  ".join([f"{len(wrong)} thing{'s' * (len(wrong) > 1)} to mend here", *listed(wrong)])
            )


def examine(config: Config, folder: Path, report: Report | None = None) -> Diagnosis:
    """Check all that can be checked without asking anybody; nothing is written or charged.

    `report` is told what is odd about the data.
    """
    config = config.anchored()
    if missing := missing_places(config):
        return Diagnosis(tuple(LocalCheck("settings", False, each) for each in missing), None)
    data, dataset = _loaded(config, report)
    steps: dict[str, Callable[[], str]] = {}
    if config.population.csv and dataset:  # sizes may be counted in the data
        steps["population"] = partial(_population, config, dataset)
    if config.clients.where in ("guards", "flower"):
        steps["key"] = partial(_key, config)
    if config.clients.where == "guards":
        steps["addresses"] = partial(_addresses, config)
    checks = (data, *(_tried(what, step) for what, step in steps.items()))
    if not dataset or not all(each.holds for each in checks):
        return Diagnosis(checks, None)
    try:
        run, key = draft(config, folder, dataset)
    except DiscretionError as problem:
        return Diagnosis((*checks, LocalCheck("plan", False, str(problem))), None)
    last = {"plan": partial(_plan, run)}
    if config.ledger:
        last["ledger"] = partial(_ledger, run)
    return Diagnosis((*checks, *(_tried(what, step) for what, step in last.items())), run, key)


def _tried(what: str, step: Callable[[], str]) -> LocalCheck:
    try:
        return LocalCheck(what, True, step())
    except DiscretionError as problem:
        return LocalCheck(what, False, str(problem))


def _loaded(config: Config, report: Report | None) -> tuple[LocalCheck, Dataset | None]:
    try:
        data = load_data(config, report)
    except DiscretionError as problem:
        return LocalCheck("test data", False, str(problem)), None
    named = ", ".join(data.label_names[:MOST_LABELS])
    said = f"{len(data.test.labels):,} records of {data.name}{f', labels {named}' if named else ''}"
    return LocalCheck("test data", True, said), data


def _population(config: Config, dataset: Dataset) -> str:
    return f"{len(declared_population(config, dataset)):,} clients"


def _key(config: Config) -> str:
    return f"public part {public_bytes(read_key(Path(config.clients.key))).hex()}"


def _addresses(config: Config) -> str:
    return f"{len(read_addresses(Path(config.clients.addresses))):,} guards"


def _plan(run: Run) -> str:
    share, clients = float(run.certificate.share.max()), f"{len(run.population):,} clients"
    return f"{run.plan.method}, {run.plan.rounds:,} rounds, {clients}; at most {share:.1%} of a budget"


def _ledger(run: Run) -> str:
    """Ask a copy of the shared ledger whether it would admit the plan."""
    path = Path(run.config.ledger)
    if not path.exists():
        return "a new one"
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place) / "ledger.sqlite"
        copy_ledger(path, copy)
        with Ledger(copy, run.population, run.config.rule) as ledger:
            ledger.consider(run.plan, run.config.train.accept_no_privacy)
            allowed, planned = ledger.turns(run.plan)
            short = int((allowed < planned).sum())
            some = f"; {short:,} of {len(planned):,} clients have not enough left for all of their turns"
            return f"admits the plan, after {len(ledger.runs):,} runs{some if short else ''}"
