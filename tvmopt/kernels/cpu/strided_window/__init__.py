"""Pooling whose vector axis is strided."""
