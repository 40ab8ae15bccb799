"""RecomputeIndices: gathers compute their indices, and compute what they did."""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax

from tvmopt.device.target import resolve_target
from tvmopt.transform.lower import lower, lower_passes
from tvmopt.transform.recompute_indices import RecomputeIndices

op = relax.op
GPU = resolve_target("nvidia-h200")
TABLE = ((10, 6), "float32")
INDICES = ((2, 3), "int64")


def _from_the_end(emit, indices, rows=10):
    """Return non-negative indices as ONNX's Gather means them."""
    negative = emit(op.less(indices, relax.const(0, "int64")))
    return emit(op.where(negative, emit(op.add(indices, relax.const(rows, "int64"))), indices))


def two_tables(emit, indices, cos, sin):
    at = _from_the_end(emit, indices)
    return emit(op.multiply(emit(op.take(cos, at, 0)), emit(op.exp(emit(op.take(sin, at, 0))))))


def read_by_others(emit, indices, cos, sin):
    """The indices are also an operand of other arithmetic."""
    at = _from_the_end(emit, indices)
    first, second = emit(op.take(cos, at, 0)), emit(op.take(sin, at, 0))
    position = emit(op.expand_dims(emit(op.astype(at, "float32")), -1))
    return emit(op.add(emit(op.multiply(first, second)), emit(op.sum(position, 0, keepdims=True))))


def given(emit, indices, cos, sin):
    return emit(op.add(emit(op.take(cos, indices, 0)), emit(op.take(sin, indices, 0))))


def _network(relax_main, network):
    return relax_main(network, indices=INDICES, cos=TABLE, sin=TABLE)


def _until_the_pass(mod):
    passes = lower_passes(target=GPU.to_tvm())
    at = [p.info.name for p in passes].index("RecomputeIndices")
    with GPU.to_tvm():
        return tvm.transform.Sequential(passes[:at])(mod)


def _on_cpu(mod, inputs):
    machine = relax.VirtualMachine(tvm.compile(mod, tvm.target.Target("llvm")), tvm.cpu())
    return machine["main"](*map(tvm.runtime.tensor, inputs)).numpy()


def _inputs():
    rng = np.random.default_rng(0)
    indices = np.array([[0, -1, 3], [-10, 9, 5]])
    return [indices, *(rng.standard_normal(TABLE[0]).astype("float32") for _ in range(2))]


def _kernels(mod):
    lowered = lower(mod, GPU.to_tvm())
    return [v.name_hint for v, _ in lowered.functions_items() if v.name_hint != "main"]


def test_no_kernel_computes_only_indices(relax_main) -> None:
    names = _kernels(_network(relax_main, two_tables))
    assert len(names) == 1 and "where" in names[0] and names[0].count("take") == 2


def test_what_is_computed_stays(relax_main) -> None:
    indices, cos, sin = _inputs()
    mod = _until_the_pass(_network(relax_main, two_tables))
    for each in (mod, RecomputeIndices()(mod)):
        np.testing.assert_allclose(
            _on_cpu(each, [indices, cos, sin]), cos[indices] * np.exp(sin[indices]), rtol=1e-6
        )


def test_indices_that_others_read_stay(relax_main) -> None:
    indices, cos, sin = _inputs()
    mod = RecomputeIndices()(_until_the_pass(_network(relax_main, read_by_others)))
    positive = (indices % 10).sum(0, keepdims=True).astype("float32")
    want = cos[indices] * sin[indices] + positive[..., None]
    np.testing.assert_allclose(_on_cpu(mod, [indices, cos, sin]), want, rtol=1e-5)


def test_given_indices_change_nothing(relax_main, assert_same) -> None:
    mod = _until_the_pass(_network(relax_main, given))
    assert_same(RecomputeIndices()(mod), mod)
