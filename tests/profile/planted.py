"""Planted rows of a profile."""

from __future__ import annotations

import dataclasses

from tvmopt.profile.rows import ProfileRow

ROW = ProfileRow(
    call=0, kernel="fused_conv2d_add", layer=0, layer_name="conv0", op="Conv", weight="64x64x3x3",
    operators="conv2d add", shape="1x8x8x64", dtype="float32", instructions="AVX2 FMA",
    median_us=60.0, share=0.6, flops=1e6, bytes=1e4, roofline_us=30.0, bound="compute",
    roofline_share=0.5, predicted_us=50.0,
)  # fmt: skip


def row(**changes: object) -> ProfileRow:
    """Return a planted row with changes."""
    return dataclasses.replace(ROW, **changes)  # type: ignore[arg-type]


def low(**changes: object) -> ProfileRow:
    """Return a planted int8 row that takes twice the time of its float32 form."""
    facts = {"dtype": "int8", "instructions": "vpdpbusd", "baseline_us": 30.0, "ratio": 2.0}
    return row(**(facts | changes))
