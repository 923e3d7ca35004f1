"""Folders of guards for all clients of a run: policies, own records, the operator's key, and addresses."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tomli_w

from discretion.clients.messages import write_key
from discretion.errors import InputError, PopulationError, listed
from discretion.files import write_private
from discretion.guard import policy as policies
from discretion.plan.names import same_files
from discretion.runs.build import divide, fitted, load_data, local_clients, plan_of
from discretion.runs.config import Config, DataConfig
from discretion.runs.places import require_places
from discretion.tasks import own_table
from discretion.tasks.datasets import Dataset, Split
from discretion.tasks.fetch import Report

RECORDS, KEPT = "records.csv", "held-out.csv"  # a client's records for training, and those for testing


def write_guards(
    config: Config, out: Path, report: Report | None = None, taken: Sequence[str] = ()
) -> tuple[str, ...]:
    """Write a policy and the records of each client, and an operator's key; return the clients' names.

    Each client gets a folder of its name in `out`; `taken` has names of what else will be there.

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
    if same := same_files(population.client, ("operator.key", "addresses.toml", *taken)):
        raise PopulationError("\n  ".join([f"{out}: cannot make a folder for each client", *listed(same)]))
    clients = local_clients(config, dataset, holdings)
    plan = fitted(plan_of(config, population), config, clients.layers)
    out.mkdir(parents=True)
    public = write_key(out / "operator.key")
    for i, name in enumerate(population.client):
        home = out / name
        home.mkdir()
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
        )
        (home / "GUARD.toml").write_text(policy, encoding="utf-8")
    addresses = {name: f"{name}/guard/guard.sock" for name in population.client}
    (out / "addresses.toml").write_text(tomli_w.dumps(addresses), encoding="utf-8")
    return population.client


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
