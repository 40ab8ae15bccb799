"""TensorIR passes on scheduled CPU functions."""
