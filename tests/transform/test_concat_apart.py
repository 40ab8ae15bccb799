"""ConcatApart: a large cache is copied by itself; other concatenations stay fused."""

from __future__ import annotations

import pytest
from tvm import relax

from tvmopt.device.target import resolve_target
from tvmopt.kernels.policies import policy_of
from tvmopt.transform.lower import lower

op = relax.op
GPU = resolve_target("nvidia-h200")


def _kernels(relax_main, past: int, new: int, compute) -> dict[str, object]:
    def body(emit, cache, x):
        return emit(op.concat([cache, compute(emit, x)], 2))

    shapes = {"cache": ((1, 8, past, 128), "float16"), "x": ((1, new, 8, 128), "float16")}
    lowered = lower(relax_main(body, **shapes), GPU.to_tvm())
    return {v.name_hint: f for v, f in lowered.functions_items() if v.name_hint != "main"}


def _computed(emit, x):
    turned = emit(op.permute_dims(x, [0, 2, 1, 3]))
    return emit(op.multiply(emit(op.sigmoid(turned)), turned))


def _moved(emit, x):
    return emit(op.permute_dims(x, [0, 2, 1, 3]))


def test_a_large_cache_is_copied_by_vectors(relax_main) -> None:
    kernels = _kernels(relax_main, 1024, 1, _computed)
    assert len(kernels) == 2
    [cache] = [f for name, f in kernels.items() if name.startswith("concatenate")]
    hint = policy_of(cache, GPU.arch()).ranking.candidates[0].hint
    assert hint.template == "gpu_elementwise" and hint.vector_elements == 8


@pytest.mark.parametrize(
    ("past", "new", "compute"),
    [
        (1024, 1, _moved),  # no arithmetic
        (64, 1, _computed),  # a small cache
        (1024, 512, _computed),  # much is computed
    ],
    ids=["moved", "small", "much"],
)
def test_others_are_one_kernel(relax_main, past, new, compute) -> None:
    assert len(_kernels(relax_main, past, new, compute)) == 1
