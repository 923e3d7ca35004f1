"""Privacy accounting: the epsilon of a plan for each client, and solvers for what a budget allows."""

from discretion.accounting.accountant import Accountant, spent
from discretion.accounting.certificate import Certificate, certify
from discretion.accounting.pld import Pld
from discretion.accounting.reference import Reference
from discretion.accounting.renyi import Renyi
from discretion.accounting.solve import clip_bound, most_rounds, noise_multiplier, noise_scale, sampling_rate

__all__ = [
    "Accountant",
    "Certificate",
    "Pld",
    "Reference",
    "Renyi",
    "certify",
    "clip_bound",
    "most_rounds",
    "noise_multiplier",
    "noise_scale",
    "sampling_rate",
    "spent",
]
