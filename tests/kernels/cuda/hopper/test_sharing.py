"""Which thread blocks of a cluster load for which."""

from __future__ import annotations

import pytest
from tvm import sym, tirx

from tests.kernels.cuda.hopper.sources import gemm_config
from tvmopt.kernels.cuda.hopper.multicast import Multicast


def _number(value) -> int:
    return int(sym.Analyzer().simplify(tirx.const(0, "int32") + value))


@pytest.mark.parametrize(("cluster", "beside"), [(2, 1), (1, 2), (2, 2), (4, 2), (2, 4), (1, 8)])
def test_a_block_waits_for_those_that_it_loads_for(cluster, beside):
    config = gemm_config(tile_n=128, cluster_m=cluster, cluster_n=beside)
    blocks = range(config.multicast_size)
    gets = {}
    for rank in blocks:
        sharing = Multicast(config, rank)
        left_mask, right_mask = _number(sharing.left_mask), _number(sharing.right_mask)
        assert left_mask.bit_count() == (beside if beside > 1 else 0)
        assert right_mask.bit_count() == (cluster if cluster > 1 else 0)
        gets[rank] = {b for b in blocks if (left_mask | right_mask | 1 << rank) >> b & 1}
    for rank in blocks:
        sharing = Multicast(config, rank)
        loaders = [_number(sharing.loader(i)) for i in range(sharing.loaders)]
        assert len(set(loaders)) == sharing.loaders
        assert set(loaders) == {b for b in blocks if rank in gets[b]}


def test_blocks_of_the_same_columns_are_above_each_other():
    config = gemm_config(tile_n=128, cluster_m=4, cluster_n=2)
    assert (Multicast(config, 5).above, Multicast(config, 5).left) == (1, 1)
    assert _number(Multicast(config, 5).right_mask) == 0b11110000
    assert _number(Multicast(config, 5).left_mask) == 0b00100010


def test_one_that_loads_alone():
    sharing = Multicast(gemm_config(tile_n=128), tirx.const(0, "int32"))
    assert (sharing.above, sharing.left, sharing.left_mask, sharing.right_mask) == (0, 0, 0, 0)
    assert sharing.loaders == 1
