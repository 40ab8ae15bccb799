"""Single operators: our kernel and each PyTorch variant compute the same result."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import peers
from benchmarks.cpu_ops import compiled
from benchmarks.operator_table import PLAIN
from benchmarks.operators import Convolution, MatMul, relax_module
from benchmarks.torch_operators import dense_array

AWKWARD = (
    Convolution(5, 7, (9, 11), (3, 2), (2, 1), (0, 1, 1, 2)),
    Convolution(6, 6, (8, 8), (3, 3), pads=(2, 2, 2, 2), dilations=(2, 2), groups=6),
    Convolution(6, 4, (7, 7), (3, 3), pads=(1, 1, 1, 1), groups=2, batch=2),
    Convolution(5, 3, (6, 7), (4, 3), (2, 2), (1, 0, 2, 1), transposed=True),
    MatMul(3, 5, 7, bias=True),
    MatMul(3, 5, 7, batch=2, constant=False),
    *PLAIN[2:],
)


@pytest.mark.parametrize("operator", AWKWARD, ids=lambda op: op.name)
def test_ours_equals_every_form_of_pytorch(operator, tmp_path):
    pytest.importorskip("torch", reason="PyTorch comes with the bench extra")
    from tvmopt.device.target import resolve_target
    from tvmopt.transform.lower import lower

    target = resolve_target("host", 1)
    with peers.inference_mode():
        problem = operator.problem()
        lowered = lower(relax_module(problem), target.to_tvm())
        call = compiled(lowered, target, tmp_path / "f.so", problem.inputs)
        ours = problem.restore(call().numpy())
        forms = problem.torch()
        # A constant output would equal anything.
        assert np.std(ours) > 0.05
        assert forms
        for form in forms.values():
            np.testing.assert_allclose(ours, dense_array(form()), rtol=1e-4, atol=1e-5)
