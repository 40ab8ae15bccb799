"""TensorIR passes that kernels of every device need."""
