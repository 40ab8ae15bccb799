"""Division of integers that cannot end the process: the module before and after, and numbers."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import onnx
import pytest
from tvm import relax

from tvmopt.transform.safe_division import GuardDivision

op = relax.op
QUOTIENTS, REMAINDERS = [op.divide, op.floor_divide], [op.mod, op.floor_mod]


def _pair(dtype):
    return {"a": ((8,), dtype), "b": ((8,), dtype)}


def _const(value, dtype):
    return relax.const(value, dtype)


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64"])
@pytest.mark.parametrize("divide", QUOTIENTS)
def test_signed_quotient(relax_main, assert_same, divide, dtype):
    def after(emit, a, b):
        zero, one = _const(0, dtype), _const(1, dtype)
        is_zero = emit(op.equal(b, zero))
        safe = emit(op.where(is_zero, one, b))
        is_minus_one = emit(op.equal(b, _const(-1, dtype)))
        safe = emit(op.where(is_minus_one, one, safe))
        result = emit(divide(a, safe))
        opposite = emit(op.subtract(zero, a))
        result = emit(op.where(is_minus_one, opposite, result))
        return emit(op.where(is_zero, zero, result))

    before = relax_main(lambda emit, a, b: emit(divide(a, b)), **_pair(dtype))
    assert_same(GuardDivision()(before), relax_main(after, **_pair(dtype)))


@pytest.mark.parametrize("divide", REMAINDERS)
def test_unsigned_remainder(relax_main, assert_same, divide):
    def after(emit, a, b):
        is_zero = emit(op.equal(b, _const(0, "uint8")))
        return emit(divide(a, emit(op.where(is_zero, _const(1, "uint8"), b))))

    before = relax_main(lambda emit, a, b: emit(divide(a, b)), **_pair("uint8"))
    assert_same(GuardDivision()(before), relax_main(after, **_pair("uint8")))


@pytest.mark.parametrize("divide", [*QUOTIENTS, *REMAINDERS])
def test_floats_and_safe_constants_stay(relax_main, assert_same, divide):
    floats = relax_main(lambda emit, a, b: emit(divide(a, b)), **_pair("float32"))
    assert_same(GuardDivision()(floats), floats)
    constant = relax_main(
        lambda emit, a: emit(divide(a, _const([3, -2], "int32"))), a=((2,), "int32")
    )
    assert_same(GuardDivision()(constant), constant)
    unsafe = relax_main(
        lambda emit, a: emit(divide(a, _const([3, -1], "int32"))), a=((2,), "int32")
    )
    assert "where" in str(GuardDivision()(unsafe))


_DTYPES = ("int8", "uint8", "int32", "int64")
_RESULTS = ("div", "mod", "fmod")
_SCRIPT = """
import sys
import numpy as np, tvmopt
for dtype in sys.argv[2:]:
    model = tvmopt.compile(f"{sys.argv[1]}/{dtype}.onnx", fallback="refuse")
    info = np.iinfo(dtype)
    a = np.tile(np.array([info.min, info.max, 7, 0, 100], dtype), 8)
    b = np.repeat(np.array([0, 3, 1, 2, info.max, 0, 5, 0], dtype), 5)
    b[b == 1] = -1 if info.min else 1
    np.savez(f"{sys.argv[1]}/{dtype}.npz", a=a, b=b, **dict(model({"a": a, "b": b}).items()))
"""


def test_no_divisor_ends_the_process(make_model, tmp_path):
    nodes = [
        onnx.helper.make_node("Div", ["a", "b"], ["div"]),
        onnx.helper.make_node("Mod", ["a", "b"], ["mod"]),
        onnx.helper.make_node("Mod", ["a", "b"], ["fmod"], fmod=1),
    ]
    for dtype in _DTYPES:
        inputs = {"a": (dtype, [40]), "b": (dtype, [40])}
        outputs = {name: (dtype, [40]) for name in _RESULTS}
        model = make_model(nodes, inputs, outputs, {})
        onnx.save_model(model, str(tmp_path / f"{dtype}.onnx"))
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, str(tmp_path), *_DTYPES], capture_output=True, text=True
    )
    assert done.returncode == 0, (done.returncode, done.stderr[-500:])
    for dtype in _DTYPES:
        with np.load(tmp_path / f"{dtype}.npz") as found:
            for name in _RESULTS:
                pairs = zip(found["a"], found["b"], strict=True)
                wanted = [_wrapped(_divided(name, int(a), int(b)), dtype) for a, b in pairs]
                np.testing.assert_array_equal(found[name], np.array(wanted, dtype))


def _divided(name: str, value: int, by: int) -> int:
    """ONNX's result, and 0 for division by 0."""
    if by == 0:
        return 0
    quotient = abs(value) // abs(by) * (1 if value * by >= 0 else -1)
    return {"div": quotient, "mod": value % by, "fmod": value - quotient * by}[name]


def _wrapped(value: int, dtype: str) -> int:
    """Two's complement: the least integer by -1 is itself."""
    info = np.iinfo(dtype)
    return (value - int(info.min)) % (int(info.max) - int(info.min) + 1) + int(info.min)
