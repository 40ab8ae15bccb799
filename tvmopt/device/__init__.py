"""What code runs on: dtypes, CPUs, GPUs."""
