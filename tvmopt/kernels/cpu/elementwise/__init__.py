"""Elementwise functions and data movement (injective functions)."""
