"""Pooling and depthwise convolution; the fallback for any other function."""
