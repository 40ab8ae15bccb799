"""TensorIR functions that equal a Relax operator are raised to it; others stay."""

import numpy as np
import pytest
import tvm
from tvm import relax, te, topi

from tvmopt.transform.raise_tensor_ir import raise_tensor_ir


def _raised(compute, *args, name=None):
    """Raise ``call_tir`` of ``compute``; return the name of the operator, and the call."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 4, 5, 6), "float32"))
    hint = {} if name is None else {"primfunc_name_hint": name}
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_te(compute, x, *args, **hint)
            out = builder.emit_output(out)
        builder.emit_func_output(out)
    mod = builder.get()
    assert _first(mod).op.name == "relax.call_tir"
    return _first(raise_tensor_ir(mod))


def _first(mod):
    return mod["main"].body.blocks[0].bindings[0].value


def test_clip():
    bound = relax.const(np.zeros(1, np.float32))
    for compute, name in ((topi.maximum, "relax.maximum"), (topi.minimum, "relax.minimum")):
        call = _raised(compute, bound)
        assert call.op.name == name
        np.testing.assert_array_equal(call.args[1].value.numpy(), bound.value.numpy())


@pytest.mark.parametrize("value", [0.0, -1.5])
def test_pad(value):
    call = _raised(topi.nn.pad, [0, 1, 0, 2], [0, 0, 3, 4], value)
    assert call.op.name == "relax.nn.pad"
    assert list(call.attrs.pad_width) == [0, 0, 1, 0, 0, 3, 2, 4]
    assert call.attrs.pad_value == value


def test_other_functions_of_the_same_name():
    def twice(x):
        return te.compute(x.shape, lambda *at: x[at] * tvm.tirx.const(2.0, "float32"), "twice")

    def shifted(x):
        shape = [*x.shape[:3], x.shape[3] + 1]
        return te.compute(
            shape,
            lambda n, c, h, w: tvm.tirx.if_then_else(w < 6, x[n, c, h, w] + 1.0, 0.0),
            "shifted",
        )

    assert _raised(twice, name="maximum").op.name == "relax.call_tir"
    assert _raised(twice, name="pad").op.name == "relax.call_tir"
    assert _raised(shifted, name="pad").op.name == "relax.call_tir"
    assert _raised(lambda x: topi.maximum(te.compute((1,), lambda i: 1.0), x),
                   name="maximum").op.name == "relax.call_tir"  # fmt: skip
