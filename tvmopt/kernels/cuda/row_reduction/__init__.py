"""Reductions along contiguous memory."""
