"""What runs on a Hopper GPU in its tests, checked where there is none."""

from __future__ import annotations

import pytest

from tests.hopper.test_gpu import CONVOLUTIONS, PRODUCTS, convolution_of, product_of
from tvmopt.hopper.conv import conv


@pytest.mark.parametrize(("fields", "config"), PRODUCTS)
def test_configurations_fit_their_products(fields, config):
    assert config.why_not(product_of(fields)) is None


@pytest.mark.parametrize("config", CONVOLUTIONS)
@pytest.mark.parametrize("stride", [1, 2])
def test_configurations_fit_their_convolutions(config, stride):
    assert conv(convolution_of(stride), config).attrs["global_symbol"] == "main"
