"""Convolutions with few output channels: a thread computes all channels of some pixels."""
