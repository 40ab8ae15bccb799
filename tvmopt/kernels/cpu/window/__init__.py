"""Depthwise convolution and pooling."""
