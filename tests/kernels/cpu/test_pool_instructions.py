"""Instructions of max pooling in bfloat16, in NHWC: no copy, no branch, one vmaxps for each tap."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from tvm import relax, tirx

from tests.libraries import assembly
from tests.transform.attention.graphs import Emit, module
from tvmopt.device.target import resolve_target
from tvmopt.kernels.cpu.finish import finish
from tvmopt.kernels.emit import emit
from tvmopt.kernels.policies import policy_of
from tvmopt.transform.lower import lower

_LABEL = re.compile(r"^\.LBB\w+:")
_TAPS = 9


def _innermost(target: str, stride: int, padding: int) -> tuple[Counter[str], int, float]:
    """Return the instructions of the loop over tiles, its outputs in vectors, and the cycles."""
    spec = resolve_target(target, 1)

    def body(emit: Emit, x: relax.Var) -> relax.Expr:
        pool = relax.op.nn.max_pool2d
        return emit(pool(x, (3, 3), (stride, stride), (padding, padding), layout="NHWC"))

    mod = lower(module(body, ((1, 26, 26, 64), "bfloat16")), spec.to_tvm())
    [func] = [f for _, f in mod.functions_items() if isinstance(f, tirx.PrimFunc)]
    best = policy_of(func, spec.arch()).ranked[0]
    assert best.hint.template == "window"
    kernel = finish(emit(func, best.hint).mod["main"], func)
    blocks: list[Counter[str]] = [Counter()]
    for line in assembly(kernel, spec):
        if _LABEL.match(line):
            blocks.append(Counter())
        elif line.strip():
            blocks[-1][line.split()[0]] += 1
    *outputs, channels = best.hint.register_tile
    vectors = channels * 4 // spec.arch().simd_bytes
    for size in outputs:
        vectors *= size
    return max(blocks, key=lambda block: block["vmaxps"]), vectors, best.cycles


@pytest.mark.parametrize(("stride", "padding"), [(1, 1), (2, 0), (2, 1)])
@pytest.mark.parametrize("target", ["sapphirerapids", "cascadelake", "haswell"])
def test_a_tap_is_one_maximum_and_an_input_is_widened_once(target, stride, padding):
    found, vectors, _ = _innermost(target, stride, padding)
    assert _TAPS * vectors - vectors <= found["vmaxps"] <= _TAPS * vectors
    assert found["vpmovzxwd"] == found["vpslld"] <= _TAPS * vectors
    assert not [name for name in found if name.startswith(("vcmp", "vpcmp", "vpblendm", "vblend"))]
    assert found["vpsrld"] <= vectors  # nothing is rounded


def test_predicted_cycles_are_about_those_of_the_instructions():
    # Cycles of each 512-bit instruction on a Sapphire Rapids, measured in loops.
    cost = {"vpmovzxwd": 1.0, "vpslld": 0.23, "vmaxps": 0.5, "vpsrld": 1.0, "vpmovdw": 2.0}
    for stride, padding in ((1, 1), (2, 0), (2, 1)):
        found, vectors, predicted = _innermost("sapphirerapids", stride, padding)
        side = (26 + 2 * padding - 3) // stride + 1
        count = side**2 * 64 / 16 / vectors
        counted = count * sum(cost.get(name, 0.0) * n for name, n in found.items())
        assert counted / 1.5 < predicted < counted * 1.5
