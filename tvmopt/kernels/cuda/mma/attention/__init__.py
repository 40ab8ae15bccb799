"""Kernel family: fused attention with mma.sync, also for a few queries over many keys."""
