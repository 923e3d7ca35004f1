"""Federated learning where every client keeps its own privacy budget.

What is listed in `__all__` is the public interface; modules below are free to change between versions.
"""

from importlib.metadata import version

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
from discretion.audit.verify import Verification, verify
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
from discretion.ledger.ledger import Ledger
from discretion.methods import METHODS, make_plan
from discretion.plan.budgets import draw as draw_budgets
from discretion.plan.phase import Phase
from discretion.plan.plan import Plan
from discretion.plan.population import Population
from discretion.plan.steps import Steps
from discretion.report import write as write_report
from discretion.runs.config import Config
from discretion.runs.execute import Progress, execute
from discretion.runs.prepare import prepare
from discretion.runs.read import Run, read_run
from discretion.training.loop import State, train
from discretion.training.orders import Clients, Order, Updates
from discretion.training.server_update import Server

__version__ = version("discretion")

__all__ = [
    "METHODS",
    "BudgetError",
    "Certificate",
    "Clients",
    "Config",
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
    "Progress",
    "Reference",
    "Renyi",
    "Run",
    "Server",
    "State",
    "Steps",
    "Updates",
    "Verification",
    "certify",
    "clip_bound",
    "draw_budgets",
    "execute",
    "make_plan",
    "most_rounds",
    "noise_multiplier",
    "noise_scale",
    "prepare",
    "read_run",
    "sampling_rate",
    "spent",
    "train",
    "verify",
    "write_report",
]
