"""Devices: CPU and GPU descriptors, the dtype table, targets, CUDA runtime and graphs."""
