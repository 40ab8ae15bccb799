"""CPU kernels: one folder a family; `common` and `passes` are shared by families."""
