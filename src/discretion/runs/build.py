"""A run's dataset, partition, plan, clients and local training, built from its config."""

import math
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from discretion.clients.training import LocalTraining, Schedule
from discretion.errors import ConfigError, DataError, InputError
from discretion.methods import find, make_plan
from discretion.plan import budgets
from discretion.plan.plan import Parameter, Plan
from discretion.plan.population import Population
from discretion.randomness.streams import Purpose, stream
from discretion.runs.config import Config
from discretion.tasks import datasets, partitions
from discretion.tasks.datasets import Dataset
from discretion.tasks.fetch import Report
from discretion.tasks.partitions import Partition
from discretion.training.server_update import Server

if TYPE_CHECKING:
    from discretion.clients.local_clients import LocalClients

GRID_BITS = 20  # of the smallest clip


def load_data(config: Config, report: Report | None = None) -> Dataset:
    path = Path(config.data.path) if config.data.path else None
    return datasets.load(config.data.name, path=path, report=report)


def divide(
    config: Config, dataset: Dataset, population: Population | None = None
) -> tuple[Population, Partition]:
    """Return the population and the partition of the records among its clients.

    Both depend on config and seed, not on the method. `population` is that of a run made before;
    otherwise it comes from CSV or a budget mix.
    """
    data, wanted = config.data, config.population
    if population is None and wanted.csv:
        population = Population.from_csv(wanted.csv)
    elsewhere = config.clients.where in ("guards", "flower")
    if elsewhere and wanted.csv and population is not None:  # and so are their records
        return population, Partition(np.zeros(0, np.int64), np.zeros(len(population) + 1, np.int64))
    if data.partition == "natural":
        names, partition = _by_owner(dataset, population, data.records)
    else:
        names, partition = None, _by_size(config, dataset, population)
    if population is None:
        epsilon = budgets.draw(wanted.budgets, partition.clients, stream(config.seed, Purpose.BUDGETS))
        population = Population.of(epsilon, wanted.delta, partition.sizes)
        population = replace(population, client=names or population.client)
    if (population.size != partition.sizes).any():
        odd = int(np.flatnonzero(population.size != partition.sizes)[0])
        raise DataError(
            f"client {population.client[odd]} declares {population.size[odd]} records, but holds "
            f"{partition.sizes[odd]} for training in {dataset.name}: declare what is there"
        )
    return population, partition


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
    owner = dataset.owner
    least, count = max(1, least), np.bincount(np.zeros(0, np.int64) if owner is None else owner)
    names = tuple(dataset.owners[i] for i in np.flatnonzero(count >= least))
    if owner is not None and declared is not None:
        if set(declared.client) != set(names):
            odd = sorted(set(declared.client) ^ set(names))
            raise DataError(
                f"the population and the data set name different clients, such as {', '.join(odd[:5])}; "
                f"the population has {len(declared)}, {dataset.name} has records of {len(names)}"
            )
        number = {name: i for i, name in enumerate(declared.client)}
        owner = np.array(  # those left out come last, and have too few records
            [number.get(name, len(declared) + i) for i, name in enumerate(dataset.owners)]
        )[owner]
        names = declared.client
    return names, partitions.partition(
        "natural", dataset.train.labels, None, np.random.default_rng(), owner=owner, minimum=least
    )


def parameters_of(config: Config, taken: Collection[str]) -> dict[str, Parameter]:
    """Return the parameters for a method: of the shared settings those that it takes, and its options."""
    shared = {name: getattr(config.plan, name) for name in ("rounds", "rate", "clip") if name in taken}
    return shared | config.plan.options


def plan_of(config: Config, population: Population) -> Plan:
    """Plan by the configured method; settings under [plan] that it does not take are left out."""
    part = replace(population, epsilon=population.epsilon * config.plan.share)
    plan = make_plan(config.plan.method, part, parameters_of(config, find(config.plan.method).parameters))
    if config.clients.answers_seen and plan.noise_at == "secure_sum":
        plan = replace(plan, promise="clients")
    return replace(plan, randomness=config.train.randomness)


def fitted(plan: Plan, config: Config, layers: tuple[int, ...]) -> Plan:
    """Return the plan with clipping and grid as configured, for a model whose layers have these sizes."""
    if config.plan.clipping == "per_layer":
        plan = replace(plan, clipping=replace(plan.clipping, layers=layers))
    if config.plan.integers:
        least = min(float(np.min(p.clip, where=p.clip > 0, initial=np.inf)) for p in plan.phases)
        if not np.isfinite(least):
            raise ConfigError("plan.integers needs updates that are clipped; this plan clips none")
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
