"""Figures of a plan: one HTML file that shows what a method decided, chosen by what the plan contains."""

from pathlib import Path

from discretion.accounting import Certificate
from discretion.errors import InputError
from discretion.methods import Details
from discretion.plan import Plan
from discretion.plots.page import render
from discretion.population import Population

__all__ = ["write"]


def write(plan: Plan, population: Population, certificate: Certificate, details: Details, out: Path) -> None:
    """Write the figures to `out`, one HTML file that needs nothing else."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(render(plan, population, certificate, details), encoding="utf-8")
    except OSError as problem:
        raise InputError(f"cannot write the figures to {out}: {problem.strerror}") from None
