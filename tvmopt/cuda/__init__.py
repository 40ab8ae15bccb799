"""CUDA's tool chain: compile kernels to machine code, on machines with a GPU and without."""
