"""The proof: what a plan costs each client, and what a budget allows."""

from discretion.accounting.certify import Certificate, certify
from discretion.accounting.pld import Pld
from discretion.accounting.reference import Reference
from discretion.accounting.renyi import Renyi
from discretion.accounting.solve import noise_multiplier, sampling_rate
from discretion.accounting.spent import Accountant, spent

__all__ = [
    "Accountant",
    "Certificate",
    "Pld",
    "Reference",
    "Renyi",
    "certify",
    "noise_multiplier",
    "sampling_rate",
    "spent",
]
