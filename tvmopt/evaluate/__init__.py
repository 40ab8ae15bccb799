"""Accuracy and latency of compiled models, with confidence intervals."""
