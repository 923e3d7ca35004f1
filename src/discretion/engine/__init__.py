"""Local training of many clients in compiled code, for models whose layers are all known."""

from discretion.engine.compiled import Batches, Records, available, train
from discretion.engine.scores import scores
from discretion.engine.sequence import Sequence, sequence_of
from discretion.engine.stack import Stack, stack_of

__all__ = [
    "Batches",
    "Records",
    "Sequence",
    "Stack",
    "available",
    "scores",
    "sequence_of",
    "stack_of",
    "train",
]
