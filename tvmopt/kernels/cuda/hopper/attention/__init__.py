"""Fused attention for Hopper: warp-specialised FlashAttention-3 with TMA and wgmma."""
