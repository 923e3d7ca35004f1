"""Local training and sums of clipped gradients in compiled code, for models that are stacks of layers."""

from discretion.engine.compiled import Batches, Records, available, train
from discretion.engine.stack import Stack, stack_of
from discretion.engine.sums import MOST_RECORDS, Sums

__all__ = ["MOST_RECORDS", "Batches", "Records", "Stack", "Sums", "available", "stack_of", "train"]
