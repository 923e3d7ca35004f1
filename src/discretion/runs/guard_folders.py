"""Folders of guards for all clients of a run: policies, own records, the operator's key, and addresses."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import tomli_w

from discretion.clients.messages import read_key, write_key
from discretion.clients.sum_terms import unsummable
from discretion.errors import ConfigError, InputError, PlanError, PopulationError, listed
from discretion.files import write_private
from discretion.guard import policy as policies
from discretion.guard.identity import own_keys
from discretion.plan.names import same_files
from discretion.plan.plan import Plan
from discretion.plan.population import Population
from discretion.runs.build import divide, fitted, load_data, local_clients, plan_of
from discretion.runs.config import Config, DataConfig
from discretion.runs.places import require_places
from discretion.secure_sum.roster import Roster, roster_text
from discretion.tasks import own_table
from discretion.tasks.datasets import Dataset, Split
from discretion.tasks.fetch import Report

ROSTER = "roster.json"  # of all clients' keys
RECORDS, KEPT = "records.csv", "held-out.csv"  # a client's records for training, and those for testing


def write_guards(
    config: Config, out: Path, report: Report | None = None, taken: Sequence[str] = ()
) -> tuple[str, ...]:
    """Write a policy and the records of each client, and an operator's key; return the clients' names.

    Each client gets a folder of its name in `out`; `taken` has names of what else will be there. For a plan
    that needs a secure sum, guards get their keys, and a roster of them that one key signs.

    Guarantees:
        A client's folder has records of this client only, readable by their owner only.
        Nothing is written unless all clients have records, and the plan could be made.
    """
    if out.exists():
        raise InputError(f"{out} exists already: give another folder")
    here = config.model_copy(update={"clients": config.clients.model_copy(update={"where": "here"})})
    require_places(here, reached=False)
    dataset = load_data(here, report)
    as_written = _unscaled(here) if config.data.scales else dataset
    population, holdings = divide(here, dataset)
    if same := same_files(
        population.client, ("operator.key", "consortium.key", "addresses.toml", ROSTER, *taken)
    ):
        raise PopulationError("\n  ".join([f"{out}: cannot make a folder for each client", *listed(same)]))
    clients = local_clients(config, dataset, holdings)
    plan = _summed_or_trusting(config, population, clients.layers, report)
    out.mkdir(parents=True)
    public = write_key(out / "operator.key")
    sums = _write_roster(out, population.client) if plan.summed else None
    for i, name in enumerate(population.client):
        home = out / name
        home.mkdir(exist_ok=True)  # where its guard's keys may be
        policy = policies.new_policy(
            plan,
            population,
            i,
            operator=public,
            model=(config.model.name, clients.shapes),
            data=_write_records(home, as_written, holdings.of(i), config.data),
            epochs=config.train.epochs,
            steps=config.train.steps,
            seed=config.seed,
            sums=sums,
        )
        (home / "GUARD.toml").write_text(policy, encoding="utf-8")
    addresses = {name: f"{name}/guard/guard.sock" for name in population.client}
    (out / "addresses.toml").write_text(tomli_w.dumps(addresses), encoding="utf-8")
    return population.client


def _summed_or_trusting(
    config: Config, population: Population, layers: tuple[int, ...], report: Report | None
) -> Plan:
    """Return the plan that guards are to allow: for a secure sum where one is possible, else by trust."""
    behind = config.clients.model_copy(update={"where": "flower-sim"})  # nobody has to name a roster there
    there = config.model_copy(update={"clients": behind})
    plan = plan_of(there, population)
    if not plan.summed:
        return fitted(plan, config, layers)
    try:
        whole = fitted(plan, there, layers)
        why = unsummable(whole)
    except (ConfigError, PlanError) as problem:
        why = str(problem)
    if not why:
        return whole
    if report:
        report(f"No secure sum is possible, so the policies trust the server: {why}")
    return fitted(replace(plan, promise="clients"), config, layers)


def _write_roster(out: Path, clients: Sequence[str]) -> policies.SecureSum:
    """Make all guards' keys, and the roster beside their folders; return what a policy says of it."""
    contacts = {name: own_keys(out / name / "guard").contact(name) for name in clients}
    consortium = write_key(out / "consortium.key")
    text = roster_text(Roster(contacts), read_key(out / "consortium.key"))
    (out / ROSTER).write_text(text, encoding="utf-8")
    return policies.SecureSum(roster=f"../{ROSTER}", consortium=consortium)


def _unscaled(config: Config) -> Dataset:
    """Load the data set with the numbers that tables have: guards divide them as their policies say."""
    return load_data(config.model_copy(update={"data": config.data.model_copy(update={"scales": {}})}))


def _write_records(home: Path, dataset: Dataset, mine: np.ndarray, data: DataConfig) -> policies.Data:
    """Write a client's records into its folder, and return where its policy finds them.

    Of a data set that others have, too, these are record numbers; of a table, the records themselves and, if
    clients own theirs, those that this client held out.
    """
    if dataset.name != "csv":
        (home / "records.txt").write_text("\n".join(map(str, mine.tolist())) + "\n")
        return policies.Data(name=dataset.name, records="records.txt")
    _write_table(home / RECORDS, dataset, dataset.train, mine)
    if data.partition == "natural" and dataset.test_owner is not None:
        kept = np.flatnonzero(dataset.test_owner == dataset.owners.index(home.name))
        _write_table(home / KEPT, dataset, dataset.test, kept)
    return policies.Data(
        path=RECORDS, labels=dataset.label_names, features=dataset.feature_names, scales=data.scales
    )


def _write_table(path: Path, dataset: Dataset, split: Split, records: np.ndarray) -> None:
    labels = [dataset.label_names[i] for i in split.labels[records].tolist()]
    text = own_table.to_csv(dataset.feature_names, split.inputs[records].astype(np.float32), labels)
    write_private(path, text.encode())
