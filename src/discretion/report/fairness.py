"""Accuracy of released models on each budget class's own records: never private."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from discretion.arrays import Floats
from discretion.errors import FolderError, InputError
from discretion.report.run_group import Estimate, Group
from discretion.runs.build import divide, load_data, local_clients
from discretion.runs.folder import RESTORE, read_tensors
from discretion.runs.read import Run
from discretion.tasks.datasets import Split


def measure(groups: Sequence[Group]) -> Mapping[str, Sequence[Estimate]]:
    """Return, by label, the accuracy on each budget class's records, of groups that have finished runs.

    Guarantees:
        Only simulations on this machine are measured: raw records are read, which no budget pays for.
    """
    found = {}
    for part in groups:
        values = np.array([_accuracies(run) for run in part.runs if run.finished])  # (runs, C)
        if len(values):
            found[part.label] = [Estimate.of(column) for column in values.T]
    return found


def _accuracies(run: Run) -> Floats:
    """Return the (C,) accuracy of the released model on the training records of each class."""
    if not run.simulated or run.config.clients.where != "here":
        raise InputError(
            f"{run.folder} is no simulation: accuracy on its clients' own records would leak what their "
            "budgets protect. Leave out the accuracy by class."
        )
    dataset = load_data(run.config)
    _, partition = divide(run.config, dataset, run.population)
    tensors = read_tensors(run.files.model)
    found = []
    for k in range(len(run.classes[0])):
        records = np.concatenate([partition.of(int(i)) for i in np.flatnonzero(run.classes[1] == k)])
        own = Split(dataset.train.inputs[records], dataset.train.labels[records])
        clients = local_clients(run.config, replace(dataset, test=own), partition)
        order = clients.named(clients.initial())
        if {name: each.shape for name, each in tensors.items()} != {
            n: each.shape for n, each in order.items()
        }:
            raise FolderError(f"{run.files.model} holds another model than the run's settings. {RESTORE}")
        model = np.concatenate([tensors[name].reshape(-1) for name in order])
        found.append(clients.evaluate(model).accuracy)
    return np.array(found)
