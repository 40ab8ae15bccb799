"""CUDA kernels: one folder a family; `common` is shared by families."""
