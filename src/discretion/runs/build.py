"""A run's dataset, partition, plan, clients and local training, built from its config."""

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from discretion.clients.training import LocalTraining, Schedule
from discretion.errors import ConfigError, DataError, InputError, listed
from discretion.methods import find, make_plan
from discretion.plan import budgets
from discretion.plan.grid_choice import on_finest_grid
from discretion.plan.plan import Parameter, Plan
from discretion.plan.population import Population
from discretion.randomness.streams import Purpose, stream
from discretion.runs.config import Config
from discretion.tasks import datasets, partitions
from discretion.tasks.datasets import Dataset, OwnTables
from discretion.tasks.fetch import Report
from discretion.tasks.own_table import TableForm
from discretion.tasks.partitions import Partition
from discretion.training.server_update import Server

if TYPE_CHECKING:
    from discretion.clients.local_clients import LocalClients

GRID_BITS = 20  # of the smallest clip


def load_data(config: Config, report: Report | None = None) -> Dataset:
    """Load the data set that the settings name, with test records as `data.test` says."""
    data = config.data
    if not (data.path or data.test or data.labels or data.scales):
        return datasets.load(data.name, report=report)
    train, test = (Path(name) if name else None for name in (data.path, data.test_file))
    if data.name == "csv" and train is None and not config.clients.elsewhere:
        raise DataError("data.path is empty: records of clients in this process come from a table of yours")
    form = TableForm(data.label_column, data.client_column, data.encoding, data.decimal)
    own = OwnTables(train, test, data.hold_out, form, data.labels, data.scales)
    return datasets.load(data.name, own=own, report=report)


def divide(
    config: Config, dataset: Dataset, population: Population | None = None
) -> tuple[Population, Partition]:
    """Return the population and the partition of the records among its clients.

    Both depend on config and seed, not on the method. `population` is that of a run made before;
    otherwise it comes from CSV or a budget mix. A client's size is the number of its training records:
    as declared, or counted where records have owners and the CSV file names no sizes.
    """
    data, wanted = config.data, config.population
    if population is None and wanted.csv:
        population = declared_population(config, dataset)
    if population is not None and wanted.csv and config.clients.elsewhere:
        found = _counted(config, dataset) or {}
        if found.keys() != set(population.client):  # the clients' records are elsewhere, too
            _require_sizes(population, found, dataset.name)
            return population, Partition(np.zeros(0, np.int64), np.zeros(len(population) + 1, np.int64))
    if data.partition == "natural":
        names, partition = _by_owner(dataset, population, data.records)
    else:
        names, partition = None, _by_size(config, dataset, population)
    if population is None:
        epsilon = budgets.draw(wanted.budgets, partition.clients, stream(config.seed, Purpose.BUDGETS))
        population = Population.of(epsilon, wanted.delta, partition.sizes)
        population = replace(population, client=names or population.client)
    _require_sizes(
        population, dict(zip(population.client, partition.sizes.tolist(), strict=True)), dataset.name
    )
    return population, partition


def declared_population(config: Config, dataset: Dataset) -> Population:
    """Read the population's CSV file; sizes that it does not name are counted where records have owners."""
    return Population.from_csv(config.population.csv, _counted(config, dataset))


def _counted(config: Config, dataset: Dataset) -> dict[str, int] | None:
    natural = config.data.partition == "natural" and dataset.owner is not None
    return owner_sizes(dataset) if natural else None


def owner_sizes(dataset: Dataset) -> dict[str, int]:
    """Return the number of training records of each owner who has any, by name."""
    count = np.bincount(np.zeros(0, np.int64) if dataset.owner is None else dataset.owner)
    return {dataset.owners[i]: int(count[i]) for i in np.flatnonzero(count)}


def _require_sizes(population: Population, found: Mapping[str, int], data: str) -> None:
    """Refuse declared sizes that are not those found in the data; name all such clients."""
    declared = zip(population.client, population.size.tolist(), strict=True)
    odd = [
        f"client {name}: declares {size} records, and has {found[name]} for training"
        for name, size in declared
        if found.get(name, size) != size
    ]
    if odd:
        raise DataError(
            "\n  ".join(
                [
                    f"{len(odd)} of {len(population)} sizes are not those of {data}: declare the records for "
                    "training, without those held out, or leave the column size out",
                    *listed(odd),
                ]
            )
        )


def _by_size(config: Config, dataset: Dataset, declared: Population | None) -> Partition:
    data, clients, labels = config.data, config.population.clients, dataset.train.labels
    if declared is not None:
        sizes = declared.size
    elif data.sizes == "varied":
        records = min(data.records * clients or len(labels), len(labels))
        sizes = partitions.varied_sizes(records, clients, stream(config.seed, Purpose.SIZES))
    else:
        sizes = partitions.even_sizes(len(labels), clients, data.records or None)
    options = data.model_dump(include={"alpha", "shards_per_client", "iid_percent"})
    rng = stream(config.seed, Purpose.PARTITION)
    return partitions.partition(data.partition, labels, sizes, rng, **options)


def _by_owner(dataset: Dataset, declared: Population | None, least: int) -> tuple[tuple[str, ...], Partition]:
    """Make one client of each owner in the data with at least `least` records; return names and partition.

    Clients are in the order of the declared population, if there is one.
    """
    owner, least = dataset.owner, max(1, least)
    sizes = owner_sizes(dataset)
    names = tuple(name for name in dataset.owners if sizes.get(name, 0) >= least)
    if owner is not None and declared is not None:
        _require_same_clients(declared, names, dataset.name)
        number = {name: i for i, name in enumerate(declared.client)}
        owner = np.array(  # those left out come last, and have too few records
            [number.get(name, len(declared) + i) for i, name in enumerate(dataset.owners)]
        )[owner]
        names = declared.client
    return names, partitions.partition(
        "natural", dataset.train.labels, None, np.random.default_rng(), owner=owner, minimum=least
    )


def _require_same_clients(declared: Population, found: tuple[str, ...], data: str) -> None:
    """Refuse a population whose clients are not those that have records; name all of them."""
    named, having = set(declared.client), set(found)
    odd = [f"client {name}: no records in {data}" for name in declared.client if name not in having]
    odd += [f"client {name}: not in the population" for name in found if name not in named]
    if odd:
        raise DataError(
            "\n  ".join(
                [
                    f"the population and the data set name different clients: {len(declared)} clients, and "
                    f"records of {len(found)}",
                    *listed(odd),
                ]
            )
        )


def parameters_of(config: Config, taken: Collection[str]) -> dict[str, Parameter]:
    """Return the parameters for a method: of the shared settings those that it takes, and its options."""
    shared = {name: getattr(config.plan, name) for name in ("rounds", "rate", "clip") if name in taken}
    return shared | config.plan.options


def plan_of(config: Config, population: Population) -> Plan:
    """Plan by the configured method; settings under [plan] that it does not take are left out."""
    part = replace(population, epsilon=population.epsilon * config.plan.share)
    plan = make_plan(config.plan.method, part, parameters_of(config, find(config.plan.method).parameters))
    if config.clients.elsewhere and not config.secure_sum.roster and plan.noise_at == "secure_sum":
        plan = replace(plan, promise="clients")
    return replace(plan, randomness=config.train.randomness)


def fitted(plan: Plan, config: Config, layers: tuple[int, ...]) -> Plan:
    """Return the plan with clipping and grid as configured, for a model whose layers have these sizes."""
    if config.plan.clipping == "per_layer":
        plan = replace(plan, clipping=replace(plan.clipping, layers=layers))
    if config.plan.integers or (plan.summed and config.clients.where != "here"):  # sums are of whole numbers
        least = min(float(np.min(p.clip, where=p.clip > 0, initial=np.inf)) for p in plan.phases)
        if not np.isfinite(least):
            raise ConfigError("plan.integers needs updates that are clipped; this plan clips none")
        if plan.has_shares:
            return on_finest_grid(plan, sum(layers))
        plan = plan.on_grid(2.0 ** (math.floor(math.log2(least)) - GRID_BITS), sum(layers))
    return plan


def local_clients(config: Config, dataset: Dataset, partition: Partition) -> "LocalClients":
    try:
        import torch
    except ModuleNotFoundError:
        raise InputError("training needs PyTorch: pip install 'discretion[torch]'") from None

    from discretion.clients.devices import cores
    from discretion.clients.local_clients import LocalClients
    from discretion.tasks import models

    how = config.train
    torch.set_num_threads(how.threads or cores())
    weights = int(stream(config.seed, Purpose.WEIGHTS).integers(2**31))
    model = models.build(config.model.name, dataset, weights)
    local = local_training(config)
    return LocalClients(dataset, partition, model, local, device=how.device, workers=how.workers)


def local_training(config: Config) -> LocalTraining:
    how = config.train
    sgd = (how.learning_rate, how.momentum, how.weight_decay, Schedule.parse(how.schedule))
    return LocalTraining(how.epochs, how.batch_size, *sgd, how.steps, how.order)


def server_of(config: Config) -> Server:
    """Return the server's optimizer."""
    how = config.train
    return Server(how.server_learning_rate, how.server_momentum, how.server_adaptive, how.server_average)
