"""Training loop and privacy mechanism: clip, sum, add noise, update the model."""
