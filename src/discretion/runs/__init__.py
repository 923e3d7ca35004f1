"""The run folder: its settings, and how a run is prepared, executed, resumed and read."""
