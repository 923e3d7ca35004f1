"""Flower underneath: it carries bytes between the training loop and the relays beside the clients' guards."""
