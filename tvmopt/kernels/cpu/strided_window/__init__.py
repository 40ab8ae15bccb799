"""Pooling with a strided vector axis (NCHW)."""
