"""Reductions across contiguous memory (over an outer axis)."""
