"""Other CPUs in software, so that kernels for them run in tests on this one."""
