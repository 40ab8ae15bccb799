"""GEMM and convolution with AMX tiles."""
