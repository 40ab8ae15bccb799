"""Winograd transforms."""
