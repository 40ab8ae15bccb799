"""Entry points of the MLflow project: each parses parameters, calls tvmopt and says what happened."""
