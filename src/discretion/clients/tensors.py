"""Records as tensors, and the one place where they are brought to the device that trains."""

import torch
from torch import Tensor

from discretion.population import Ints
from discretion.tasks.datasets import Dataset, Split


class Tensors:
    """The records of one split; images stay bytes until they are used.

    On the CPU they are those of the data set itself, not copies.
    """

    def __init__(self, dataset: Dataset, split: Split, device: torch.device) -> None:
        self._dataset = dataset
        self._inputs = torch.from_numpy(split.inputs).to(device)
        self._labels = torch.from_numpy(split.labels).to(device)

    def __len__(self) -> int:
        return len(self._labels)

    @property
    def device(self) -> torch.device:
        return self._labels.device

    def batch(self, records: Ints | slice) -> tuple[Tensor, Tensor]:
        """The inputs, as the model takes them, and the labels of these records."""
        part = records if isinstance(records, slice) else torch.from_numpy(records).to(self.device)
        return ready(self._dataset, self._inputs[part]), self._labels[part]


def ready(dataset: Dataset, inputs: Tensor) -> Tensor:
    """Inputs as the model takes them."""
    if dataset.kind == "image":
        return inputs.float().div_(255).sub_(dataset.mean).div_(dataset.std)
    return inputs.long() if dataset.kind == "text" else inputs
