"""Discretion: federated learning where every client keeps its own privacy budget."""

from discretion.accounting import (
    Certificate,
    Pld,
    Reference,
    Renyi,
    certify,
    clip_bound,
    most_rounds,
    noise_multiplier,
    noise_scale,
    sampling_rate,
    spent,
)
from discretion.budgets import draw as draw_budgets
from discretion.errors import (
    BudgetError,
    ConfigError,
    DataError,
    DiscretionError,
    InputError,
    LedgerError,
    ModelError,
    PlanError,
    PopulationError,
)
from discretion.ledger import Ledger
from discretion.methods import METHODS, make_plan
from discretion.orders import Clients, Order, Updates
from discretion.phase import Phase
from discretion.plan import Plan
from discretion.population import Population
from discretion.server import Server
from discretion.steps import Steps
from discretion.train import State, train

__version__ = "0.1.0"

__all__ = [
    "METHODS",
    "BudgetError",
    "Certificate",
    "Clients",
    "ConfigError",
    "DataError",
    "DiscretionError",
    "InputError",
    "Ledger",
    "LedgerError",
    "ModelError",
    "Order",
    "Phase",
    "Plan",
    "PlanError",
    "Pld",
    "Population",
    "PopulationError",
    "Reference",
    "Renyi",
    "Server",
    "State",
    "Steps",
    "Updates",
    "certify",
    "clip_bound",
    "draw_budgets",
    "make_plan",
    "most_rounds",
    "noise_multiplier",
    "noise_scale",
    "sampling_rate",
    "spent",
    "train",
]
