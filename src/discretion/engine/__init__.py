"""Local training and sums of clipped gradients in compiled code, for models whose layers are all known."""

from discretion.engine.compiled import Batches, Records, available, train
from discretion.engine.scores import scores
from discretion.engine.sequence import Sequence, sequence_of
from discretion.engine.stack import Stack, stack_of
from discretion.engine.sums import MOST_RECORDS, Sums, can_sum

__all__ = [
    "MOST_RECORDS",
    "Batches",
    "Records",
    "Sequence",
    "Stack",
    "Sums",
    "available",
    "can_sum",
    "scores",
    "sequence_of",
    "stack_of",
    "train",
]
