"""GEMM and convolution by register blocking."""
