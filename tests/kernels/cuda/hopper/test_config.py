"""Configurations in tuning records."""

from __future__ import annotations

import dataclasses
import json

import pytest

from tests.kernels.cuda.hopper.sources import conv_config, gemm_config
from tvmopt.kernels.emit import hint_from_dict
from tvmopt.kernels.families import by_name


@pytest.mark.parametrize(
    "config",
    [
        gemm_config(),
        gemm_config(m_atoms=2, stages=6, cluster_m=2, raster_group=4, wgmma_wait_depth=0),
        gemm_config(smem_store=True, persistent=False, split_k=4, swap_ab=True),
        gemm_config(pingpong=True, stages=5, epilogue_buffers=1),
        gemm_config(split_k=4, split_k_workspace=True, cluster_n=2, tile_k=128),
        conv_config(gemm_config(), (2, 8, 4)),
        conv_config(gemm_config()),
    ],
)
def test_round_trip(config):
    again = hint_from_dict(json.loads(json.dumps(config.to_dict())))
    assert again == config and again.config_id == config.config_id
    assert again.group == config.group and len(config.features) == 13


def test_a_copy_is_as_the_constructor_makes_it():
    config = gemm_config(m_atoms=2, stages=6)
    copy = config.replaced(stages=4, swap_ab=True)
    assert copy == dataclasses.replace(config, stages=4, swap_ab=True)
    assert hash(copy) == hash(dataclasses.replace(copy))
    assert (config.stages, config.swap_ab) == (6, False)


@pytest.mark.parametrize("family", by_name().values(), ids=lambda family: family.name)
def test_copies_skip_no_check_of_a_constructor(family):
    assert not hasattr(family.config_type, "__post_init__")
