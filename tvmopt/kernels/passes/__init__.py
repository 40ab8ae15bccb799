"""TensorIR passes for kernels of every device."""
