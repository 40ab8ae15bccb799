"""Elementwise functions, copies and transposes."""
