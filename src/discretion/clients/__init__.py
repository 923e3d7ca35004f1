"""Clients that answer the training loop's orders: in this process, or elsewhere behind guards."""
