"""Batched GEMM of two activations."""
