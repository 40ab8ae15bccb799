"""TMA multicast: masks, and the thread blocks that load for a block."""

from __future__ import annotations

import pytest
from tvm import sym, tirx

from tests.kernels.cuda.hopper.sources import gemm_config
from tvmopt.kernels.cuda.hopper.multicast import Multicast


def _number(value) -> int:
    return int(sym.Analyzer().simplify(tirx.const(0, "int32") + value))


@pytest.mark.parametrize(
    ("cluster_m", "cluster_n"), [(2, 1), (1, 2), (2, 2), (4, 2), (2, 4), (1, 8)]
)
def test_a_stage_is_released_to_the_blocks_that_load_it(cluster_m, cluster_n):
    config = gemm_config(tile_n=128, cluster_m=cluster_m, cluster_n=cluster_n)
    blocks = range(config.multicast_size)
    gets = {}
    for rank in blocks:
        multicast = Multicast(config, rank)
        left_mask, right_mask = _number(multicast.left_mask), _number(multicast.right_mask)
        assert left_mask.bit_count() == (cluster_n if cluster_n > 1 else 0)
        assert right_mask.bit_count() == (cluster_m if cluster_m > 1 else 0)
        gets[rank] = {b for b in blocks if (left_mask | right_mask | 1 << rank) >> b & 1}
    for rank in blocks:
        multicast = Multicast(config, rank)
        loaders = [_number(multicast.loader(i)) for i in range(multicast.loaders)]
        assert len(set(loaders)) == multicast.loaders
        assert set(loaders) == {b for b in blocks if rank in gets[b]}


def test_ranks_are_m_fastest():
    config = gemm_config(tile_n=128, cluster_m=4, cluster_n=2)
    assert (Multicast(config, 5).cta_m, Multicast(config, 5).cta_n) == (1, 1)
    assert _number(Multicast(config, 5).right_mask) == 0b11110000
    assert _number(Multicast(config, 5).left_mask) == 0b00100010


def test_without_a_cluster():
    multicast = Multicast(gemm_config(tile_n=128), tirx.const(0, "int32"))
    assert (multicast.cta_m, multicast.cta_n, multicast.left_mask, multicast.right_mask) == (
        0,
        0,
        0,
        0,
    )
    assert multicast.loaders == 1
