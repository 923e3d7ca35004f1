"""Experiments: methods and seeds under one setting, each a run of its own, in one table."""
