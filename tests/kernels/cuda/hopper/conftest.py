"""The device that Hopper kernels run on."""

from __future__ import annotations

import pytest
import tvm


@pytest.fixture(params=["emulated", pytest.param("gpu", marks=pytest.mark.gpu)])
def device(request):
    """Return the GPU, or None to emulate one; skip without a Hopper GPU."""
    if request.param == "emulated":
        return None
    gpu = tvm.cuda()
    if not gpu.exist or str(gpu.compute_version) != "9.0":
        pytest.skip("needs a Hopper GPU")
    return gpu
