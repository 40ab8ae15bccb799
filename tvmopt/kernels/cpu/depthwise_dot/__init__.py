"""Integer depthwise convolution with dot-product instructions."""
