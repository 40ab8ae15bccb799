"""Kernels: each family in one folder, for CPUs and for CUDA GPUs."""
