"""Local training of many clients in compiled code, for models that are plain stacks of layers."""

from discretion.engine.compiled import Batches, Records, available, train
from discretion.engine.scores import scores
from discretion.engine.stack import Stack, stack_of

__all__ = ["Batches", "Records", "Stack", "available", "scores", "stack_of", "train"]
