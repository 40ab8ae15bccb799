"""Which thread blocks of a cluster load for which."""

from __future__ import annotations

import pytest
from tvm import sym, tirx

from tvmopt.kernels.cuda.hopper.config import Config
from tvmopt.kernels.cuda.hopper.multicast import Sharing


def _number(value) -> int:
    return int(sym.Analyzer().simplify(tirx.const(0, "int32") + value))


@pytest.mark.parametrize(("cluster", "beside"), [(2, 1), (1, 2), (2, 2), (4, 2), (2, 4), (1, 8)])
def test_a_block_waits_for_those_that_it_loads_for(cluster, beside):
    config = Config(columns=128, cluster=cluster, beside=beside)
    blocks = range(config.sharers)
    gets = {}
    for rank in blocks:
        sharing = Sharing(config, rank)
        of_rows, of_columns = _number(sharing.of_rows), _number(sharing.of_columns)
        assert of_rows.bit_count() == (beside if beside > 1 else 0)
        assert of_columns.bit_count() == (cluster if cluster > 1 else 0)
        gets[rank] = {b for b in blocks if (of_rows | of_columns | 1 << rank) >> b & 1}
    for rank in blocks:
        sharing = Sharing(config, rank)
        loaders = [_number(sharing.loader(i)) for i in range(sharing.loaders)]
        assert len(set(loaders)) == sharing.loaders
        assert set(loaders) == {b for b in blocks if rank in gets[b]}


def test_blocks_of_the_same_columns_are_above_each_other():
    config = Config(columns=128, cluster=4, beside=2)
    assert (Sharing(config, 5).above, Sharing(config, 5).left) == (1, 1)
    assert _number(Sharing(config, 5).of_columns) == 0b11110000
    assert _number(Sharing(config, 5).of_rows) == 0b00100010


def test_one_that_loads_alone():
    sharing = Sharing(Config(columns=128), tirx.const(0, "int32"))
    assert (sharing.above, sharing.left, sharing.of_rows, sharing.of_columns) == (0, 0, 0, 0)
    assert sharing.loaders == 1
