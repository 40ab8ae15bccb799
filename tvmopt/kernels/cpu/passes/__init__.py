"""Schedule steps and TensorIR passes for CPU functions: transpose, requantize, vector math, ..."""
