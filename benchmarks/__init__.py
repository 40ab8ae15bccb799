"""Benchmark scripts, and the models they run on (`benchmarks.zoo`)."""
