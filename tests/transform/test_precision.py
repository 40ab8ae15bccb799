"""float16 and bfloat16: stored dtypes, operators that stay float32, and results."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest
import tvm
import tvm_ffi
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax

from tests.libraries import loaded
from tvmopt.build import build_library
from tvmopt.device.target import resolve_target
from tvmopt.errors import ConfigError
from tvmopt.transform import lower as lower_module
from tvmopt.transform.anchors import INDICES_ATTR, NAMES_ATTR, anchors, with_layers
from tvmopt.transform.precision import SENSITIVE, to_precision
from tvmopt.transform.precision.fusion import dataflow
from tvmopt.transform.precision.rounding import round_keeping_sums

op = relax.op
TARGET = resolve_target("host", 1)
BOTH = pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
NUMPY = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
TOLERANCE = {"float16": 2e-2, "bfloat16": 5e-2}
IMAGE = ((1, 4, 8, 8), "float32")
RNG = np.random.default_rng(0)


def _weight(*shape):
    return RNG.standard_normal(shape).astype(np.float32) / np.sqrt(np.prod(shape[1:]))


def _const(array, dtype=None):
    return relax.const(array.astype(NUMPY.get(dtype, array.dtype)), dtype)


def _lower(mod):
    return lower_module.lower(mod, TARGET.to_tvm())


def _stored(mod):
    """Return the dtype that each function of a lowered module stores, in order."""
    bindings = [b for block in mod["main"].body.blocks for b in block.bindings]
    return [str(b.var.ty.dtype) for b in bindings if isinstance(b.value, relax.Call)]


@pytest.fixture
def run(tmp_path):
    """Compile a module and run it on arrays; return all outputs."""
    count = iter(range(1000))

    def compiled(mod, *arrays, folder=tmp_path):
        path = folder / f"{next(count)}-{id(mod)}.so"
        build_library(_lower(mod), TARGET, path, quick=True)
        return loaded(path)(*arrays)

    return compiled


def _deviation(got, want):
    return np.abs(got.astype(np.float64) - want).max() / np.abs(want).max()


def _operand_types(mod):
    return [tuple(str(a.ty.dtype) for a in anchor.call.args[:2]) for anchor in anchors(mod)]


W = _weight(4, 4, 3, 3)
B = _weight(1, 4, 1, 1)


def _conv(emit, x, w=W, **attrs):
    return emit(op.nn.conv2d(x, relax.const(w), padding=w.shape[2] // 2, **attrs))


def _conv_relu(emit, x):
    return emit(op.nn.relu(emit(op.add(_conv(emit, x), relax.const(B)))))


@BOTH
def test_one_cast_where_a_value_is_stored(relax_main, assert_same, dtype):
    before = relax_main(lambda emit, x: _conv_relu(emit, _conv_relu(emit, x)), x=IMAGE)

    def body(emit, x):
        for _ in range(2):
            x = emit(op.astype(x, dtype))
            w = relax.const(round_keeping_sums(W, dtype), dtype)
            x = emit(op.nn.conv2d(x, w, padding=1, out_dtype="float32"))
            x = emit(op.nn.relu(emit(op.add(x, relax.const(B)))))
        return x

    assert_same(to_precision(before, dtype).mod, relax_main(body, x=IMAGE))


def test_an_add_of_two_layers_stays_in_registers(relax_main):
    def body(emit, x):
        first = _conv_relu(emit, x)
        return _conv(emit, emit(op.nn.relu(emit(op.add(_conv_relu(emit, first), first)))))

    lowered = _lower(to_precision(relax_main(body, x=IMAGE), "float16").mod)
    # The input, three values between convolutions, the result.
    assert _stored(lowered) == ["float16"] * 3 + ["float32"]
    local = re.findall(r"(?:T_add|T_relu|compute)\w* = T.sblock_alloc_buffer(.*)", lowered.script())
    assert len(local) > 4
    assert all("float16" not in shape_and_type for shape_and_type in local)


def _from_its_largest(emit, x):
    # The values are far from 0 and close to each other.
    far = emit(op.add(_conv(emit, x), relax.const(np.float32(1000))))
    return _conv(emit, emit(op.subtract(far, emit(op.max(far, [2, 3], keepdims=True)))))


def test_values_between_float32_operators_are_not_rounded(relax_main, run):
    """The result of a skipped layer stays float32 until a converted layer reads it."""
    mod = relax_main(_from_its_largest, x=IMAGE)
    lowered = _lower(to_precision(mod, "bfloat16", skip_layers=[0]).mod)
    assert _stored(lowered) == ["float32", "float32", "bfloat16", "float32"]
    # After a converted layer, the value has the rounding error of that layer.
    everywhere = _stored(_lower(to_precision(mod, "bfloat16").mod))
    assert everywhere == ["bfloat16", "bfloat16", "float32", "bfloat16", "float32"]
    x = RNG.standard_normal((1, 4, 8, 8)).astype(np.float32)
    (want,) = run(mod, x)
    (got,) = run(to_precision(mod, "bfloat16", skip_layers=[0]).mod, x)
    assert _deviation(got, want) < 1e-2
    (rounded,) = run(to_precision(mod, "bfloat16").mod, x)
    assert _deviation(rounded, want) > 0.1


def _squeeze_excite(emit, x):
    # Two readers in different functions, one of them a reduction, and a broadcast operand.
    x = _conv_relu(emit, x)
    scale = emit(op.mean(x, [2, 3], keepdims=True))
    scale = emit(op.clip(_conv(emit, scale, _weight(4, 4, 1, 1)), 0, 1))
    return _conv(emit, emit(op.multiply(x, scale)))


def _shortcut(emit, x):
    # Both operands of the add are convolutions, so one of them must be stored.
    x = _conv_relu(emit, x)
    left, right = _conv(emit, x), emit(op.add(_conv(emit, x, -W), relax.const(B)))
    return _conv(emit, emit(op.nn.relu(emit(op.add(left, right)))))


def _data_movement(emit, x):
    x = _conv_relu(emit, x)
    x = emit(op.nn.max_pool2d(x, (2, 2), strides=(2, 2)))
    x = emit(op.concat([x, emit(op.strided_slice(x, [1], [1], [3]))], 1))
    x = emit(op.split(x, 2, 1))
    x = emit(op.concat([emit(relax.TupleGetItem(x, 1)), emit(relax.TupleGetItem(x, 0))], 1))
    x = emit(op.image.resize2d(x, relax.ShapeExpr([8, 8]), layout="NCHW", method="nearest_neighbor",
                               coordinate_transformation_mode="asymmetric"))  # fmt: skip
    x = emit(op.nn.pad(x, [0, 0, 0, 0, 1, 1, 1, 1]))
    x = emit(op.reshape(emit(op.permute_dims(x, [0, 2, 3, 1])), (100, 6)))
    return emit(op.matmul(x, relax.const(_weight(6, 5))))


def _bilinear(emit, x):
    x = emit(op.image.resize2d(_conv_relu(emit, x), relax.ShapeExpr([12, 12]), layout="NCHW"))
    return _conv(emit, x)


def _gated(emit, x):
    # x * sigmoid(x): both readers are in one kernel, so x stays in registers.
    x = _conv(emit, x)
    return _conv(emit, emit(op.multiply(x, emit(op.clip(x, 0, 1)))))


def _repeated(emit, x):
    # Equal fused functions, which FuseOps merges.
    for _ in range(3):
        x = _conv_relu(emit, x)
    return _conv(emit, x)


GRAPHS = [_squeeze_excite, _shortcut, _data_movement, _bilinear, _gated, _repeated]


@pytest.mark.sample(2)
@BOTH
@pytest.mark.parametrize("graph", GRAPHS)
def test_tensors_between_layers_are_16_bit(relax_main, run, graph, dtype):
    mod = relax_main(graph, x=IMAGE)
    converted = to_precision(mod, dtype).mod
    assert set(_operand_types(converted)) == {(dtype, dtype)}
    lowered = _lower(converted)
    bindings = [b for block in lowered["main"].body.blocks for b in block.bindings]
    wide = [b.var.ty for b in bindings[:-1] if str(b.var.ty.dtype) == "float32"]
    # Means of whole planes are few, and stored in the dtype of the accumulator.
    assert all(int(np.prod([int(d) for d in ty.shape])) == 4 for ty in wide)
    assert len(wide) == (1 if graph is _squeeze_excite else 0)
    x = RNG.standard_normal(IMAGE[0]).astype(np.float32)
    assert _deviation(run(converted, x)[0], run(mod, x)[0]) < TOLERANCE[dtype]


def test_values_that_stay_in_registers_are_not_rounded(relax_main):
    script = to_precision(relax_main(_gated, x=IMAGE), "float16").mod.script()
    assert script.count("R.astype") == 2  # the input and the product


@pytest.mark.parametrize("graph", GRAPHS)
def test_predicted_stores_are_the_stores_after_lowering(relax_main, graph):
    mod = relax.transform.CanonicalizeBindings()(relax_main(graph, x=IMAGE))
    predicted = [n for n in dataflow(mod) if isinstance(n.value, relax.Call) and n.stored]
    assert len(predicted) == len(_stored(lower_module.lower(mod, TARGET.to_tvm())))


def test_sensitive_operators_read_and_write_float32(relax_main):
    def body(emit, x):
        scores = emit(op.matmul(x, relax.const(_weight(8, 8))))
        return emit(op.matmul(emit(op.nn.softmax(scores)), relax.const(_weight(8, 3))))

    mod = to_precision(relax_main(body, x=((8, 8), "float32")), "float16").mod
    calls = {b.value.op.name: b for k in mod["main"].body.blocks for b in k.bindings}
    softmax = calls["relax.nn.softmax"]
    assert str(softmax.value.args[0].ty.dtype) == str(softmax.var.ty.dtype) == "float32"
    assert _stored(_lower(mod)) == ["float16", "float32", "float16", "float32"]
    assert all(f"relax.{name}" in tvm.ir.Op.list_op_names() for name in SENSITIVE)
    assert all(SENSITIVE.values())


def test_a_norm_written_out_reads_float32(relax_main):
    def body(emit, x):
        x = _conv(emit, x)
        x = emit(op.subtract(x, emit(op.mean(x, [1], keepdims=True))))
        return _conv(emit, x)

    mod = to_precision(relax_main(body, x=IMAGE), "bfloat16").mod
    subtract = next(
        b.value for k in mod["main"].body.blocks for b in k.bindings
        if b.value.op.name == "relax.subtract"
    )  # fmt: skip
    assert [str(mod_arg.ty.dtype) for mod_arg in subtract.args] == ["float32"] * 2
    assert mod.script().count('"bfloat16")') >= 2
    assert mod.script().count("R.astype") == 2


def test_operators_of_the_users_choice_stay_float32(relax_main):
    def body(emit, x):
        return _conv(emit, emit(op.nn.max_pool2d(_conv(emit, x), (2, 2), strides=(2, 2))))

    mod = relax_main(body, x=IMAGE)
    pools = []
    for kept in ((), ("nn.max_pool2d",), "relax.nn.max_pool2d"):
        changed = to_precision(mod, "float16", keep_float32=kept).mod
        pools += [
            str(b.var.ty.dtype) for k in changed["main"].body.blocks for b in k.bindings
            if b.value.op.name == "relax.nn.max_pool2d"
        ]  # fmt: skip
    assert pools == ["float16", "float32", "float32"]
    kept = to_precision(mod, "float16", keep_float32=["nn.conv2d"])
    assert kept.skipped == {0: "keep_float32: nn.conv2d", 1: "keep_float32: nn.conv2d"}
    assert kept.mod.same_as(mod)


def test_skipped_layers_read_what_they_read_before(relax_main, run):
    mod = relax_main(lambda emit, x: _conv(emit, _conv_relu(emit, _conv_relu(emit, x))), x=IMAGE)
    result = to_precision(mod, "float16", skip_layers=[1])
    assert result.skipped == {1: "skip_layers: 1"}
    types = ["float16", "float32", "float16"]
    assert _operand_types(result.mod) == [(t, t) for t in types]
    # A value that only a skipped layer reads is not rounded.
    assert _stored(_lower(result.mod)) == ["float16", "float32", "float16", "float32"]
    x = RNG.standard_normal(IMAGE[0]).astype(np.float32)
    assert _deviation(run(result.mod, x)[0], run(mod, x)[0]) < 2e-3


def test_layers_keep_order_and_attributes(relax_main):
    mod = relax_main(lambda emit, x: _conv(emit, _conv_relu(emit, x)), x=IMAGE)
    mod = with_layers(mod, ["stem", "head"], [3, 7])
    result = to_precision(mod, "float16", skip_layers="head")
    assert result.skipped == {7: "skip_layers: head"}
    attrs = result.mod["main"].attrs
    assert list(attrs[NAMES_ATTR]) == ["stem", "head"]
    assert list(attrs[INDICES_ATTR]) == [3, 7]
    assert attrs["num_input"] == 1
    old, new = (a.call.attrs for a in (anchors(mod)[0], anchors(result.mod)[0]))
    assert str(new.out_dtype) == "float32"
    for field in ("strides", "padding", "dilation", "groups", "data_layout", "kernel_layout"):
        assert getattr(new, field) == getattr(old, field)


def test_weights_that_overflow_keep_their_layer(relax_main, run):
    heavy = W.copy()
    heavy[0, 0, 0, 0] = 1e5
    mod = relax_main(lambda emit, x: _conv(emit, _conv(emit, x, heavy)), x=IMAGE)
    result = to_precision(mod, "float16")
    assert result.skipped == {0: "weights up to 1e+05 overflow float16"}
    assert to_precision(mod, "bfloat16").skipped == {}
    x = np.full(IMAGE[0], 1e-5, np.float32)
    assert _deviation(run(result.mod, x)[0], run(mod, x)[0]) < 2e-2


def test_layers_of_other_types_and_kinds_stay(relax_main):
    def body(emit, x, i, h):
        a = emit(op.matmul(i, relax.const(np.ones((4, 4), np.int8)), "int32"))
        b = emit(op.matmul(h, relax.const(np.ones((4, 4), np.float16))))
        c = emit(op.einsum([x, x], "ij,jk->ik"))
        return emit(op.add(emit(op.astype(a, "float32")),
                           emit(op.add(emit(op.astype(b, "float32")), c))))  # fmt: skip

    inputs = {n: ((4, 4), t) for n, t in (("x", "float32"), ("i", "int8"), ("h", "float16"))}
    result = to_precision(relax_main(body, **inputs), "bfloat16")
    assert result.skipped == {
        0: "operands are int8 and int8, not float32",
        1: "operands are float16 and float16, not float32",
        2: "einsum has no form that adds up in float32",
    }


def _masked(emit, x, mask):
    # A layer reads the masked scores from memory, where an infinity would give NaN.
    scores = emit(op.matmul(x, relax.const(np.eye(8, dtype=np.float32))))
    low = emit(op.multiply(mask, relax.const(np.float32(np.finfo(np.float32).min))))
    scores = emit(op.add(scores, low))
    probabilities = emit(op.nn.softmax(scores))
    direct = emit(op.matmul(scores, relax.const(np.zeros((8, 8), np.float32))))
    return emit(op.add(probabilities, direct))


@BOTH
def test_masks_of_minus_infinity_give_numbers(relax_main, run, dtype):
    mod = relax_main(_masked, x=((4, 8), "float32"), mask=((4, 8), "float32"))
    x = RNG.standard_normal((4, 8)).astype(np.float32)
    mask = np.zeros((4, 8), np.float32)
    mask[1, 3:] = mask[2] = 1  # part of a row, and a whole row
    got, want = (run(m, x, mask)[0] for m in (to_precision(mod, dtype).mod, mod))
    assert np.isfinite(got).all()
    assert np.abs(got - want).max() < TOLERANCE[dtype]


@pytest.mark.sample(2)
@BOTH
@pytest.mark.parametrize("rank", [1, 3])
@pytest.mark.parametrize("transpose", [False, True])
def test_other_convolutions(relax_main, run, dtype, rank, transpose):
    name = f"conv{rank}d" + "_transpose" * transpose
    w = _weight(4, 4, *[3] * rank)
    attrs = {"strides": 2, "padding": 1}
    x = {"x": ((1, 4, *[5] * rank), "float32")}
    mod = relax_main(lambda emit, x: emit(getattr(op.nn, name)(x, relax.const(w), **attrs)), **x)
    result = to_precision(mod, dtype)
    assert result.skipped == {}
    data = RNG.standard_normal(x["x"][0]).astype(np.float32)
    assert _deviation(run(result.mod, data)[0], run(mod, data)[0]) < TOLERANCE[dtype]


def test_embeddings_are_16_bit_for_layers_only(relax_main):
    table = _weight(10, 4)

    def body(norm):
        def build(emit, ids):
            x = emit(op.take(relax.const(table), ids, 0))
            if norm:
                ones = relax.const(np.ones(4, np.float32))
                x = emit(op.nn.layer_norm(x, ones, ones, [-1]))
            return emit(op.matmul(x, relax.const(_weight(4, 4))))

        return relax_main(build, ids=((3,), "int64"))

    for norm, narrow, dtype in (
        (False, False, "float16"), (True, False, "float32"), (True, True, "float32"),
    ):  # fmt: skip
        mod = to_precision(body(norm), "float16", narrow_norms=narrow).mod
        take = mod["main"].body.blocks[0].bindings[0].value
        assert take.op.name == "relax.take"
        assert str(take.args[0].ty.dtype) == dtype


def _residuals(layers, pre):
    """A stack of residual MLPs with a LayerNorm before or behind each, and a last layer."""
    rng = np.random.default_rng(1)
    ones, zeros = relax.const(np.ones(64, np.float32)), relax.const(np.zeros(64, np.float32))

    def linear(emit, x, *shape):
        w = rng.standard_normal(shape).astype(np.float32) / np.sqrt(shape[0])
        return emit(op.add(emit(op.matmul(x, relax.const(w))), relax.const(w[0])))

    def body(emit, x):
        for _ in range(layers):
            y = emit(op.nn.layer_norm(x, ones, zeros, [-1])) if pre else x
            y = linear(emit, emit(op.nn.gelu(linear(emit, y, 64, 128))), 128, 64)
            x = emit(op.add(x, y))
            x = x if pre else emit(op.nn.layer_norm(x, ones, zeros, [-1]))
        x = emit(op.nn.layer_norm(x, ones, zeros, [-1])) if pre else x
        return linear(emit, x, 64, 64)

    return body


@pytest.mark.sample(1)
@BOTH
@pytest.mark.parametrize("pre", [False, True], ids=["post-norm", "pre-norm"])
def test_16_bit_residual_sums_cost_little_accuracy(relax_main, run, dtype, pre):
    mod = relax_main(_residuals(12, pre), x=((16, 64), "float32"))
    x = np.random.default_rng(2).standard_normal((16, 64)).astype(np.float32)
    want = run(mod, x)[0]
    wide, narrow = (
        np.sqrt(np.mean((run(to_precision(mod, dtype, narrow_norms=n).mod, x)[0] - want) ** 2))
        for n in (False, True)
    )
    epsilon = float(ml_dtypes.finfo(NUMPY[dtype]).eps)
    assert 0 < wide < 1.5 * epsilon * np.std(want)
    assert narrow < 3 * epsilon * np.std(want)
    assert narrow < (3 if pre else 1.5) * wide


def test_the_norms_of_keep_float32_read_float32(relax_main):
    mod = relax_main(_residuals(2, False), x=((16, 64), "float32"))
    kept = to_precision(mod, "float16", keep_float32=["nn.layer_norm"], narrow_norms=True).mod
    tvm.ir.assert_structural_equal(kept, to_precision(mod, "float16").mod, map_free_vars=True)
    narrow = to_precision(mod, "float16", narrow_norms=True).mod
    assert not tvm_ffi.structural_equal(kept, narrow, map_free_vars=True)


def test_wrong_parameters(relax_main):
    mod = relax_main(_conv, x=IMAGE)
    for call, message in (
        (lambda: to_precision(mod, "int8"), r"float16, bfloat16, but got 'int8'; .* recast"),
        (lambda: to_precision(mod, "float16", [5]), r"5 matches none of .* 0 to 0"),
        (lambda: to_precision(mod, "float16", keep_float32=["nn.softmaxx"]),
         r"must hold Relax operators, but got 'nn.softmaxx'; name them as in nn.softmax"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=message):
            call()


def test_without_layers_nothing_changes(relax_main):
    mod = relax_main(lambda emit, x: emit(op.nn.relu(x)), x=IMAGE)
    assert to_precision(mod, "float16").mod.same_as(mod)


@st.composite
def _random_graph(draw):
    """Steps of a chain on (1, C, 6, 6), and the layers to skip."""
    kinds = st.sampled_from(["conv", "depthwise", "pool", "residual", "relu", "gate", "mean"])
    return draw(st.lists(kinds, min_size=1, max_size=5)), draw(st.integers(0, 2**20))


def _chain(steps, seed):
    rng = np.random.default_rng(seed)

    def weight(*shape):
        fan_in = np.prod(shape[1:])
        return relax.const((rng.standard_normal(shape) / np.sqrt(fan_in)).astype(np.float32))

    def body(emit, x):
        x = emit(op.nn.conv2d(x, weight(4, 3, 3, 3), padding=1))
        for step in steps:
            if step == "conv":
                x = emit(op.nn.conv2d(x, weight(4, 4, 3, 3), padding=1))
            elif step == "depthwise":
                x = emit(op.nn.conv2d(x, weight(4, 1, 3, 3), padding=1, groups=4))
            elif step == "pool":
                x = emit(op.nn.max_pool2d(x, (3, 3), padding=(1, 1)))
            elif step == "residual":
                x = emit(op.add(emit(op.nn.conv2d(x, weight(4, 4, 1, 1))), x))
            elif step == "relu":
                x = emit(op.nn.relu(x))
            elif step == "gate":
                x = emit(op.multiply(x, emit(op.clip(x, -1, 1))))
            else:
                x = emit(op.subtract(x, emit(op.mean(x, [2, 3], keepdims=True))))
        x = emit(op.reshape(x, (4, 36)))
        return emit(op.matmul(x, weight(36, 5)))

    return body


@settings(max_examples=2, deadline=None, derandomize=True)
@given(_random_graph(), st.sampled_from(["float16", "bfloat16"]), st.sets(st.integers(0, 6)))
def test_random_graphs(relax_main, tmp_path_factory, graph, dtype, skip):
    steps, seed = graph
    mod = relax_main(_chain(steps, seed), x=((1, 3, 6, 6), "float32"))
    layers = anchors(mod)
    skip = sorted(i for i in skip if i < len(layers))
    result = to_precision(mod, dtype, skip)
    assert sorted(result.skipped) == skip
    assert [t == (dtype, dtype) for t in _operand_types(result.mod)] == [
        i not in skip for i in range(len(layers))
    ]
    folder = tmp_path_factory.mktemp("random")
    x = np.random.default_rng(seed).standard_normal((1, 3, 6, 6)).astype(np.float32)
    outputs = []
    for i, m in enumerate((mod, result.mod)):
        path = folder / f"{i}.so"
        build_library(_lower(m), TARGET, path, quick=True)
        outputs += loaded(path)(x)
    assert _deviation(outputs[1], outputs[0]) < TOLERANCE[dtype]
