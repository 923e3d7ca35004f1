"""A client's own process that alone opens its data and ledger, and hands out noisy, charged releases only."""
