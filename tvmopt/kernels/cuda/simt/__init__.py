"""GEMM with FMA instructions (SIMT), without tensor cores."""
