"""GEMM and convolution on matrix units (AMX)."""
