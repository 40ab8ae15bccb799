"""Benchmark scripts, each printing one table, and the models that they run (`benchmarks.zoo`)."""
