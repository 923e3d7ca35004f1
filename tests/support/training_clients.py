"""Clients for the training loop whose updates a test writes itself."""

from discretion.plan.selection_rules import Reading
from discretion.training.orders import Order, Statistics


class UpdatesOnly:
    """Clients that only train: no rule may read statistics of their data."""

    def statistics(self, order: Order, reading: Reading) -> Statistics:
        raise AssertionError(f"round {order.round} read {reading.rule} of clients without statistics")
