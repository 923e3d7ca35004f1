"""Export of a run's public history to CSV, Parquet, TensorBoard and MLflow."""
