"""Checks for those who extend Discretion: the contract that every method keeps."""

from discretion.testing.contract import CLAUSES, POPULATIONS, Trial, check_method

__all__ = ["CLAUSES", "POPULATIONS", "Trial", "check_method"]
