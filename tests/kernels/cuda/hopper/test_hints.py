"""Configurations as hints, and back."""

from __future__ import annotations

import json

import pytest

from tests.kernels.cuda.hopper.sources import H200
from tvmopt.kernels.cuda.hint import CudaHint
from tvmopt.kernels.cuda.hopper.config import Config
from tvmopt.kernels.cuda.hopper.hints import CONV, GEMM, box_of, config_of, hint_of


@pytest.mark.parametrize(
    "config",
    [
        Config(),
        Config(atoms=2, consumers=1, columns=64, stages=6, cluster=2, raster=4, flight=0),
        Config(staged=True, persistent=False, split=4, swap=True, columns=16, consumers=3),
        Config(consumers=1, buffers=1, columns=128),
        Config(columns=128, cluster=4, beside=2, swap=True, raster=2),
    ],
)
def test_round_trip(config):
    hint = hint_of(GEMM, config, "float16", H200)
    again = CudaHint.from_dict(json.loads(json.dumps(hint.to_dict())))
    assert again == hint and again.config_id == hint.config_id
    assert config_of(again) == config
    assert box_of(again) is None


def test_box_of_a_convolution():
    hint = hint_of(CONV, Config(), "float16", H200, (2, 8, 4))
    assert box_of(hint) == (2, 8, 4)
