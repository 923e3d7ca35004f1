"""How well a released model serves each budget class, from the clients' own records: never private."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import safetensors.numpy

from discretion.errors import InputError
from discretion.materials import divide, load_data, local_clients
from discretion.population import Floats
from discretion.report.groups import Estimate, Group
from discretion.report.reading import Run
from discretion.runs import RunFolder
from discretion.tasks.datasets import Split


@dataclass(frozen=True)
class Fairness:
    classes: tuple[Estimate, ...]  # accuracy on the records of each budget class's clients, over seeds

    def shown(self, number: int) -> str:
        found = self.classes[number]
        spread = "" if found.std is None else f" ± {100 * found.std:.1f}"
        return f"{100 * found.mean:.1f}{spread} %"


def measure(groups: Sequence[Group]) -> Mapping[str, Fairness]:
    """By label of each group with finished runs.

    Guarantees:
        Only of simulations whose data is at hand: it reads raw records, which nothing pays for.
    """
    found = {}
    for part in groups:
        values = np.array([_accuracies(run) for run in part.runs if run.finished])  # (runs, C)
        if len(values):
            found[part.label] = Fairness(tuple(Estimate.of(column) for column in values.T))
    return found


def _accuracies(run: Run) -> Floats:
    """(C,) of the released model, on the training records of each class's clients."""
    if not run.simulated or run.config.clients.where != "here":
        raise InputError(
            f"{run.folder} is no simulation: accuracy on its clients' own records would leak what their "
            "budgets protect. Leave out --class-accuracy."
        )
    dataset = load_data(run.config)
    _, partition = divide(run.config, dataset, run.population)
    tensors = safetensors.numpy.load_file(RunFolder(run.folder).model)
    found = []
    for k in range(len(run.classes[0])):
        records = np.concatenate([partition.of(int(i)) for i in np.flatnonzero(run.classes[1] == k)])
        own = Split(dataset.train.inputs[records], dataset.train.labels[records])
        clients = local_clients(run.config, replace(dataset, test=own), partition)
        order = clients.named(clients.initial())
        model = np.concatenate([tensors[name].reshape(-1) for name in order])
        found.append(clients.evaluate(model).accuracy)
    return np.array(found)
