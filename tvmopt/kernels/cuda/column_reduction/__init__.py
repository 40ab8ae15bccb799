"""Reductions across contiguous memory."""
