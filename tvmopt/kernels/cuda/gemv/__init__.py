"""GEMV: matrix times a vector or a few rows."""
