"""Pooling and depthwise convolution."""
