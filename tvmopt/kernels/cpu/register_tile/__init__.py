"""GEMM and convolution with register tiles (GotoBLAS)."""
