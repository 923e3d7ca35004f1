"""Data sets, their partitions among clients, and models."""
