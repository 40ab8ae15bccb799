"""What scales of channels promise: no value that they were chosen for saturates."""

from __future__ import annotations

import numpy as np

from tvmopt.quantize.channel_scales import ChannelScales


def check_no_value_saturates(
    found: ChannelScales | None, low: np.ndarray, high: np.ndarray
) -> None:
    """Assert that scaled channels stay in the range; only channels of zeros have no scales.

    Args:
        found: The scales; None where none were chosen.
        low: Smallest value of each channel, (channels,).
        high: Largest value of each channel, (channels,).
    """
    if found is None:
        assert not low.clip(max=0).any() and not high.clip(min=0).any()
        return
    factors = np.array(found.factors, np.float64)
    assert ((factors > 0) & (factors <= 1)).all()
    room = 1e-5 * (found.high - found.low)
    assert (low / factors >= found.low - room).all()
    assert (high / factors <= found.high + room).all()
