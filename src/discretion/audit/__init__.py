"""Verification of runs, signed receipts, and the sentences on what is promised."""
