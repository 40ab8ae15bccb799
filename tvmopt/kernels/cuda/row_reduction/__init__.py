"""Reductions along contiguous memory (over the innermost axes)."""
