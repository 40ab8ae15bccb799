"""Parts that several CUDA families share."""
