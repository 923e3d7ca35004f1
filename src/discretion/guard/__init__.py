"""The guard: a client's own process, the only one to open its records and ledger."""
