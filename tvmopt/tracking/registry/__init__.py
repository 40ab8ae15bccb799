"""Registered versions: registration, promotion, download."""
