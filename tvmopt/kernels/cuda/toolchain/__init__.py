"""CUDA toolchain: nvcc or NVRTC, fatbinaries, CUDA graphs."""
