"""Secure sum: a server learns the sum of its clients' integers, and nothing else; see docs/secure-sum.md."""
