"""Discretion: federated learning where every client keeps its own privacy budget."""

__version__ = "0.1.0"
