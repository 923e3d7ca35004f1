"""Optimisation problems that methods solve, as functions of arrays."""
