"""GEMM without tensor cores."""
