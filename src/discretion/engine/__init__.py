"""The fast paths of training: clients by the chunk, records without their gradients."""
