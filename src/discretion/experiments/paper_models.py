"""Models of single papers; settings name them as package.module:factory."""

from torch import Tensor, nn

from discretion.tasks.datasets import Dataset
from discretion.tasks.models import convolutional, padded_block


def selection_cnn(dataset: Dataset) -> nn.Module:
    """Xu, Zhang and Huang 2025, VI-C: convolutions of 16 and 32 channels, each pooled, then 512 and 32 units.

    The paper does not give the kernel size; 5x5, padded, is assumed.
    """
    return convolutional(dataset, padded_block, (16, 32), 512, 32)


class NextCharacter(nn.Module):
    """An embedding of 8, one LSTM layer of 64 and the logits of the next character: 24,784 parameters."""

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, 8)
        self.layer = nn.LSTM(8, 64, batch_first=True)
        self.output = nn.Linear(64, tokens)

    def forward(self, ids: Tensor) -> Tensor:
        steps, _ = self.layer(self.embedding(ids))
        logits: Tensor = self.output(steps[:, -1])
        return logits


def lstm_small(dataset: Dataset) -> nn.Module:
    """Return a small version of the built-in lstm, with which a round of 71 clients takes seconds."""
    return NextCharacter(dataset.classes)
