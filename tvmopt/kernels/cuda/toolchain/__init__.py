"""CUDA toolchain: nvcc or NVRTC, cubins, and passes over lowered device functions."""
