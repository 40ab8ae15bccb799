"""Winograd convolution, F(2 x 2, 3 x 3) and F(4 x 4, 3 x 3)."""
