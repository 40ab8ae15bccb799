"""GEMM and implicit-GEMM convolution for Hopper: TMA, mbarriers, wgmma."""
