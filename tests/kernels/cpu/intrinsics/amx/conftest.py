"""Fixture: the target of the AMX kernels."""

from __future__ import annotations

import dataclasses

import pytest

from tests.kernels.cpu.intrinsics.amx.kernels import FEATURES
from tvmopt.device.target import resolve_target


@pytest.fixture(scope="module")
def target():
    spec = dataclasses.replace(resolve_target("host", 2), mattr=FEATURES)
    return spec.to_tvm()
