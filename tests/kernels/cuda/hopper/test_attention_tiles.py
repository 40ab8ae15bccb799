"""Order of the tiles of causal attention."""

from __future__ import annotations

import pytest

from tests.kernels.cuda.hopper.sources import H200
from tvmopt.kernels.attention import AttentionProblem, MaskedBy
from tvmopt.kernels.cuda.hopper.attention.config import ATTENTION, HopperAttentionConfig
from tvmopt.kernels.cuda.hopper.attention.tiles import group_of_heads


@pytest.mark.parametrize(
    ("batch", "keys", "kv_heads", "group"),
    [
        (1, 16384, 16, 16),  # 16 heads, fewer than SMs
        (32, 512, 16, 103),  # 512 heads: those whose K and V take at most half of L2
        (32, 512, 4, 256),  # four heads share K and V
        (512, 512, 16, 119),
    ],
)
def test_a_group_of_heads_fits_into_l2(batch: int, keys: int, kv_heads: int, group: int) -> None:
    problem = AttentionProblem(
        batch, 16, kv_heads, keys, keys, 128, 128, "float16", 0.1, MaskedBy.FIRST_KEY
    )
    found = group_of_heads(problem, HopperAttentionConfig(ATTENTION, H200), -(-keys // 128))
    assert found == group
    bytes_of_group = found * 4 * keys * 128 * kv_heads // 16
    assert batch == 1 or bytes_of_group <= H200.l2_bytes / 2


def test_the_group_of_a_configuration() -> None:
    problem = AttentionProblem(
        1, 16, 16, 512, 512, 128, 128, "float16", 0.1, MaskedBy.FIRST_KEY
    )  # fmt: skip
    for given, found in ((3, 3), (100, 16)):  # no more than there are
        config = HopperAttentionConfig(ATTENTION, H200, head_group=given)
        assert group_of_heads(problem, config, 4) == found
