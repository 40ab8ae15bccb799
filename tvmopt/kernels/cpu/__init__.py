"""CPU kernels: one folder per family; families share `common`, `intrinsics` and `passes`."""
