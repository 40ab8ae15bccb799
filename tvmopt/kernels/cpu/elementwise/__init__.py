"""Elementwise functions and data movement."""
