"""What is decided before training: population, budgets, phases, and the plan that holds them."""

from discretion.plan.phase import Phase
from discretion.plan.plan import Plan
from discretion.plan.population import Population

__all__ = ["Phase", "Plan", "Population"]
