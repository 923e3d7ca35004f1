"""The proof: what a plan costs each client, and what a budget allows."""

from discretion.accounting.certify import Certificate, certify
from discretion.accounting.pld import Pld
from discretion.accounting.reference import Reference
from discretion.accounting.renyi import Renyi
from discretion.accounting.solve import (
    clip_bound,
    most_rounds,
    noise_multiplier,
    noise_scale,
    sampling_rate,
)
from discretion.accounting.spent import Accountant, spent

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
