"""Compiled local training, inference and sums of clipped gradients, for models of supported layers."""

from discretion.engine.compiled_sums import CompiledSums, can_sum
from discretion.engine.compiled_training import Batches, RecordArrays, available, scores, train, within
from discretion.engine.layer_stack import Stack, stack_of
from discretion.engine.sequence import Sequence, sequence_of

__all__ = [
    "Batches",
    "RecordArrays",
    "Sequence",
    "Stack",
    "CompiledSums",
    "available",
    "can_sum",
    "scores",
    "sequence_of",
    "stack_of",
    "train",
    "within",
]
