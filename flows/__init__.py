"""Entry points of the MLflow project: each parses its parameters and calls tvmopt."""
