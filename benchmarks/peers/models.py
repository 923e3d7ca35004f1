"""The models of the workloads, in plain torch, for environments in which Discretion is not installed."""

import torch
from torch import nn


def build(workload: str) -> nn.Module:
    """A_small: 21,840 parameters; A_big: McMahan's, 1,663,370; B and B_tf: for per-example clipping."""
    torch.manual_seed(0)
    if workload == "A_small":
        return nn.Sequential(
            *(nn.Conv2d(1, 10, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(10, 20, 5), nn.MaxPool2d(2)),
            *(nn.ReLU(), nn.Flatten(), nn.Linear(320, 50), nn.ReLU(), nn.Linear(50, 10)),
        )
    if workload == "A_big":
        return nn.Sequential(
            *(nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 10)),
        )
    raise ValueError(f"unknown workload {workload}")
