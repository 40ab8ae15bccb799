"""GEMM and implicit-GEMM convolution with warp MMA (mma.sync)."""
