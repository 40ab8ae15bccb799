"""Tensor-core instructions as TensorIR intrinsics."""
