"""Verification of runs, attacks on plans, signed receipts, and the sentences on what is promised."""
