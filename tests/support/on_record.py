"""What a ledger has on record, by PLD: as if all of it had been planned, whatever the ledger's rule."""

from discretion.accounting.accountant import TIGHT
from discretion.arrays import Floats
from discretion.ledger.ledger import Ledger


def epsilon_on_record(ledger: Ledger) -> Floats:
    """(N,) for each client."""
    return TIGHT.epsilon(ledger._accounts.steps(), ledger.population.delta)
