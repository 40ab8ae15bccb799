"""GEMM and implicit-GEMM convolution by mma.sync."""
