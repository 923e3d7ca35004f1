"""The durable record of what clients have spent; all SQL of the package is here."""
