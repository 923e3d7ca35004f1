"""Flower as a transport: bytes between the training loop and the relays beside the clients' guards."""
