"""Runs of a search: trials, the final round, what it came to."""
