"""Tests of the ranking of CUDA configurations."""
