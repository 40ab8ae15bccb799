"""Kernels for Hopper's copy engine and warpgroup instructions, generated in TIRx."""
