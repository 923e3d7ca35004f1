"""Random numbers for sampling and noise: seeded streams, or a cryptographic generator."""
