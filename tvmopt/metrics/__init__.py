"""Metrics of accuracy against labels: by name, or of the user's own."""
