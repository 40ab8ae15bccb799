"""Tests of the CUDA kernel families."""
