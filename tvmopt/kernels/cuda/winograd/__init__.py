"""Input and output transforms of Winograd convolution."""
